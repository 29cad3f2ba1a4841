"""Every call that changes the disk: what is written, synced, allocated, named and removed.

Invariant: no other module of the package calls rename, fsync, fallocate or anything like them, so
fault injection has one place.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mmreplay.system import checked_reads, platform
from mmreplay.system.disk_errors import (
    NO_ROOM,
    FailedSyncError,
    opening_to_sync,
    syncing,
    writing,
)
from mmreplay.system.held_directories import AnyPath, HeldPath, at
from mmreplay.system.threads import run_in_threads

_COPY_BYTES = 8 << 20
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE of linux/falloc.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of linux/fs.h: declared with a long, used with an int.
_GET_FLAGS = 2 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 1
_SET_FLAGS = 1 << 30 | struct.calcsize("l") << 16 | ord("f") << 8 | 2
_NO_COPY_ON_WRITE = 0x00800000
_SYNC_RANGE = getattr(platform.LIBC, "sync_file_range", None) if platform.LINUX else None
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of linux/fs.h: begin to write out, and wait for nothing
_LARGE_BYTES = 1 << 18


def write_file(
    path: AnyPath, data: bytes, *, durable: bool = True, overwritten: bool = False
) -> None:
    """Write another file, fsync it, rename it over `path`, fsync the directory.

    `durable=False` leaves out the fsyncs: for notes such as who holds a lock, and for what the
    caller syncs later. `overwritten` says that its bytes will be changed in place, as those of
    `allocate` are. DiskFullError: the partial file is gone again, `path` is as it was.
    """
    staged = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with writing(f"writing {path.name}", path):
        try:
            descriptor = _open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                if overwritten:
                    _keep_in_place(descriptor)
                _write_all(descriptor, data)
                if durable:
                    _fsync(descriptor)
                else:
                    _begin_write_out(descriptor, len(data))
            finally:
                os.close(descriptor)
            _replace(staged, path)
        except BaseException:
            with contextlib.suppress(OSError):
                _unlink(staged)
            raise
        if durable:
            sync_directory(path.parent)


def write_new(path: AnyPath, data: bytes) -> None:
    """Write a file of a directory that nobody knows yet; see `sync_tree`."""
    write_pieces(path, len(data), [(0, data)])


def write_pieces(
    path: AnyPath, size: int, pieces: Iterable[tuple[int, bytes]], *, overwritten: bool = False
) -> None:
    """As `write_new`, of ascending (offset, bytes), with holes where none of them stands.

    `overwritten` as of `write_file`.
    """
    with writing(f"writing {path.name}", path):
        descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            if overwritten:
                _keep_in_place(descriptor)
            end = 0
            for offset, data in pieces:
                os.lseek(descriptor, offset, os.SEEK_SET)
                _write_all(descriptor, data)
                end = offset + len(data)
            if end < size:
                os.lseek(descriptor, size - 1, os.SEEK_SET)
                _write_all(descriptor, b"\0")
            _begin_write_out(descriptor, size)
        finally:
            os.close(descriptor)


def _begin_write_out(descriptor: int, size: int) -> None:
    """Have a large file written out while others are written: a later fsync waits for less."""
    if size >= _LARGE_BYTES and _SYNC_RANGE is not None:
        _SYNC_RANGE(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _WRITE)


def _open(path: AnyPath, flags: int) -> int:
    name, folder = at(path)
    flags |= platform.BINARY | platform.CLOEXEC | platform.NOFOLLOW
    return os.open(name, flags, 0o666, dir_fd=folder)


def _replace(path: AnyPath, target: AnyPath) -> None:
    (old, there), (new, here) = at(path), at(target)
    os.replace(old, new, src_dir_fd=there, dst_dir_fd=here)


def _rename(path: AnyPath, target: AnyPath) -> None:
    (old, there), (new, here) = at(path), at(target)
    os.rename(old, new, src_dir_fd=there, dst_dir_fd=here)


def _unlink(path: AnyPath) -> None:
    name, folder = at(path)
    os.unlink(name, dir_fd=folder)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_at(path: AnyPath, offset: int, data: bytes) -> None:
    """Overwrite bytes of an existing file in place and make them durable; see `make_own`."""
    with writing("writing in place", path):
        make_own(path)
        descriptor = _open(path, os.O_WRONLY)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            _write_all(descriptor, data)
            with syncing(path):
                _fdatasync(descriptor)
        finally:
            os.close(descriptor)


def allocate(path: AnyPath, size: int) -> None:
    """Make sure that a file of `size` bytes exists, with all its blocks, zeros where it was not.

    A store into a map of a sparse file on a full disk is SIGBUS; with its blocks allocated, never.
    One that is there may be written in place then; see `make_own`. DiskFullError: a file that was
    made by this call is gone again.
    """
    with writing(f"allocating {size:,} bytes", path):
        new = not path.exists()
        if not new:
            make_own(path)
        descriptor = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            if new:
                _keep_in_place(descriptor)
            _fallocate(descriptor, size)
        except BaseException:
            if new:
                with contextlib.suppress(OSError):
                    _unlink(path)
            raise
        finally:
            os.close(descriptor)


def _keep_in_place(descriptor: int) -> None:
    """Ask btrfs to overwrite the blocks of a file that is still empty, instead of moving them.

    Copy-on-write needs room for every page that is changed once more, so allocated blocks are no
    guard against SIGBUS there. Other file systems refuse, and lose nothing by it.
    """
    if not platform.LINUX or platform.fcntl is None:
        return
    with contextlib.suppress(OSError):
        flags = struct.unpack("i", platform.fcntl.ioctl(descriptor, _GET_FLAGS, bytes(4)))[0]
        platform.fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _NO_COPY_ON_WRITE))


def _fallocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    have = os.fstat(descriptor).st_size
    os.lseek(descriptor, have, os.SEEK_SET)
    _write_all(descriptor, bytes(max(size - have, 0)))


def zero_ranges(path: AnyPath, ranges: Iterable[tuple[int, int]]) -> None:
    """Zero (offset, length) of a file and give the blocks back; its length stays.

    See `make_own`.
    """
    with writing("giving back unused space", path):
        make_own(path)
        descriptor = _open(path, os.O_RDWR)
        try:
            for offset, length in ranges:
                if length > 0 and not _punch_hole(descriptor, offset, length):
                    os.lseek(descriptor, offset, os.SEEK_SET)
                    _write_all(descriptor, bytes(length))
            with syncing(path):
                _fdatasync(descriptor)
        finally:
            os.close(descriptor)


def _punch_hole(descriptor: int, offset: int, length: int) -> bool:
    return _call_fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length)


def _call_fallocate(descriptor: int, mode: int, offset: int, length: int) -> bool:
    if not platform.LINUX or platform.LIBC is None:
        return False
    call = platform.LIBC.fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return bool(call(descriptor, mode, offset, length) == 0)


def allocate_beyond(path: AnyPath, size: int, *, durable: bool = True) -> None:
    """Allocate `size` bytes past the end of a file, whose length stays, where the system can.

    Whoever truncates the file, as most programs do that copy another over it, gives them back:
    its blocks tell then that it is not what it was.
    """
    with writing("allocating beyond the end", path):
        descriptor = _open(path, os.O_RDWR)
        try:
            _call_fallocate(descriptor, _KEEP_SIZE, os.fstat(descriptor).st_size, size)
            if durable:
                _fsync(descriptor)
        finally:
            os.close(descriptor)


def make_own(path: AnyPath, prepare: Callable[[AnyPath], None] | None = None) -> None:
    """Replace a file that has several names by a copy of its own, durably.

    Copies made of hard links (``cp -al``) share what is written in place otherwise. A file of one
    name stays as it is. `prepare` is called with the copy before it takes the name.
    """
    if path.lstat().st_nlink == 1:
        return
    staged = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    copy_file(path, staged)
    if prepare is not None:
        prepare(staged)
    rename(staged, path)
    sync_directory(path.parent)


def unlink(path: AnyPath) -> None:
    """Remove a file; one that is gone already is fine."""
    with writing("removing a file", path), contextlib.suppress(FileNotFoundError):
        _unlink(path)


def share_file(source: AnyPath, target: AnyPath, size: int | None = None) -> bool:
    """Give a file that will not change any more a second name; where links are impossible, copy it.

    True if both names are of one file now. Raises CorruptStoreError unless it has `size` bytes.
    """
    descriptor = checked_reads.open_regular(source, os.O_RDONLY)
    try:
        found = os.fstat(descriptor).st_size
        checked_reads.check_size(source, found, found if size is None else size)
        try:
            (old, there), (new, here) = at(source), at(target)
            os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EEXIST):
                raise
            if error.errno in NO_ROOM:
                with writing("linking", target):
                    raise
        else:
            return True
        _copy_from(descriptor, target)
        return False
    finally:
        os.close(descriptor)


def copy_file(source: AnyPath, target: AnyPath) -> None:
    """Copy a regular file whose bytes may change, those of the source and those of the copy."""
    descriptor = checked_reads.open_regular(source, os.O_RDONLY)
    try:
        _copy_from(descriptor, target, overwritten=True)
    finally:
        os.close(descriptor)


def _copy_from(source: int, target: AnyPath, *, overwritten: bool = False) -> None:
    with writing(f"copying {target.name}", target):
        descriptor = _open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            if overwritten:
                _keep_in_place(descriptor)
            while piece := os.read(source, _COPY_BYTES):
                _write_all(descriptor, piece)
            _fsync(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                _unlink(target)
            raise
        finally:
            os.close(descriptor)


def sync_file(path: AnyPath, *, missing_ok: bool = False) -> None:
    """Make a file's bytes durable, dirty pages of every map of it included.

    A FailedSyncError must never be retried: see `syncing`. Any other FailedStoreError: it cannot be
    opened, so that nothing was tried.
    """
    with opening_to_sync(path):
        try:
            descriptor = _open(path, os.O_RDWR)
        except FileNotFoundError:
            if missing_ok:
                return
            raise
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            # An archive, or a disk, that was made read-only; Linux syncs it all the same.
            descriptor = _open(path, os.O_RDONLY)
    with syncing(path):
        try:
            _fdatasync(descriptor)
        finally:
            os.close(descriptor)


def sync_directory(path: AnyPath) -> None:
    """Make the names in a directory durable."""
    if sys.platform == "win32":  # directories cannot be opened there
        return
    with opening_to_sync(path):
        name, folder = at(path)
        descriptor = os.open(name, os.O_RDONLY | platform.CLOEXEC, dir_fd=folder)
    with syncing(path):
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_name(path: AnyPath) -> None:
    """Make the name of a directory durable: the process that made it may have died before that.

    A process that may not read the directory above has made nothing there.
    """
    above = (path if isinstance(path, HeldPath) else path.absolute()).parent
    name, folder = at(above)
    if os.access(name, os.R_OK, dir_fd=folder):
        sync_directory(above)


def _fsync(descriptor: int) -> None:
    if (
        sys.platform == "darwin" and platform.fcntl is not None
    ):  # fsync does not reach the medium there
        platform.fcntl.fcntl(descriptor, platform.fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _fdatasync(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        _fsync(descriptor)


def make_directory(path: AnyPath) -> None:
    """Make a directory, and those above it; their names become durable with the caller's sync."""
    with writing("making a directory", path):
        _make_directory(path)


def _make_directory(path: AnyPath) -> None:
    name, folder = at(path)
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        if not path.is_dir():
            raise
    except FileNotFoundError:
        if path.parent.is_dir():  # a held directory that was removed
            raise
        _make_directory(path.parent)
        os.mkdir(name, dir_fd=folder)


def replace_directory(built: AnyPath, path: AnyPath) -> bool:
    """Give a directory that was built elsewhere its name.

    False when something stands there already, but an empty directory, which is replaced; `built` is
    then left as it is.
    """
    try:
        _rename(built, path)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EACCES):
            return False
        with writing("renaming", path):
            raise
    sync_directory(path.parent)
    return True


def rename(path: AnyPath, target: AnyPath) -> None:
    """Give a file or directory another name, at once; the caller syncs the directory above."""
    with writing("renaming", path):
        _rename(path, target)


def exchange(first: AnyPath, second: AnyPath) -> bool:
    """Exchange the names of two directories, never without either; False if the system cannot."""
    if not platform.LINUX or platform.LIBC is None or not hasattr(platform.LIBC, "renameat2"):
        return False
    places = [
        part
        for name, folder in (at(first), at(second))
        for part in (_AT_FDCWD if folder is None else folder, os.fsencode(name))
    ]
    with writing("exchanging", first):
        if platform.LIBC.renameat2(*places, _RENAME_EXCHANGE) == 0:
            return True
        number = ctypes.get_errno()
        if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
            return False  # an old kernel, or a file system that has no such thing
        raise OSError(number, os.strerror(number))


def sync_tree(path: AnyPath) -> None:
    """Make every file and every name below a directory durable."""
    files: list[AnyPath] = []
    folders: list[AnyPath] = []
    for folder, _, names in checked_reads.walk(path):
        files += (folder / name for name in names)
        folders.append(folder)
    sync_all(files, folders)


def sync_all(files: Iterable[AnyPath] = (), directories: Iterable[AnyPath] = ()) -> None:
    """`sync_file` and `sync_directory` of each, many at once.

    The journal that is written for one of them takes the others along. Each is tried;
    FailedSyncError, if any raised that, rather than another error.
    """
    calls: list[Callable[[], None]] = []
    calls += (functools.partial(sync_file, path) for path in files)
    calls += (functools.partial(sync_directory, path) for path in directories)
    _run_all(calls)


def write_files(files: Mapping[AnyPath, bytes]) -> None:
    """`write_file` of each, many at once; each is tried."""
    _run_all([functools.partial(write_file, path, data) for path, data in files.items()])


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    _, failures = run_in_threads(lambda call: call(), calls)
    for error in sorted(failures, key=lambda one: not isinstance(one, FailedSyncError)):
        raise error


def remove_tree(path: AnyPath) -> None:
    """Remove a directory of ours and all in it; no link is followed, nor is `path` if it is one."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        unlink(path)
        return
    for folder, _, names in checked_reads.walk(path):
        for name in names:
            unlink(folder / name)
        _remove_directory(folder)
    _remove_directory(path)  # one that cannot be listed says so here


def temporary_directory(prefix: str) -> Path:
    """A new directory that nobody else can read, in the folder of Python's `tempfile`."""
    import tempfile  # noqa: PLC0415 (needed by few)

    with writing("making a temporary directory", Path(tempfile.gettempdir())):
        return Path(tempfile.mkdtemp(prefix=prefix))


def _remove_directory(path: AnyPath) -> None:
    with writing("removing a directory", path), contextlib.suppress(FileNotFoundError):
        name, folder = at(path)
        os.rmdir(name, dir_fd=folder)
