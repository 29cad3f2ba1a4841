"""Staging directories: build next to the target, rename into place, sweep up what a crash left.

Invariant: each is locked by the process that made it, so an unlocked one can be removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    LockedError,
    MmreplayError,
)
from mmreplay.system import checked_reads, durable_writes, locks
from mmreplay.system.held_directories import AnyPath, HeldDirectory

_RANDOM = re.compile(r"[0-9a-f]{8}\.tmp")
_TEMPORARY = "mmreplay-temporary-"
_KEPT = re.compile("nothing was changed|what was flushed( before)? is kept")
_RANDOM_OF_TEMPFILE = re.compile(r"[a-z0-9_]{8}")


@contextlib.contextmanager
def staging_directory(path: Path) -> Iterator[AnyPath]:
    """An empty directory next to `path`; removed in the end, unless it was renamed into place."""
    # Listing a directory takes two descriptors. They are taken before anything is made, and given
    # back to remove it: the error may be that there are no more.
    first, *spare = [HeldDirectory(path.parent) for _ in range(3)]
    above = first.root
    _sweep(above, f".{path.name}.", _RANDOM)
    staged, lock = _make_locked(lambda: _make_staging(above / path.name))
    try:
        yield staged
    except (DiskFullError, FailedStoreError) as error:
        where, _, what = str(error).partition(": ")
        if staged.name not in where:
            raise
        left = "nothing is left behind"
        if not _is_removed(staged, spare):
            left = f"{staged.name} is left behind until the next call removes it"
        what = _KEPT.sub(left, what).replace("open the store again", "call again")
        raise type(error)(f"{path}: {what}") from error.__cause__
    finally:
        # What cannot be removed is swept up by the next one: an error of the caller comes first.
        try:
            _is_removed(staged, spare)
        finally:
            lock.release()


def remove_atomically(store: HeldDirectory) -> None:
    """Remove a store without rows: a crash leaves all of it, or nothing at its path."""
    path: AnyPath = store.root.with_name(store.path.name)
    staged = _staging_path(path)
    durable_writes.rename(path, staged)
    if store.is_at(staged):
        durable_writes.remove_tree(staged)
    else:
        durable_writes.rename(staged, path)


def locked_temporary_directory() -> tuple[AnyPath, locks.DirectoryLock]:
    """A temporary directory, and the lock that protects it until it is released."""
    made, lock = _make_locked(lambda: durable_writes.temporary_directory(_TEMPORARY))
    # In a folder of all users, what others own may be anything.
    _sweep(made.parent, _TEMPORARY, _RANDOM_OF_TEMPFILE, os.geteuid())
    return made, lock


def _staging_path(path: AnyPath) -> AnyPath:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _is_removed(staged: AnyPath, spare: Iterable[HeldDirectory] = ()) -> bool:
    """Give the descriptors back and remove what was staged, as far as that is possible."""
    for held in spare:
        held.close()
    with contextlib.suppress(MmreplayError, OSError):
        durable_writes.remove_tree(staged)
        return True
    return False


def _make_staging(path: AnyPath) -> AnyPath:
    staged = _staging_path(path)
    durable_writes.make_directory(staged)
    return staged


def _make_locked(make: Callable[[], AnyPath]) -> tuple[AnyPath, locks.DirectoryLock]:
    while True:
        made = make()
        try:
            # Before it is locked, another process may take it for what a crash left.
            with contextlib.suppress(LockedError, FileNotFoundError):
                return made, locks.DirectoryLock(made, who=lambda: "")
        except BaseException:  # such as Ctrl-C
            _is_removed(made)
            raise


def _sweep(folder: AnyPath, begins: str, ends: re.Pattern[str], owner: int | None = None) -> None:
    """Remove unlocked directories with such names, of all users or of one."""
    with contextlib.suppress(OSError, CorruptStoreError):
        for name in checked_reads.names(folder):
            if not name.startswith(begins) or not ends.fullmatch(name[len(begins) :]):
                continue
            entry = folder / name
            if entry.is_dir() and not entry.is_symlink() and owner in (None, entry.lstat().st_uid):
                _remove_unless_locked(entry)


def _remove_unless_locked(directory: AnyPath) -> None:
    with contextlib.suppress(MmreplayError, OSError):  # in use, or gone already
        if locks.is_locked(directory):  # often by this process, which needs no search for garbage
            return
        lock = locks.DirectoryLock(directory, patience_s=0, who=lambda: "")
        try:
            durable_writes.remove_tree(directory)
        finally:
            lock.release()
