"""How a worker is kept apart: in a PID and a mount namespace of its own, where the machine allows it.

When the first process of a PID namespace ends, the kernel ends all that it started, whatever session it went into: to
see that one process gone is to see all of them gone. In the mount namespace the control plane's directory is empty.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TRIAL_SECONDS = 10
_SCRIPT = """set -e
count=$1; shift
while [ "$count" -gt 0 ]; do mount -t tmpfs -o size=4k,mode=000 hidden "$1"; shift; count=$((count - 1)); done
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"
"""


@dataclass(frozen=True)
class Isolation:
    """How to start a process apart. `separated` is False where the machine cannot; `sentence` says it to a person."""

    separated: bool
    sentence: str
    prefix: tuple[str, ...] = ()

    def command(self, arguments: Sequence[str], hidden: Sequence[Path]) -> list[str]:
        """The command that runs `arguments` apart, with the directories in `hidden` empty and closed to it."""
        if not self.separated:
            return list(arguments)
        shell = ["sh", "-c", _SCRIPT, "interlock", str(len(hidden)), *(str(path) for path in hidden)]
        return [*self.prefix, *shell, *arguments]


def find_isolation() -> Isolation:
    """The strongest separation that this machine grants, found by trying."""
    for prefix, sentence in _candidates():
        trial = Isolation(separated=True, sentence=sentence, prefix=prefix)
        if _works(trial):
            return trial
    return Isolation(
        separated=False,
        sentence=(
            "not separated: this machine grants no namespaces, so a task can read whatever this user can read, and a "
            "device whose worker was killed stays out of the pool until an operator releases it"
        ),
    )


def _candidates() -> list[tuple[tuple[str, ...], str]]:
    apart = ("--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
    if os.geteuid() == 0:
        return [(("unshare", *apart, "--"), "separated: each worker has its own PID and mount namespace")]
    ours = ("unshare", "--user", "--map-root-user", *apart, "--")
    return [(ours, "separated: each worker has its own user, PID and mount namespace")]


def _works(trial: Isolation) -> bool:
    command = trial.command(["sh", "-c", "test $$ = 1"], [])
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TRIAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
