"""One owner a file, for as long as its process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from interlock.errors import StoreHeld


def make_directory(directory: Path) -> None:
    """Make a directory, and the parents that it lacks, durably."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Have the names in a directory outlive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_locked(path: Path) -> int:
    """Open a file for writing, made where there is none, as its only owner. Closing it gives it up.

    Raises:
        StoreHeld: It has an owner already, in this process or another.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        message = "another scheduler has claimed this run: wait until it has ended"
        raise StoreHeld(message) from None
    return descriptor


def open_marker(path: Path) -> int:
    """Own a file that only says that it is owned, and is gone when it is not.

    Raises:
        StoreHeld: It has an owner already.
    """
    while True:
        descriptor = open_locked(path)
        # The owner before removes the file while it still has the lock: what was locked here may have lost its name.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def close_marker(path: Path, descriptor: int) -> None:
    """Give up a file of `open_marker`."""
    path.unlink(missing_ok=True)
    os.close(descriptor)
