"""Where a repaired store is built, and how it takes the name of the damaged one.

Invariant: at any moment the store's name belongs to the damaged store or to the whole repaired one,
or the next repair gives it back; and nothing is removed that a repair did not build itself.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from mmreplay.errors import CorruptStoreError, LockedError, MmreplayError, SchemaError
from mmreplay.format import layout
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, durable_writes, locks

_OURS = re.compile(r"new|old|mark(\.[0-9a-f]{8}\.tmp)?|spare-.*")


class RepairSite:
    """The directory beside a store in which one repair at a time builds the new one, at `new`."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.path = store.with_name(f".{store.name}.repair.tmp")
        self.new = self.path / "new"
        self._old = self.path / "old"
        self._mark = self.path / "mark"
        self._lock: locks.DirectoryLock | None = None

    def __enter__(self) -> Self:
        """Lock; finish or undo what an interrupted repair began."""
        if (
            checked_reads.identity(self.path) is None
            and checked_reads.identity(self._store) is None
        ):
            read_metadata(self._store)  # says that there is no store
        if problem := checked_reads.name_problem(self.path):
            raise SchemaError(
                f"path: {self._store}: a repair needs a name beside it, {self.path.name!r:.300}: "
                f"{problem}; give the store another name first"
            )
        checked_reads.check_directories(self.path.parent, self.path.name)
        for name in checked_reads.names(self.path):
            if not _OURS.fullmatch(name):
                raise CorruptStoreError(
                    f"{self.path}: expected what an interrupted repair has left, found {name!r}; "
                    f"move this directory away and call again"
                )
        try:
            durable_writes.make_directory(self.path)
            self._lock = locks.DirectoryLock(self.path, who=lambda: ": another repair")
        except FileNotFoundError as error:  # it is done, and removed this directory just now
            raise LockedError(f"{self._store}: was just repaired; look at it again") from error
        self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind; what the damaged store is in stays until it has its name."""
        try:
            self._settle()
            durable_writes.remove_tree(self.path)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _settle(self) -> None:
        """Give each store the name that it should have, and remove what else is here."""
        if checked_reads.identity(self._old) is not None:
            if checked_reads.identity(self._store) is None:
                durable_writes.rename(self._old, self._store)
            else:
                self._aside(self._old)
        elif (
            checked_reads.identity(self.new) is not None
            and checked_reads.identity(self._mark) is not None
            # Unless the store is where it was, it is what has been exchanged for the new one.
            and checked_reads.identity(self._store) != self._marked()
        ):
            self._aside(self.new)
        durable_writes.unlink(self._mark)
        for left in list(self.path.iterdir()):
            if left.is_dir() and not left.is_symlink():
                durable_writes.remove_tree(left)
            else:
                durable_writes.unlink(left)

    def _marked(self) -> tuple[int, int] | None:
        """The identity that the damaged store had before the swap; None if nothing is marked."""
        with contextlib.suppress(ValueError, MmreplayError):
            device, inode = json.loads(
                checked_reads.read_bytes(self._mark, layout.MAX_METADATA_BYTES)
            )
            return device, inode
        return None

    def stand_in(self, lane: str) -> Path:
        """Where a readable stand-in for a damaged lane is made; empty for the store's only one."""
        return self.path / f"spare-{lane}"

    def swap(self) -> Path:
        """Give the new store the name of the damaged one; returns where that is now."""
        mark = json.dumps(checked_reads.identity(self._store)).encode()
        # The damaged store is about to move into this directory: that must not be lost itself.
        durable_writes.sync_directory(self.path.parent)
        durable_writes.sync_directory(self.path)
        durable_writes.write_file(self._mark, mark)
        if durable_writes.exchange(self._store, self.new):
            damaged = self.new
        else:
            durable_writes.rename(self._store, self._old)
            durable_writes.rename(self.new, self._store)
            damaged = self._old
        durable_writes.sync_directory(self.path)
        durable_writes.sync_directory(self._store.parent)
        return self._aside(damaged)

    def _aside(self, store: Path) -> Path:
        """Give the damaged store the first name for such ones that is free."""
        aside = next(path for path in _asides(self._store) if checked_reads.identity(path) is None)
        durable_writes.rename(store, aside)
        durable_writes.sync_directory(aside.parent)
        durable_writes.sync_directory(self.path)
        return aside


def newest_aside(store: Path) -> Path | None:
    """What the last repair of a store has put aside, if it is still there."""
    existing = itertools.takewhile(
        lambda path: checked_reads.identity(path) is not None, _asides(store)
    )
    return next(iter(collections.deque(existing, maxlen=1)), None)


def _asides(store: Path) -> Iterator[Path]:
    """The names that damaged stores get, one after the other."""
    yield store.with_name(f"{store.name}.damaged")
    for number in itertools.count(2):
        yield store.with_name(f"{store.name}.damaged-{number}")
