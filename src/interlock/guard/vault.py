"""Encryption of what must be kept and not be read by others: inputs and outputs. Used where they are stored."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from interlock.clock import new_id
from interlock.errors import VaultLocked

VARIABLE = "INTERLOCK_VAULT_KEY"
_PRIVATE = 0o600
_OTHERS = 0o077


class Vault:
    """Seals with the first of its keys and opens with any, so that a rotated key still reads what it sealed."""

    def __init__(self, keys: Iterable[str]) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            message = "a vault key is 32 bytes in URL-safe base64, and there must be one: make it with new_key()"
            raise VaultLocked(message) from None

    def seal(self, plain: bytes) -> bytes:
        """Encrypt and sign."""
        return self._fernet.encrypt(plain)

    def open(self, sealed: bytes) -> bytes:
        """Decrypt what a vault with one of these keys sealed.

        Raises:
            VaultLocked: It was sealed under another key, or has been changed since.
        """
        try:
            return self._fernet.decrypt(sealed)
        except InvalidToken:
            message = "a protected value cannot be opened: it was sealed under another key, or changed since"
            raise VaultLocked(message) from None

    def rotate(self, sealed: bytes) -> bytes:
        """Seal again under the first key what any of the keys sealed. Raises `VaultLocked` as `open` does."""
        return self.seal(self.open(sealed))

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str]) -> Vault:
        """The vault whose keys stand in `INTERLOCK_VAULT_KEY`, else in the file, which is made where there is none.

        Keys are separated by spaces, commas or lines; the first one seals.
        """
        if given := environment.get(VARIABLE):
            return cls(_keys(given))
        return cls(_read(path) if path.exists() else _create(path))


def new_key() -> str:
    """A fresh key."""
    return Fernet.generate_key().decode("ascii")


def rotate_file(path: Path) -> None:
    """Put a fresh key before those of the file, which stay for reading. Vaults loaded from now on seal with it."""
    keys = [new_key(), *_read(path)]
    _replace(path, keys)


def _keys(text: str) -> list[str]:
    return [key for key in re.split(r"[\s,]+", text) if key]


def _read(path: Path) -> list[str]:
    if path.stat().st_mode & _OTHERS:
        message = f"{path} can be read by others: run chmod 600 on it"
        raise VaultLocked(message)
    return _keys(path.read_text("ascii", errors="replace"))


def _create(path: Path) -> list[str]:
    """Make the file with a fresh key. Of several that make it at once, one wins and all read its key."""
    fresh = path.with_name(new_id(path.name))
    _write(fresh, [new_key()])
    try:
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
    _sync_directory(path.parent)
    return _read(path)


def _replace(path: Path, keys: list[str]) -> None:
    fresh = path.with_name(new_id(path.name))
    _write(fresh, keys)
    fresh.replace(path)
    _sync_directory(path.parent)


def _write(path: Path, keys: list[str]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write("\n".join(keys) + "\n")
        file.flush()
        os.fsync(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
