"""Every call that reaches the disk for writing, locks or maps: fault injection has one place.

Invariant: no other module of the package calls rename, fsync, flock, fallocate, mmap or madvise.
Linux and macOS get the real thing; elsewhere plain fallbacks still import and read closed stores.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import platform
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    LockedError,
)

try:
    import fcntl
except ImportError:  # Windows has no flock; writing there is refused, reading is not
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "GRANULARITY",
    "DirectoryLock",
    "Map",
    "Reservation",
    "advise_random",
    "allocate",
    "allocated_bytes",
    "boot_id",
    "check_directories",
    "copy_file",
    "exchange",
    "holder",
    "identity",
    "is_locked",
    "make_directory",
    "map_file",
    "names",
    "populate",
    "populate_read",
    "publish",
    "read_at",
    "read_bytes",
    "read_filled",
    "read_pieces",
    "regular_size",
    "remove_tree",
    "rename",
    "replace_directory",
    "resident",
    "share_file",
    "sync_directory",
    "sync_file",
    "sync_name",
    "sync_tree",
    "temporary_directory",
    "unlink",
    "write_at",
    "write_file",
    "writing",
    "zero_from",
]

_PIECE_BYTES = 1 << 20
GRANULARITY = mmap.ALLOCATIONGRANULARITY
"""Bytes that the start of a map must be a multiple of: 4 KiB on x86 Linux, 64 KiB on Windows."""

_LINUX = sys.platform == "linux"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_COPY_BYTES = 8 << 20
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: declared with a long, used with an int.
_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_SET_FLAGS = 1 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 2
_NO_COPY_ON_WRITE = 0x00800000


# ---------------------------------------------------------------- errors of the disk


@contextlib.contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn OSErrors of a write into the errors of this package.

    Raises:
        DiskFullError: ENOSPC or EDQUOT.
        FailedStoreError: any other OSError; never to be retried, see fsync.
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise DiskFullError(
                f"{path}: no room on the disk for {what}; nothing was changed: "
                f"make room and call again"
            ) from error
        raise FailedStoreError(
            f"{path}: {what} failed: {error.strerror or error}; what is committed stays readable: "
            f"check the disk and open the store again"
        ) from error


@contextlib.contextmanager
def syncing(path: Path) -> Iterator[None]:
    """Turn every OSError of an fsync into FailedStoreError, a full disk too.

    After a failed fsync the kernel may take the pages for clean: a second one would say that all
    is well. So there is nothing to try again.

    Raises:
        FailedStoreError: any OSError.
    """
    try:
        yield
    except OSError as error:
        raise FailedStoreError(
            f"{path}: fsync failed: {error.strerror or error}; what is committed stays readable: "
            f"check the disk and open the store again"
        ) from error


# ---------------------------------------------------------------- whole files


def read_bytes(path: Path, limit: int) -> bytes:
    """A regular file whole, without following a link or hanging on a pipe.

    Raises:
        FileNotFoundError: there is none.
        CorruptStoreError: not a regular file, or more than `limit` bytes.
    """
    descriptor = _open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise CorruptStoreError(f"{path}: expected at most {limit:,} bytes, found {size:,}")
        out = bytearray()
        while len(out) < size and (piece := os.read(descriptor, size - len(out))):
            out += piece
        return bytes(out)
    finally:
        os.close(descriptor)


def regular_size(path: Path, limit: int) -> int:
    """The size of a regular file.

    Raises:
        FileNotFoundError: there is none.
        CorruptStoreError: not a regular file, or more than `limit` bytes.
    """
    descriptor = _open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if size > limit:
        raise CorruptStoreError(f"{path}: expected at most {limit:,} bytes, found {size:,}")
    return size


def read_at(path: Path, offset: int, length: int, size: int) -> bytes:
    """`length` bytes from `offset` of a file that must have `size` bytes."""
    descriptor = _open_regular(path, os.O_RDONLY)
    try:
        _check_size(path, os.fstat(descriptor).st_size, size)
        return _read_exactly(descriptor, path, offset, length)
    finally:
        os.close(descriptor)


def read_filled(path: Path, size: int, piece_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of a file that must have `size` bytes, in pieces, without its holes.

    Args:
        path: a regular file.
        size: in bytes that it must have.
        piece_bytes: of every piece but the last; offsets are multiples of it. What is left out is
            zeros, and takes no time: a file may seem to have any size, and have no blocks at all.
    """
    descriptor = _open_regular(path, os.O_RDONLY)
    try:
        _check_size(path, os.fstat(descriptor).st_size, size)
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
    """Where the next byte is that lies in no hole; None if all of the rest is one."""
    if not hasattr(os, "SEEK_DATA"):
        return offset
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        return offset  # a file system that does not know


def _read_exactly(descriptor: int, path: Path, offset: int, length: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    out = bytearray()
    while len(out) < length:
        piece = os.read(descriptor, length - len(out))
        if not piece:
            raise CorruptStoreError(f"{path}: ended early while being read; run verify")
        out += piece
    return bytes(out)


def read_pieces(path: Path, size: int, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
    """A file that must have `size` bytes, in pieces of `piece_bytes`, without mapping it."""
    descriptor = _open_regular(path, os.O_RDONLY)
    try:
        _check_size(path, os.fstat(descriptor).st_size, size)
        for offset in range(0, size, piece_bytes):
            yield _read_exactly(descriptor, path, offset, min(piece_bytes, size - offset))
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes, *, durable: bool = True, overwritten: bool = False) -> None:
    """Write beside, fsync, rename over `path`, fsync the directory.

    Args:
        path: where the file shall stand; an older one is replaced.
        data: all its bytes.
        durable: False leaves out the fsyncs: for litter such as who holds a lock.
        overwritten: whether its bytes will be changed in place, as those of `allocate` are.

    Raises:
        DiskFullError: no room; the partial file is gone again, `path` is as it was.
        FailedStoreError: the write or fsync failed.
    """
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with writing(f"writing {path.name}", path):
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
            try:
                if overwritten:
                    _keep_in_place(descriptor)
                _write_all(descriptor, data)
                if durable:
                    _fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(beside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        if durable:
            sync_directory(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of an existing file in place and make them durable.

    Raises:
        DiskFullError, FailedStoreError: the write or fsync failed.
    """
    with writing("writing in place", path):
        descriptor = os.open(path, os.O_WRONLY | _BINARY | _CLOEXEC | _NOFOLLOW)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            _write_all(descriptor, data)
            with syncing(path):
                _fdatasync(descriptor)
        finally:
            os.close(descriptor)


def allocate(path: Path, size: int) -> None:
    """Make sure that a file of `size` bytes exists, with all its blocks, zeros where it was not.

    A store into a map of a sparse file on a full disk is SIGBUS; with its blocks allocated, never.

    Raises:
        DiskFullError: no room; a file that was made by this call is gone again.
    """
    with writing(f"allocating {size:,} bytes", path):
        new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY | _CLOEXEC | _NOFOLLOW, 0o666)
        try:
            if new:
                _keep_in_place(descriptor)
            _fallocate(descriptor, size)
        except BaseException:
            if new:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            raise
        finally:
            os.close(descriptor)


def _keep_in_place(descriptor: int) -> None:
    """Ask btrfs to overwrite the blocks of a file that is still empty, instead of moving them.

    Copy-on-write needs room for every page that is changed once more, so allocated blocks are no
    guard against SIGBUS there. Other file systems refuse, and lose nothing by it.
    """
    if not _LINUX or fcntl is None:
        return
    with contextlib.suppress(OSError):
        flags = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(4)))[0]
        fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _NO_COPY_ON_WRITE))


def _fallocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    have = os.fstat(descriptor).st_size
    os.lseek(descriptor, have, os.SEEK_SET)
    _write_all(descriptor, bytes(max(size - have, 0)))


def zero_from(path: Path, offset: int) -> None:
    """Zero a file from `offset` to its end and give the blocks back; its length stays."""
    with writing("giving back unused space", path):
        descriptor = os.open(path, os.O_RDWR | _BINARY | _CLOEXEC | _NOFOLLOW)
        try:
            length = os.fstat(descriptor).st_size - offset
            if length > 0 and not _punch_hole(descriptor, offset, length):
                os.lseek(descriptor, offset, os.SEEK_SET)
                _write_all(descriptor, bytes(length))
            with syncing(path):
                _fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _punch_hole(descriptor: int, offset: int, length: int) -> bool:
    if not _LINUX or _LIBC is None:
        return False
    keep_size_and_punch = 0x01 | 0x02
    call = _LIBC.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(call(descriptor, keep_size_and_punch, offset, length) == 0)


def unlink(path: Path) -> None:
    """Remove a file; one that is gone already is fine."""
    with writing("removing a file", path), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def share_file(source: Path, target: Path, size: int | None = None) -> bool:
    """Give a file that nobody will change any more a second name; where that cannot be, copy it.

    Args:
        source: a regular file.
        target: does not exist yet.
        size: in bytes that it must have, if given.

    Returns:
        whether both names are of one file now.

    Raises:
        FileNotFoundError: there is no source.
        CorruptStoreError: another size, or no regular file.
        DiskFullError: no room for a copy.
    """
    descriptor = _open_regular(source, os.O_RDONLY)
    try:
        found = os.fstat(descriptor).st_size
        _check_size(source, found, found if size is None else size)
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EEXIST):
                raise
            if error.errno in _NO_ROOM:
                with writing("linking", target):
                    raise
        else:
            return True
        _copy_from(descriptor, target)
        return False
    finally:
        os.close(descriptor)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file whose bytes may change, those of the source and those of the copy.

    Raises:
        FileNotFoundError: there is no source.
        CorruptStoreError: no regular file.
        DiskFullError: no room; nothing is left behind.
    """
    descriptor = _open_regular(source, os.O_RDONLY)
    try:
        _copy_from(descriptor, target, overwritten=True)
    finally:
        os.close(descriptor)


def _copy_from(source: int, target: Path, *, overwritten: bool = False) -> None:
    with writing(f"copying {target.name}", target):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        try:
            if overwritten:
                _keep_in_place(descriptor)
            while piece := os.read(source, _COPY_BYTES):
                _write_all(descriptor, piece)
            _fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(target)
            raise
        finally:
            os.close(descriptor)


# ---------------------------------------------------------------- durability


def sync_file(path: Path, *, missing_ok: bool = False) -> None:
    """Make a file's bytes durable, dirty pages of every map of it included.

    Raises:
        FailedStoreError: the fsync failed. It must never be retried: the kernel may have marked
            the pages clean, and a second call would say that all is well.
    """
    with syncing(path):
        try:
            descriptor = os.open(path, os.O_RDWR | _BINARY | _CLOEXEC | _NOFOLLOW)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        except PermissionError:  # an archive that was made read-only; Linux syncs it all the same
            descriptor = os.open(path, os.O_RDONLY | _BINARY | _CLOEXEC | _NOFOLLOW)
        try:
            _fdatasync(descriptor)
        finally:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    if sys.platform == "win32":  # directories cannot be opened there
        return
    with syncing(path):
        descriptor = os.open(path, os.O_RDONLY | _CLOEXEC)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_name(path: Path) -> None:
    """Make the name of a directory durable, whose maker may have died before it was.

    Who may not read the directory above has not made anything there.
    """
    above = path.absolute().parent
    if os.access(above, os.R_OK):
        sync_directory(above)


def _fsync(descriptor: int) -> None:
    if sys.platform == "darwin" and fcntl is not None:  # fsync does not reach the medium there
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _fdatasync(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        _fsync(descriptor)


def _make_publish() -> Callable[[], None] | None:
    """A memory barrier between the values of a row and the word that commits it.

    x86 keeps stores in order. Elsewhere the release of a lock orders them.
    """
    if platform.machine().lower() in ("x86_64", "amd64", "i686", "i386"):
        return None
    lock = threading.Lock()

    def barrier() -> None:
        with lock:
            pass

    return barrier


publish = _make_publish()


# ---------------------------------------------------------------- directories


def make_directory(path: Path) -> None:
    """Make a directory, and those above it; their names become durable with the caller's sync."""
    with writing("making a directory", path):
        os.makedirs(path, exist_ok=True)


def check_directories(root: Path, *below: str) -> None:
    """Make sure that paths below a store are directories of its own, and no links out of it.

    Raises:
        CorruptStoreError: one is a link, or no directory. One that is missing is not looked into.
    """
    seen = set()
    for path in below:
        here = os.fspath(root)
        for part in path.split("/"):
            here = os.path.join(here, part)
            if here in seen:
                continue
            seen.add(here)
            try:
                kind = os.lstat(here).st_mode
            except (FileNotFoundError, NotADirectoryError):
                break
            if not stat.S_ISDIR(kind):
                raise CorruptStoreError(
                    f"{here}: expected a directory, found a link or a file; a store holds no links"
                )


def names(path: Path) -> list[str]:
    """The names in a directory, ascending; none if it is not there, or none.

    Raises:
        CorruptStoreError: it may not be read.
    """
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CorruptStoreError(f"{path}: cannot be listed: {error.strerror}") from error


def replace_directory(built: Path, path: Path) -> bool:
    """Give a directory that was built elsewhere its name.

    Returns:
        False when something stands there already, but an empty directory, which is replaced;
        `built` is then left as it is.
    """
    try:
        os.rename(built, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EACCES):
            return False
        with writing("renaming", path):
            raise
    sync_directory(path.parent)
    return True


def rename(path: Path, target: Path) -> None:
    """Give a file or directory another name, at once; the caller syncs the directory above."""
    with writing("renaming", path):
        os.rename(path, target)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two directories, so that there is no moment without either.

    Returns:
        False where the system cannot; nothing was changed then.
    """
    if not _LINUX or _LIBC is None or not hasattr(_LIBC, "renameat2"):
        return False
    paths = os.fsencode(one), os.fsencode(other)
    with writing("exchanging", one):
        if _LIBC.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0:
            return True
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
            return False  # an old kernel, or a file system that has no such thing
        raise OSError(number, os.strerror(number))


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of what stands at a path, links not followed; None if nothing does."""
    try:
        about = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return about.st_dev, about.st_ino


def sync_tree(path: Path) -> None:
    """Make every file and every name below a directory durable."""
    for folder, _, names in os.walk(path):
        for name in names:
            sync_file(Path(folder, name))
        sync_directory(Path(folder))


def remove_tree(path: Path) -> None:
    """Remove a directory of ours and all in it; no link is followed, nor is `path` if it is one."""
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        unlink(path)
        return
    for folder, folders, names in os.walk(path, topdown=False):
        for name in names:
            unlink(Path(folder, name))
        for name in folders:
            if os.path.islink(Path(folder, name)):
                unlink(Path(folder, name))
                continue
            _remove_directory(Path(folder, name))
    _remove_directory(path)


def temporary_directory() -> Path:
    """A new directory that nobody else can read, in the folder of Python's `tempfile`."""
    import tempfile  # noqa: PLC0415 (needed by few)

    with writing("making a temporary directory", Path(tempfile.gettempdir())):
        return Path(tempfile.mkdtemp(prefix="mmreplay-"))


def _remove_directory(path: Path) -> None:
    with writing("removing a directory", path), contextlib.suppress(FileNotFoundError):
        os.rmdir(path)


def allocated_bytes(root: Path) -> dict[str, int]:
    """Bytes of the blocks allocated to a store, as ``du`` counts them.

    Returns:
        for each directory its own blocks and those of the files in it, not of what is further
        down; the sum is what the store takes.
    """
    out: dict[str, int] = {}
    for folder, _, names in os.walk(root):
        out[folder] = _blocks(folder) + sum(_blocks(os.path.join(folder, name)) for name in names)
    return out


def _blocks(path: str) -> int:
    try:
        about = os.lstat(path)
    except OSError:  # evicted, or renamed, at this moment
        return 0
    # Windows has no st_blocks; the length is the next best thing.
    return getattr(about, "st_blocks", -(-about.st_size // 512)) * 512


# ---------------------------------------------------------------- maps


def _libc() -> ctypes.CDLL | None:
    if os.name != "posix":
        return None
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int64,
        ]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return libc


_LIBC = _libc()
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_MAP_FIXED = 0x10
_MAP_ANON = 0x20 if _LINUX else 0x1000
_MAP_NORESERVE = 0x4000 if _LINUX else 0x40
_MADV_RANDOM = 1
_MADV_WILLNEED = 3
_MADV_POPULATE_READ = 22 if _LINUX else _MADV_WILLNEED
_MADV_POPULATE_WRITE = 23 if _LINUX else _MADV_WILLNEED
_MAP_FAILED = ctypes.c_void_p(-1).value


def _mmap(address: int, length: int, prot: int, flags: int, descriptor: int) -> int:
    if _LIBC is None:
        raise OSError(errno.ENOSYS, "no mmap in the C library")
    out = _LIBC.mmap(address or None, length, prot, flags, descriptor, 0)
    if out == _MAP_FAILED or out is None:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(out)


class Map:
    """A file's bytes as a numpy array that keeps no descriptor.

    Python's own mmap keeps one for each map, which ends thousands of maps at the limit of open
    files. The map lives as long as an array over it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_release")

    def __init__(self, address: int, length: int, *, writable: bool) -> None:
        """Own the map at `address`."""
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, not writable),
        }
        libc = _LIBC
        self._release: Callable[[], Any] = lambda: libc.munmap(address, length) if libc else None

    def __del__(self) -> None:
        """Unmap."""
        self._release()


def map_file(
    path: Path, size: int | None = None, *, writable: bool = False
) -> npt.NDArray[np.uint8]:
    """Map a whole file; one that must have exactly `size` bytes, if given.

    Returns:
        uint8 array (size,). The file stays mapped as long as the array, or a view of it, lives.

    Raises:
        FileNotFoundError: there is none.
        CorruptStoreError: another size (a short map would end in SIGBUS), or no regular file.
    """
    descriptor = _open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        found = os.fstat(descriptor).st_size
        _check_size(path, found, found or 1 if size is None else size)
        size = found
        if _LIBC is None:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return np.frombuffer(mmap.mmap(descriptor, size, access=access), np.uint8)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _mmap(0, size, prot, mmap.MAP_SHARED, descriptor)
        return np.asarray(Map(address, size, writable=writable))
    finally:
        os.close(descriptor)


class Reservation:
    """A range of addresses in which files are mapped side by side.

    MAP_FIXED replaces whatever lies at its address, so it is only ever used inside a range that
    was reserved here.

    Raises:
        OSError: no such range to be had; the caller maps the files one by one then.
    """

    def __init__(self, size: int, *, writable: bool = False) -> None:
        """Reserve `size` bytes of addresses; no memory."""
        self.size = size
        self._prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # Readable, so that a row nobody mapped reads as zeros and not as a dead process.
        flags = mmap.MAP_PRIVATE | _MAP_ANON | _MAP_NORESERVE
        self._address = _mmap(0, size, self._prot, flags, -1)
        self.array: npt.NDArray[np.uint8] = np.asarray(Map(self._address, size, writable=writable))

    def put(self, offset: int, path: Path, size: int) -> None:
        """Map a file of exactly `size` bytes at `offset`, a multiple of `GRANULARITY`."""
        if offset % GRANULARITY or offset < 0 or offset + size > self.size:
            raise ValueError("outside the reservation")
        writable = self._prot & mmap.PROT_WRITE
        descriptor = _open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            _check_size(path, os.fstat(descriptor).st_size, size)
            flags = mmap.MAP_SHARED | _MAP_FIXED
            _mmap(self._address + offset, size, self._prot, flags, descriptor)
        finally:
            os.close(descriptor)


def advise_random(array: npt.NDArray[Any]) -> None:
    """Tell the kernel not to read ahead: sampled rows have no neighbours."""
    _advise(array.ctypes.data, array.nbytes, _MADV_RANDOM)


def populate(array: npt.NDArray[Any]) -> None:
    """Give every page of a map its memory now, in one call, and not one fault at a time later.

    Where the kernel cannot (Linux before 5.14, other systems), nothing happens.
    """
    _advise(array.ctypes.data, array.nbytes, _MADV_POPULATE_WRITE)


def populate_read(array: npt.NDArray[Any]) -> None:
    """Fill the page tables of a map, whose pages are in memory, in one call."""
    _advise(array.ctypes.data, array.nbytes, _MADV_POPULATE_READ)


def resident(array: npt.NDArray[Any]) -> float:
    """Which part of a map's pages is in memory, in [0, 1]; 0 where the system does not tell."""
    start = array.ctypes.data
    first = start - start % mmap.PAGESIZE
    length = array.nbytes + start - first
    pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
    if _LIBC is None or _LIBC.mincore(first, length, pages.ctypes.data) != 0:
        return 0.0
    return float((pages & 1).mean())


def advise_needed(array: npt.NDArray[Any], ranges: list[tuple[int, int]]) -> None:
    """Ask for (start, length) in bytes of a map before they are read, all of them at once."""
    address = array.ctypes.data
    for start, length in ranges:
        _advise(address + start, length, _MADV_WILLNEED)


def _advise(address: int, length: int, advice: int) -> None:
    if _LIBC is not None:
        start = address - address % mmap.PAGESIZE
        _LIBC.madvise(start, length + address - start, advice)


def _open_regular(path: Path, flags: int) -> int:
    """Open without following a link at the end of the path, without hanging on a pipe."""
    try:
        descriptor = os.open(path, flags | _NOFOLLOW | _NONBLOCK | _CLOEXEC | _BINARY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise CorruptStoreError(
                f"{path}: expected a regular file, found a link, a directory or a device; "
                f"a store holds none"
            ) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptStoreError(f"{path}: expected a regular file, found something else")
    return descriptor


def _check_size(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise CorruptStoreError(
            f"{path}: expected {expected:,} bytes, found {found:,}: the file was cut or replaced; "
            f"run `mmreplay verify`"
        )


# ---------------------------------------------------------------- locks and machines


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """An exclusive flock on a directory itself: a lock file that gets unlinked lets two in.

    Raises:
        LockedError: another process, or another writer of this one, holds it.
    """

    def __init__(self, path: Path, *, patience_s: float = 0.5, who: Callable[[], str]) -> None:
        """Lock `path`; `who` names the holder for the message."""
        self._descriptor = -1
        if fcntl is None:
            raise FailedStoreError(
                f"{path}: this system has no flock, so nothing can be written here; "
                f"closed stores can be read"
            )
        self.path = path.absolute()
        self._descriptor = os.open(path, os.O_RDONLY | _CLOEXEC)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at(path):
                    break
                # Another directory has the name by now, as after a repair: that is the one to lock.
                self.release()
                self._descriptor = os.open(path, os.O_RDONLY | _CLOEXEC)
                continue
            except FileNotFoundError as error:
                self.release()
                raise LockedError(
                    f"{path}: renamed or removed while its lock was waited for{who()}; try again"
                ) from error
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    self.release()
                    with writing("flock", path):
                        raise
                if time.monotonic() > deadline:
                    self.release()
                    if any(one.path == self.path and one.is_held for one in _HELD):
                        raise LockedError(
                            f"{path}: open for writing already, in this process{who()}; close "
                            f"that writer or buffer first"
                        ) from error
                    raise LockedError(
                        f"{path}: another writer holds this lane{who()}; "
                        f"end it; to write beside it, write a lane of your own (lane=...)"
                    ) from error
                time.sleep(0.01)
        _HELD.add(self)

    @property
    def is_held(self) -> bool:
        """Whether it was not released."""
        return self._descriptor >= 0

    def _is_at(self, path: Path) -> bool:
        about, now = os.fstat(self._descriptor), os.stat(path)
        return (about.st_dev, about.st_ino) == (now.st_dev, now.st_ino)

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        """A writer that was dropped without close does not keep others out."""
        self.release()


def is_locked(path: Path) -> bool:
    """Whether a writer is at work on this lane now. Takes the lock for an instant to see."""
    if fcntl is None:
        return False
    descriptor = os.open(path, os.O_RDONLY | _CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def _release_in_child() -> None:
    # A child that outlives its parent would hold the parent's lock through the shared description.
    for lock in list(_HELD):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def holder() -> bytes:
    """Who this process is, for the message that a second writer gets."""
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%F %T")}
    return json.dumps(about).encode()


def boot_id() -> bytes:
    """16 bytes that change with every start of the operating system.

    Where there is no such thing, they are of this process alone: then nothing volatile is ever
    trusted, and recovery falls back on the checkpoint.
    """
    try:
        if _LINUX:
            text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
            return uuid.UUID(text.strip()).bytes
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            run = subprocess.run(command, capture_output=True, check=True, text=True)  # noqa: S603
            text = run.stdout
            return uuid.UUID(text.strip()).bytes
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return _PROCESS_ID


_PROCESS_ID = uuid.uuid4().bytes
