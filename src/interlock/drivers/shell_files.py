"""Files of a working directory. No path leaves it, not by `..`, not by a link, and not by a link put in meanwhile."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from interlock.actions import DispatchOutcome
from interlock.guard.canonical import fitted
from interlock.guard.tools import Answer, ProbeReport, ToolResult

READ_BYTES = 32_768
_KEPT_BYTES = 60_000
_ENTRIES = 500
_PERMISSIONS = 0o777
_NEW_FILE = 0o644
_CHUNK = 1_048_576


class Why(StrEnum):
    """Why a call ended before anything changed: the `error` in the output of its failure."""

    BAD_CONTENT = "bad_content"
    BAD_PATH = "bad_path"
    BAD_TIMEOUT = "bad_timeout"
    NO_SPACE = "no_space"
    NOT_A_DIRECTORY = "not_a_directory"
    NOT_A_FILE = "not_a_file"
    NOT_FOUND = "not_found"
    NOT_PERMITTED = "not_permitted"
    NOT_POSSIBLE = "not_possible"
    NOT_STARTED = "not_started"
    OUTSIDE_DIRECTORY = "outside_directory"


_WHY = {
    errno.ENOENT: Why.NOT_FOUND,
    errno.ENOTDIR: Why.NOT_A_DIRECTORY,
    errno.EISDIR: Why.NOT_A_FILE,
    errno.EACCES: Why.NOT_PERMITTED,
    errno.EPERM: Why.NOT_PERMITTED,
    errno.ENAMETOOLONG: Why.BAD_PATH,
    errno.ELOOP: Why.BAD_PATH,
    errno.ENOSPC: Why.NO_SPACE,
}


class Refused(Exception):
    """A call that ended before anything changed."""

    def __init__(self, why: Why) -> None:
        super().__init__(why.value)
        self.why = why

    @classmethod
    def because(cls, error: OSError) -> Refused:
        """The word for an error of the operating system."""
        return cls(_WHY.get(error.errno or 0, Why.NOT_POSSIBLE))

    @property
    def result(self) -> ToolResult:
        """The definite failure."""
        return ToolResult(DispatchOutcome.FAILED, {"error": self.why.value})


class Workdir:
    """One directory, and the only way to the files in it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def resolve(self, path: str) -> Path:
        """The real path, links followed. Raises `Refused` where it is outside."""
        try:
            target = Path(os.path.realpath(self.root / path))
        except (OSError, ValueError):
            raise Refused(Why.BAD_PATH) from None
        if not target.is_relative_to(self.root):
            raise Refused(Why.OUTSIDE_DIRECTORY)
        return target

    @contextlib.contextmanager
    def opened(self, target: Path, flags: int) -> Iterator[int]:
        """A descriptor of exactly this resolved path: what a link has moved elsewhere meanwhile is refused."""
        try:
            descriptor = os.open(target, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise Refused.because(error) from None
        try:
            if Path(f"/proc/self/fd/{descriptor}").readlink() != target:
                raise Refused(Why.OUTSIDE_DIRECTORY)
            yield descriptor
        finally:
            os.close(descriptor)


def read(workdir: Workdir, arguments: Mapping[str, Any]) -> ToolResult:
    """The beginning of a file as text; bytes that are not UTF-8 are replaced."""
    limit = min(max(arguments.get("max_bytes", READ_BYTES), 0), READ_BYTES)
    target = workdir.resolve(arguments["path"])
    with workdir.opened(target, os.O_RDONLY) as descriptor:
        _check_regular(descriptor)
        size = os.fstat(descriptor).st_size
        head = os.read(descriptor, limit)
    text = fitted(head.decode("utf-8", "replace"), _KEPT_BYTES)
    truncated = size > len(head) or len(text) < len(head.decode("utf-8", "replace"))
    output = {"path": arguments["path"], "content": text, "bytes": size, "truncated": truncated}
    return ToolResult(DispatchOutcome.COMMITTED, output)


def listing(workdir: Workdir, arguments: Mapping[str, Any]) -> ToolResult:
    """The first 500 names in a directory, ascending, each with its type and size."""
    target = workdir.resolve(arguments["path"])
    with workdir.opened(target, os.O_RDONLY | os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as found:
        entries = sorted(found, key=lambda entry: entry.name)
        shown = [_described(entry.name, entry.stat(follow_symlinks=False)) for entry in entries[:_ENTRIES]]
    output = {"path": arguments["path"], "entries": shown, "truncated": len(entries) > _ENTRIES}
    return ToolResult(DispatchOutcome.COMMITTED, output)


def status(workdir: Workdir, arguments: Mapping[str, Any]) -> ToolResult:
    """What a path is: type, size, permissions, and when it was changed, in seconds since 1970."""
    target = workdir.resolve(arguments["path"])
    with workdir.opened(target, os.O_PATH) as descriptor:
        found = os.fstat(descriptor)
    permissions = f"{found.st_mode & _PERMISSIONS:04o}"
    output = {**_described(arguments["path"], found), "mode": permissions, "modified": int(found.st_mtime)}
    return ToolResult(DispatchOutcome.COMMITTED, output)


def write(workdir: Workdir, arguments: Mapping[str, Any]) -> ToolResult:
    """Replace a file in one step. The evidence is the digest of what is read back from it.

    Raises:
        OSError: Something went wrong once the new file was about to take its place: nobody knows.
    """
    data = _encoded(arguments["content"])
    target = workdir.resolve(arguments["path"])
    if target == workdir.root:
        raise Refused(Why.NOT_A_FILE)
    with workdir.opened(target.parent, os.O_RDONLY | os.O_DIRECTORY) as directory:
        part = _part_name(target.name, data)
        _fill(directory, part, data, _mode(directory, target.name))
        os.rename(part, target.name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    found = _digest(workdir, target)
    if found != _sha256(data):
        return ToolResult(DispatchOutcome.REVIEW_REQUIRED)
    return ToolResult(DispatchOutcome.COMMITTED, _written(arguments, data), found)


def probe(workdir: Workdir, arguments: Mapping[str, Any]) -> ProbeReport:
    """Whether a write took place.

    It did where the file has the content. It did not where its unfinished file still lies there, which also shows
    that nobody has cleaned up since. Anything else tells nothing.
    """
    try:
        data = _encoded(arguments["content"])
        target = workdir.resolve(arguments["path"])
        if _digest(workdir, target) == _sha256(data):
            return ProbeReport(Answer.HAPPENED, _written(arguments, data), _sha256(data))
        part = os.path.lexists(target.parent / _part_name(target.name, data))
    except (Refused, OSError):
        return ProbeReport(Answer.CANNOT_TELL)
    return ProbeReport(Answer.DID_NOT_HAPPEN if part else Answer.CANNOT_TELL)


def _fill(directory: int, name: str, data: bytes, mode: int) -> None:
    """Write the new content beside its place, durably. A failure here is definite: nothing is in its place yet."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, mode, dir_fd=directory)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left[:_CHUNK]) :]
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        raise Refused.because(error) from None


def _mode(directory: int, name: str) -> int:
    """The permissions of the file that is replaced, or those of a new one."""
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return _NEW_FILE
    except OSError as error:
        raise Refused.because(error) from None
    if not stat.S_ISREG(found.st_mode):
        raise Refused(Why.NOT_A_FILE)
    return found.st_mode & _PERMISSIONS


def _digest(workdir: Workdir, target: Path) -> str | None:
    """The digest of a file as it is now; None where there is none."""
    try:
        with workdir.opened(target, os.O_RDONLY) as descriptor:
            _check_regular(descriptor)
            digest = hashlib.sha256()
            while chunk := os.read(descriptor, _CHUNK):
                digest.update(chunk)
    except Refused as refused:
        if refused.why is Why.NOT_FOUND:
            return None
        raise
    return f"sha256:{digest.hexdigest()}"


def _written(arguments: Mapping[str, Any], data: bytes) -> dict[str, object]:
    return {"path": arguments["path"], "bytes": len(data), "sha256": _sha256(data)}


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _part_name(name: str, data: bytes) -> str:
    """The same for the same write, so that a probe finds it and a second try replaces it."""
    return f".interlock-{hashlib.sha256(os.fsencode(name) + bytes(1) + data).hexdigest()[:16]}.part"


def _encoded(content: str) -> bytes:
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(Why.BAD_CONTENT) from None


def _check_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise Refused(Why.NOT_A_FILE)


def _described(name: str, found: os.stat_result) -> dict[str, object]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return {"name": name, "type": kinds.get(stat.S_IFMT(found.st_mode), "other"), "bytes": found.st_size}
