"""Directories that are built beside their place, and what those who died have left of theirs.

Invariant: what is being built is locked by whoever builds it, so that what nobody holds can go.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

from mmreplay import files, locks
from mmreplay.errors import LockedError, MmreplayError

__all__ = ["built_beside", "remove_at_once"]

_RANDOM = re.compile(r"[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def built_beside(path: Path) -> Iterator[Path]:
    """An empty directory beside `path`; removed in the end, unless it was renamed to its place.

    Raises:
        DiskFullError, FailedStoreError: it cannot be made.
    """
    _remove_unfinished(path)
    built, lock = _make(path)
    try:
        yield built
    finally:
        # What cannot be removed goes with the next one; what was built, or failed, is the news.
        try:
            with contextlib.suppress(MmreplayError):
                files.remove_tree(built)
        finally:
            lock.release()


def remove_at_once(path: Path) -> None:
    """Remove a store of ours that holds no row yet: whole it is there, or its name is gone.

    Raises:
        DiskFullError, FailedStoreError: something of it could not be removed.
    """
    hidden = _hidden(path)
    files.rename(path, hidden)
    files.remove_tree(hidden)


def _hidden(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")


def _make(path: Path) -> tuple[Path, locks.DirectoryLock]:
    while True:
        built = _hidden(path)
        files.make_directory(built)
        # Between these two, another may take it for what somebody left.
        with contextlib.suppress(LockedError, FileNotFoundError):
            return built, locks.DirectoryLock(built, who=lambda: "")


def _remove_unfinished(path: Path) -> None:
    begins = f".{path.name}."
    with contextlib.suppress(OSError):
        for one in path.parent.iterdir():
            is_ours = one.name.startswith(begins) and _RANDOM.fullmatch(one.name[len(begins) :])
            if is_ours and one.is_dir() and not one.is_symlink():
                _remove_unless_held(one)


def _remove_unless_held(directory: Path) -> None:
    with contextlib.suppress(MmreplayError, OSError):  # somebody is at work there, or it is gone
        lock = locks.DirectoryLock(directory, patience_s=0, who=lambda: "")
        try:
            files.remove_tree(directory)
        finally:
            lock.release()
