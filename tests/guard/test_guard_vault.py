"""The vault: what is sealed, with which key, and who may read the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock.errors import VaultLocked
from interlock.guard.vault import VARIABLE, Vault, new_key, rotate_file


@pytest.mark.contract("G-28")
def test_what_is_sealed_opens_again_and_is_not_to_be_read() -> None:
    vault = Vault([new_key()])
    sealed = vault.seal(b"canary")
    assert b"canary" not in sealed
    assert vault.open(sealed) == b"canary"
    assert vault.seal(b"canary") != sealed


@pytest.mark.contract("G-28")
def test_a_wrong_key_or_a_change_is_a_clear_error() -> None:
    vault = Vault([new_key()])
    sealed = vault.seal(b"canary")
    for keys, given in ((Vault([new_key()]), sealed), (vault, sealed[:-2] + b"AA"), (vault, b"x")):
        with pytest.raises(VaultLocked, match="sealed under another key"):
            keys.open(given)


@pytest.mark.contract("G-28")
def test_a_rotated_key_still_reads_and_no_longer_seals() -> None:
    old, new = new_key(), new_key()
    sealed = Vault([old]).seal(b"x")
    both = Vault([new, old])
    assert both.open(sealed) == b"x"
    assert Vault([new]).open(both.rotate(sealed)) == b"x"
    with pytest.raises(VaultLocked):
        Vault([old]).open(both.seal(b"x"))


@pytest.mark.contract("G-28")
@pytest.mark.parametrize("keys", [[], ["short"], ["!" * 44]])
def test_what_is_no_key_is_refused_without_being_shown(keys: list[str]) -> None:
    with pytest.raises(VaultLocked) as caught:
        Vault(keys)
    assert not any(key in str(caught.value) for key in keys)


@pytest.mark.contract("G-29")
def test_the_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    sealed = Vault.load(path, {}).seal(b"x")
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert Vault.load(path, {}).open(sealed) == b"x"
    assert path.read_text() == text
    assert [each.name for each in tmp_path.iterdir()] == ["vault.key"]


@pytest.mark.contract("G-29")
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    Vault.load(path, {})
    path.chmod(0o640)
    with pytest.raises(VaultLocked, match="chmod 600"):
        Vault.load(path, {})


@pytest.mark.contract("G-28", "G-29")
def test_a_rotated_file_keeps_its_old_keys(tmp_path: Path) -> None:
    path = tmp_path / "vault.key"
    old = Vault.load(path, {}).seal(b"x")
    rotate_file(path)
    vault = Vault.load(path, {})
    assert vault.open(old) == b"x"
    assert path.stat().st_mode & 0o777 == 0o600
    newest = path.read_text().split()[0]
    assert Vault([newest]).open(vault.seal(b"y")) == b"y"


@pytest.mark.contract("G-29")
def test_the_variable_goes_before_the_file(tmp_path: Path) -> None:
    first, second = new_key(), new_key()
    vault = Vault.load(tmp_path / "vault.key", {VARIABLE: f"{first}, {second}"})
    assert Vault([first]).open(vault.seal(b"x")) == b"x"
    assert vault.open(Vault([second]).seal(b"x")) == b"x"
    assert not (tmp_path / "vault.key").exists()
