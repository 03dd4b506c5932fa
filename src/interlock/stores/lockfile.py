"""One owner process for one database file: a lock that the kernel lets go of when its holder ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from interlock.errors import StoreHeld


class LockFile:
    """An exclusive lock beside a database, which says who holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._descriptor)
            message = (
                f"{path.with_suffix('')} is held by process {holder}: stop it, or talk to it through its API "
                "(interlock submit, tasks, show)"
            )
            raise StoreHeld(message) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let the next owner in."""
        os.close(self._descriptor)
