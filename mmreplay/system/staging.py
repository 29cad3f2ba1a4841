"""Directories for a while, built beside their place or temporary, and what the dead left of theirs.

Invariant: each is locked by whoever made it, so that what nobody holds can go.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from mmreplay.errors import LockedError, MmreplayError
from mmreplay.system import durable_writes, locks

__all__ = ["built_beside", "held_temporary", "remove_at_once"]

_RANDOM = re.compile(r"[0-9a-f]{8}\.tmp")
_TEMPORARY = "mmreplay-temporary-"
_RANDOM_OF_TEMPFILE = re.compile(r"[a-z0-9_]{8}")


@contextlib.contextmanager
def built_beside(path: Path) -> Iterator[Path]:
    """An empty directory beside `path`; removed in the end, unless it was renamed to its place.

    Raises:
        DiskFullError, FailedStoreError: it cannot be made.
    """
    _sweep(path.parent, f".{path.name}.", _RANDOM)
    built, lock = _make(lambda: _made_beside(path))
    try:
        yield built
    finally:
        # What cannot be removed goes with the next one; what was built, or failed, is the news.
        try:
            with contextlib.suppress(MmreplayError):
                durable_writes.remove_tree(built)
        finally:
            lock.release()


def remove_at_once(path: Path) -> None:
    """Remove a store of ours that holds no row yet: whole it is there, or its name is gone.

    Raises:
        DiskFullError, FailedStoreError: something of it could not be removed.
    """
    hidden = _hidden(path)
    durable_writes.rename(path, hidden)
    durable_writes.remove_tree(hidden)


def held_temporary() -> tuple[Path, locks.DirectoryLock]:
    """A temporary directory, and the lock that keeps it until it is released.

    A signal may end a process before it removes its own, and no handler of signals is installed
    for that: the next to make one, of the same user, removes what is left.

    Raises:
        DiskFullError, FailedStoreError: it cannot be made.
    """
    made, lock = _make(lambda: durable_writes.temporary_directory(_TEMPORARY))
    # In a folder of all users, what others own may be anything.
    _sweep(made.parent, _TEMPORARY, _RANDOM_OF_TEMPFILE, os.geteuid())
    return made, lock


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _made_beside(path: Path) -> Path:
    built = _hidden(path)
    durable_writes.make_directory(built)
    return built


def _make(make: Callable[[], Path]) -> tuple[Path, locks.DirectoryLock]:
    while True:
        made = make()
        # Between these two, another may take it for what somebody left.
        with contextlib.suppress(LockedError, FileNotFoundError):
            return made, locks.DirectoryLock(made, who=lambda: "")


def _sweep(folder: Path, begins: str, ends: re.Pattern[str], owner: int | None = None) -> None:
    """Remove directories of such names that nobody holds; of everybody, or of one user alone."""
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            if not one.name.startswith(begins) or not ends.fullmatch(one.name[len(begins) :]):
                continue
            if one.is_dir() and not one.is_symlink() and owner in (None, one.lstat().st_uid):
                _remove_unless_held(one)


def _remove_unless_held(directory: Path) -> None:
    with contextlib.suppress(MmreplayError, OSError):  # somebody is at work there, or it is gone
        lock = locks.DirectoryLock(directory, patience_s=0, who=lambda: "")
        try:
            durable_writes.remove_tree(directory)
        finally:
            lock.release()
