"""Every system call that changes a store: write, sync, allocate, name and remove.

Invariant: no other module makes such a call on a store (stores into maps are not calls; `platform`
only wraps those of Linux), so fault injection has one place.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mmreplay.errors import CorruptStoreError
from mmreplay.system import checked_reads, platform
from mmreplay.system.disk_errors import NO_ROOM, FailedSyncError, syncing, writing
from mmreplay.system.held_directories import AnyPath, HeldPath, at, shown
from mmreplay.system.threads import run_all

_COPY_BYTES = 8 << 20
_LARGE_BYTES = 1 << 18
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_file(
    path: AnyPath, data: bytes, *, durable: bool = True, overwritten: bool = False
) -> None:
    """Write another file, fsync it, rename it over `path`, fsync the directory.

    `durable=False` leaves out the fsyncs. `overwritten`: its bytes will be changed in place.
    """
    staged = _staged(path)
    with writing(f"writing {path.name}", path):
        with _removed_after_failure(staged):
            with _opened(staged, _NEW) as descriptor:
                if overwritten:
                    platform.keep_in_place(descriptor)
                _write_all(descriptor, data)
                if durable:
                    _fsync(descriptor)
                elif len(data) >= _LARGE_BYTES:
                    platform.begin_to_write_out(descriptor)
            _replace(staged, path)
        if durable:
            sync_directory(path.parent)


def write_new(path: AnyPath, data: bytes) -> None:
    """Write a file of a new directory, which the caller syncs with `sync_tree`."""
    with writing(f"writing {path.name}", path), _opened(path, _NEW) as descriptor:
        _write_all(descriptor, data)
        if len(data) >= _LARGE_BYTES:
            platform.begin_to_write_out(descriptor)


def write_pieces(path: AnyPath, pieces: Iterable[bytes]) -> None:
    """As `write_new`, piece by piece; nothing is left if there is an error, theirs included.

    A large one is durable already, as others are written meanwhile.
    """
    with (
        writing(f"writing {path.name}", path),
        _opened(path, _NEW) as descriptor,
        _removed_after_failure(path),
    ):
        size = 0
        for piece in pieces:
            _write_all(descriptor, piece)
            size += len(piece)
        if size >= _LARGE_BYTES:
            with syncing(path):
                _fdatasync(descriptor)


def _staged(path: AnyPath) -> AnyPath:
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")


@contextlib.contextmanager
def _opened(path: AnyPath, flags: int) -> Iterator[int]:
    descriptor = _open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _removed_after_failure(path: AnyPath) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            _unlink(path)
        raise


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
        with _opened(path, os.O_WRONLY) as descriptor:
            os.lseek(descriptor, offset, os.SEEK_SET)
            _write_all(descriptor, data)
            with syncing(path):
                _fdatasync(descriptor)


def allocate(path: AnyPath, size: int) -> None:
    """Make sure a file has all its blocks: a store into a hole on a full disk would be SIGBUS."""
    with writing(f"allocating {size:,} bytes", path):
        new = not path.exists()
        if not new:
            make_own(path)
        with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            if not new:
                _fallocate(descriptor, size)
                return
            with _removed_after_failure(path):
                platform.keep_in_place(descriptor)
                _fallocate(descriptor, size)


def _fallocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    have = os.fstat(descriptor).st_size
    os.lseek(descriptor, have, os.SEEK_SET)
    _write_all(descriptor, bytes(max(size - have, 0)))


def zero_ranges(path: AnyPath, ranges: Iterable[tuple[int, int]]) -> None:
    """Zero (offset, length) of a file and give the blocks back; its length stays."""
    with writing("giving back unused space", path):
        make_own(path)
        with _opened(path, os.O_RDWR) as descriptor:
            for offset, length in ranges:
                if length > 0 and not platform.punch_hole(descriptor, offset, length):
                    os.lseek(descriptor, offset, os.SEEK_SET)
                    _write_all(descriptor, bytes(length))
            with syncing(path):
                _fdatasync(descriptor)


def allocate_beyond(path: AnyPath, size: int, *, durable: bool = True) -> None:
    """Allocate `size` bytes past the end of a file, whose length stays, where the system can."""
    with writing("allocating beyond the end", path), _opened(path, os.O_RDWR) as descriptor:
        platform.fallocate(descriptor, platform.KEEP_SIZE, os.fstat(descriptor).st_size, size)
        if durable:
            _fsync(descriptor)


def make_own(path: AnyPath, prepare: Callable[[AnyPath], None] | None = None) -> None:
    """Replace a file that has several names (``cp -al``) by a copy of its own, durably."""
    if path.lstat().st_nlink == 1:
        return
    staged = _staged(path)
    copy_file(path, staged)
    if prepare is not None:
        prepare(staged)
    rename(staged, path)
    sync_directory(path.parent)


def unlink(path: AnyPath) -> None:
    """Remove a file, if it is there."""
    with writing("removing a file", path), contextlib.suppress(FileNotFoundError):
        _unlink(path)


def share_file(source: AnyPath, target: AnyPath, size: int | None = None) -> bool:
    """Give an immutable file a second name (True), or copy it without links (False)."""
    descriptor = checked_reads.open_regular(source, os.O_RDONLY)
    try:
        found = os.fstat(descriptor).st_size
        checked_reads.check_size(source, found, found if size is None else size)
        (old, there), (new, here) = at(source), at(target)
        try:
            os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)
            return True  # noqa: TRY300
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EEXIST):
                raise
            if error.errno in NO_ROOM:
                with writing("linking", target):
                    raise
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
    with (
        writing(f"copying {target.name}", target),
        _opened(target, _NEW) as descriptor,
        _removed_after_failure(target),
    ):
        if overwritten:
            platform.keep_in_place(descriptor)
        while piece := os.read(source, _COPY_BYTES):
            _write_all(descriptor, piece)
        _fsync(descriptor)


def sync_file(path: AnyPath, *, missing_ok: bool = False) -> None:
    """Make a file's bytes durable, with the dirty pages of its maps."""
    with writing("opening it to make it durable", path):
        try:
            descriptor = _open(path, os.O_RDWR)
        except OSError as error:
            if missing_ok and error.errno == errno.ENOENT:
                return
            if error.errno == errno.ELOOP:
                raise CorruptStoreError(f"{shown(path)}: expected a file, found a link") from error
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            # An archive, or a disk, that was made read-only; Linux syncs it all the same.
            descriptor = _open(path, os.O_RDONLY)
    _sync_and_close(descriptor, path, _fdatasync)


def sync_directory(path: AnyPath) -> None:
    """Make the names in a directory durable."""
    if sys.platform == "win32":  # directories cannot be opened there
        return
    with writing("opening it to make it durable", path):
        name, folder = at(path)
        descriptor = os.open(name, os.O_RDONLY | platform.CLOEXEC, dir_fd=folder)
    _sync_and_close(descriptor, path, _fsync)


def _sync_and_close(descriptor: int, path: AnyPath, sync: Callable[[int], None]) -> None:
    with syncing(path):
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


def sync_name(path: AnyPath) -> None:
    """Make the name of a directory durable, if the directory above may be read."""
    above = (path if isinstance(path, HeldPath) else path.absolute()).parent
    name, folder = at(above)
    if os.access(name, os.R_OK, dir_fd=folder):
        sync_directory(above)


def _fsync(descriptor: int) -> None:
    if sys.platform == "darwin" and platform.fcntl is not None:  # fsync is not enough there
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

    False if something other than an empty directory stands there; `built` is left as it is.
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
    with writing("exchanging", first):
        return platform.exchange_names(at(first), at(second))


def sync_tree(path: AnyPath) -> None:
    """Make every file and every name below a directory durable."""
    files: list[AnyPath] = []
    folders: list[AnyPath] = []
    for folder, _, names in checked_reads.walk(path):
        files += (folder / name for name in names)
        folders.append(folder)
    sync_all(files, folders)


def sync_all(files: Iterable[AnyPath] = (), directories: Iterable[AnyPath] = ()) -> None:
    """`sync_file` and `sync_directory` of each, many at once: one journal commit serves several."""
    calls = [functools.partial(sync_file, path) for path in files]
    _run_all(calls + [functools.partial(sync_directory, path) for path in directories])


def write_files(files: Mapping[AnyPath, bytes]) -> None:
    """`write_file` of each, many at once."""
    _run_all([functools.partial(write_file, path, data) for path, data in files.items()])


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    """Do each of these; FailedSyncError comes before other errors."""
    for error in sorted(run_all(calls), key=lambda one: not isinstance(one, FailedSyncError)):
        raise error


def share_tree(source: AnyPath, target: AnyPath) -> None:
    """Make a directory whose files are second names of those of another."""
    make_directory(target)
    for name in checked_reads.names(source):
        path = source / name
        if path.is_dir() and not path.is_symlink():
            share_tree(path, target / name)
        else:
            share_file(path, target / name)


def remove_tree(path: AnyPath) -> None:
    """Remove a directory of ours and all in it, without following links."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        unlink(path)
        return
    for folder, _, names in checked_reads.walk(path):
        for name in names:
            unlink(folder / name)
        _remove_directory(folder)
    _remove_directory(path)  # one that cannot be listed says so here


def temporary_directory(prefix: str) -> Path:
    """A new directory that only this user can read, in the folder of Python's `tempfile`."""
    import tempfile  # noqa: PLC0415 (needed by few)

    with writing("making a temporary directory", Path(tempfile.gettempdir())):
        return Path(tempfile.mkdtemp(prefix=prefix))


def _remove_directory(path: AnyPath) -> None:
    with writing("removing a directory", path), contextlib.suppress(FileNotFoundError):
        name, folder = at(path)
        os.rmdir(name, dir_fd=folder)
