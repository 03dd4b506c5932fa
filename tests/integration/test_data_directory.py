"""What `up` does with a data directory that is not as it was left."""

from __future__ import annotations

from integration.conftest import MakeSystem
from integration.system import System


def refused(system: System) -> tuple[int, str]:
    done = system.call("up", "--port", "0")
    return done.returncode, done.stderr


def test_a_lost_key_is_not_replaced_in_silence(make_system: MakeSystem) -> None:
    system = make_system()
    system.up()
    system.stop()
    key = system.data / "control" / "vault.key"
    kept = key.read_text("utf-8")
    key.unlink()
    code, said = refused(system)
    assert (code != 0, "put it back" in said, key.exists()) == (True, True, False)
    key.write_text("zzz\n", "utf-8")
    key.chmod(0o600)
    code, said = refused(system)
    assert (code != 0, str(key) in said) == (True, True)
    key.write_text(kept, "utf-8")
    system.up()
    assert system.stop() == 0


def test_a_damaged_database_is_named(make_system: MakeSystem) -> None:
    system = make_system()
    system.up()
    system.stop()
    (system.data / "control" / "interlock.db").write_bytes(b"junk" * 4_096)
    code, said = refused(system)
    assert (code, "is damaged" in said) == (5, True)


def test_a_data_directory_that_cannot_be_one_is_refused(make_system: MakeSystem) -> None:
    system = make_system()
    system.data.write_text("a file", "utf-8")
    code, said = refused(system)
    assert (code, "choose another with --data" in said) == (2, True)
