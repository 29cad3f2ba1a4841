"""Read files and directories with checks: regular files only, of the size they must have.

Invariant: nothing here changes anything, follows a link at the end of a path, or waits for a pipe.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmreplay.errors import CorruptStoreError, FailedStoreError, StoreNotFoundError
from mmreplay.system import platform
from mmreplay.system.held_directories import AnyPath, HeldPath, at, check_there
from mmreplay.system.limits import check_limit

_HAS_BLOCKS = hasattr(os.stat_result, "st_blocks")
_EFFECTIVE = os.access in os.supports_effective_ids


def open_regular(path: AnyPath, flags: int) -> int:
    """Open a regular file, without following a link at the end of the path."""
    name, folder = at(path)
    flags |= platform.NOFOLLOW | platform.NONBLOCK | platform.CLOEXEC | platform.BINARY
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise CorruptStoreError(
                f"{path}: expected a regular file, found a link, a directory or a device; "
                f"a store holds none"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise FailedStoreError(f"{path}: may not be written: {error.strerror}") from error
            raise CorruptStoreError(f"{path}: may not be read: {error.strerror}") from error
        check_there(path, error)
        check_limit(error, path)
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptStoreError(f"{path}: expected a regular file, found something else")
    return descriptor


def check_size(path: AnyPath, found: int, expected: int) -> None:
    """Raise CorruptStoreError unless a file has as many bytes as it must have."""
    if found != expected:
        raise CorruptStoreError(
            f"{path}: expected {expected:,} bytes, found {found:,}: the file was cut or replaced; "
            f"run `mmreplay verify`"
        )


def read_bytes(path: AnyPath, limit: int) -> bytes:
    """A regular file, whole; raises CorruptStoreError if it is not one, or is above `limit`."""
    descriptor, size = _open_within(path, limit)
    try:
        return _read_exactly(descriptor, path, 0, size)
    finally:
        os.close(descriptor)


def regular_size(path: AnyPath, limit: int) -> int:
    """The size of a regular file; CorruptStoreError if it is not one, or is above `limit`."""
    descriptor, size = _open_within(path, limit)
    os.close(descriptor)
    return size


def _open_within(path: AnyPath, limit: int) -> tuple[int, int]:
    """The descriptor and the size of a regular file of at most `limit` bytes."""
    descriptor = open_regular(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    if size > limit:
        os.close(descriptor)
        raise CorruptStoreError(f"{path}: expected at most {limit:,} bytes, found {size:,}")
    return descriptor, size


def read_at(path: AnyPath, offset: int, length: int, size: int) -> bytes:
    """`length` bytes from `offset`; raises CorruptStoreError unless the file has `size` bytes."""
    return read_ranges(path, [(offset, length)], size)


def read_ranges(path: AnyPath, ranges: Sequence[tuple[int, int]], size: int) -> bytes:
    """As `read_at`, the bytes of several ranges, (offset, length), one after the other."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        check_size(path, os.fstat(descriptor).st_size, size)
        parts = [_read_exactly(descriptor, path, offset, length) for offset, length in ranges]
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


def _seek_and_read(descriptor: int, length: int, offset: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)


_pread = getattr(os, "pread", _seek_and_read)  # Windows has none


class OpenFile:
    """A regular file, opened for a few reads, which may give less than was asked for."""

    __slots__ = ("_descriptor", "_path", "size")

    def __init__(self, path: AnyPath) -> None:
        self._path, self._descriptor = path, -1
        self._descriptor = open_regular(path, os.O_RDONLY)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file; CorruptStoreError if the disk cannot read them."""
        try:
            return _pread(self._descriptor, length, offset)
        except OSError as error:
            raise CorruptStoreError(f"{self._path}: cannot be read: {error.strerror}") from error

    def close(self) -> None:
        """Close it; a second call does nothing."""
        # Not in `__del__`, where an interrupt of the user would be lost.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def read_filled(path: AnyPath, size: int, piece_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a file without its holes, at multiples of `piece_bytes`."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        check_size(path, os.fstat(descriptor).st_size, size)
        offset = 0
        while offset < size:
            filled = _next_filled(descriptor, offset)
            if filled is None:
                return
            offset = max(offset, filled - filled % piece_bytes)
            length = min(piece_bytes, size - offset)
            yield offset, _read_exactly(descriptor, path, offset, length)
            offset += length
    finally:
        os.close(descriptor)


def _next_filled(descriptor: int, offset: int) -> int | None:
    """Where the next byte is that is not in a hole; None if there is none."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except (OSError, AttributeError) as error:  # or the system does not know
        return None if getattr(error, "errno", 0) == errno.ENXIO else offset


def _read_exactly(descriptor: int, path: AnyPath, offset: int, length: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    first = os.read(descriptor, length)
    if len(first) == length:  # as a rule; not copied once more then
        return first
    out = bytearray(first)
    while len(out) < length:
        piece = os.read(descriptor, length - len(out))
        if not piece:
            raise CorruptStoreError(f"{path}: ended early while being read; run verify")
        out += piece
    return bytes(out)


def names(path: AnyPath, *, missing_ok: bool = True) -> list[str]:
    """The names in a directory, ascending; none if there is no directory, if that is ok."""
    try:
        with _listable(path) as place:
            return sorted(os.listdir(place))
    except (FileNotFoundError, NotADirectoryError):
        if missing_ok:
            return []
        raise
    except OSError as error:
        check_limit(error, path)
        raise CorruptStoreError(f"{path}: cannot be listed: {error.strerror}") from error


@contextlib.contextmanager
def _listable(path: AnyPath) -> Iterator[Any]:
    """A directory as `os.listdir` and `os.scandir` take it."""
    if not isinstance(path, HeldPath):
        yield path
        return
    name, folder = at(path)
    try:
        descriptor = os.open(
            name, os.O_RDONLY | platform.DIRECTORY | platform.CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError as error:
        check_there(path, error)
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def walk(path: AnyPath) -> Iterator[tuple[AnyPath, list[str], list[str]]]:
    """(directory, names of directories in it, other names) below a path, contents first."""
    folders: list[str] = []
    others: list[str] = []
    try:
        with _listable(path) as place, os.scandir(place) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    except OSError as error:
        check_limit(error, path)
        return
    for name in folders:
        yield from walk(path / name)
    yield path, folders, others


def check_directories(root: AnyPath, *below: str) -> None:
    """Raise CorruptStoreError if an existing path below a store leads through a link or a file."""
    seen = set()
    start, folder = at(root)
    for path in below:
        here = ""
        for part in path.split("/"):
            here = f"{here}/{part}" if here else part
            if here in seen:
                continue
            seen.add(here)
            try:
                kind = os.stat(f"{start}/{here}", dir_fd=folder, follow_symlinks=False).st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            except PermissionError as error:
                raise CorruptStoreError(
                    f"{root / here}: may not be read: {error.strerror}"
                ) from error
            if not stat.S_ISDIR(kind):
                raise CorruptStoreError(
                    f"{root / here}: expected a directory, found a link or a file; a store holds "
                    f"no links"
                )


def check_rights(root: Path) -> None:
    """Raise StoreNotFoundError if any part of a store may not be read: it would look damaged."""

    def check(path: str) -> None:
        mode = os.R_OK | (os.X_OK if os.path.isdir(path) else 0)
        allowed = os.access(path, mode, effective_ids=_EFFECTIVE)
        if not allowed and os.path.lexists(path):  # else it was evicted
            raise StoreNotFoundError(
                f"{path}: may not be read: {os.strerror(errno.EACCES)}; nothing says that it is "
                f"damaged: get the right to read the whole store first (chmod, chown), and try "
                f"again"
            )

    with contextlib.suppress(ValueError):  # a path that nothing can have: others say so
        check(os.fspath(root))
        for folder, folders, others in os.walk(root):
            for name in (*folders, *others):
                path = os.path.join(folder, name)
                if not os.path.islink(path):
                    check(path)


def identity(path: AnyPath) -> tuple[int, int] | None:
    """Device and inode of what stands at a path, links not followed; None if nothing does."""
    name, folder = at(path)
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        if name_problem(path):
            return None
        raise
    return about.st_dev, about.st_ino


def name_problem(path: AnyPath) -> str:
    """Why nothing can ever stand at a path; empty if something can."""
    name, folder = at(path)
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except ValueError:  # a NUL, or half of a surrogate pair
        return "it has a character that no name can have"
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return "it is longer than the file system takes"
    return ""


def allocated_bytes(root: AnyPath) -> dict[str, int]:
    """Bytes of the blocks allocated to a store, as ``du`` counts them, by directory."""
    out = {}
    for folder, _, others in walk(root):
        size = 0
        for path in (folder / ".", *(folder / name for name in others)):
            with contextlib.suppress(OSError):  # evicted, or renamed, at this moment
                about = path.lstat()
                # Windows has no blocks: whole ones of the length are the next best.
                size += (about.st_blocks if _HAS_BLOCKS else -(-about.st_size // 512)) * 512
        out[str(folder)] = size
    return out
