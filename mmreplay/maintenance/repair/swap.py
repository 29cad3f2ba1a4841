"""Builds a repaired store beside the damaged one, and exchanges their names.

Invariant: at any moment the name belongs to the damaged or to the complete repaired store, or the
next repair restores it; a repair removes only what a repair has built.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    LockedError,
    MmreplayError,
    SchemaError,
)
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, durable_writes, locks
from mmreplay.system.held_directories import AnyPath, HeldDirectory

_OURS = re.compile(r"new|old|mark(\.[0-9a-f]{8}\.tmp)?")
_MOST_BYTES = 1_000


def _mark_of(store: AnyPath) -> bytes:
    return json.dumps(checked_reads.identity(store)).encode()


class RepairSite:
    """The directory beside a store in which one repair at a time builds the new store, at `new`.

    `what` builds it, for messages; the store as it was becomes its name and `aside`. The path
    `store` is in a directory that is held open.
    """

    def __init__(self, store: Path, what: str = "repair", aside: str = "damaged") -> None:
        self._what, self._suffix = what, aside
        try:
            self.store: AnyPath = HeldDirectory(store.parent).root / store.name
        except (OSError, ValueError, CorruptStoreError):
            read_metadata(store)  # raises the error
            raise
        self.path = self.store.with_name(f".{store.name}.repair.tmp")
        self.new = self.path / "new"
        self._old = self.path / "old"
        self._mark = self.path / "mark"
        self._lock: locks.DirectoryLock | None = None

    def is_left(self) -> bool:
        """Whether a repair is under way, or was interrupted."""
        return checked_reads.identity(self.path) is not None

    @contextlib.contextmanager
    def naming_the_store(self) -> Iterator[None]:
        """In errors, name the store in place of what is built here."""
        try:
            yield
        except MmreplayError as error:
            text = str(error).replace(str(self.new), str(self.store))
            if isinstance(error, DiskFullError | FailedStoreError):
                text = text.replace(str(self.path), str(self.store))
            error.args = (text,)
            raise

    def __enter__(self) -> Self:
        """Lock; finish or undo an interrupted repair."""
        if problem := checked_reads.name_problem(self.path):
            raise SchemaError(
                f"path: {self.store}: a {self._what} needs a name beside it, "
                f"{self.path.name!r:.300}: {problem}; give the store another name first"
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
        except FileNotFoundError as error:  # another repair has just removed this directory
            raise LockedError(
                f"{self.store}: another repair has just ended; verify the store"
            ) from error
        self._settle()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the directory, once both stores have their names."""
        try:
            self._settle()
            durable_writes.remove_tree(self.path)
        finally:
            if self._lock is not None:
                self._lock.release()

    def _settle(self) -> None:
        """Give each store its name, and remove everything else here."""
        if checked_reads.identity(self._old) is not None:
            if checked_reads.identity(self.store) is None:
                durable_writes.rename(self._old, self.store)
            else:
                self._aside(self._old)
        elif (
            checked_reads.identity(self.new) is not None
            and checked_reads.identity(self._mark) is not None
            # If another directory is at the store's path now, the names were exchanged.
            and checked_reads.read_bytes(self._mark, _MOST_BYTES) != _mark_of(self.store)
        ):
            self._aside(self.new)
        durable_writes.unlink(self._mark)
        for name in checked_reads.names(self.path):
            durable_writes.remove_tree(self.path / name)

    def swap(self, damaged: HeldDirectory) -> AnyPath:
        """Give the new store the name of the damaged one; returns the new path of that."""
        self._check_there(damaged, self.store)
        # The damaged store is about to move into this directory: that must not be lost itself.
        durable_writes.sync_directory(self.path.parent)
        durable_writes.sync_directory(self.path)
        durable_writes.write_file(self._mark, _mark_of(damaged.root))
        with self._unmarked_on_error(damaged):
            exchanged = durable_writes.exchange(self.store, self.new)
        if exchanged:
            aside = self.new
            self._check_there(damaged, aside, lambda: durable_writes.exchange(self.store, aside))
        else:
            aside = self._old
            with self._unmarked_on_error(damaged):
                durable_writes.rename(self.store, aside)
            self._check_there(damaged, aside, lambda: durable_writes.rename(aside, self.store))
            # Else the second name could be durable without the first, and the damaged store lost.
            durable_writes.sync_directory(self.path)
            durable_writes.rename(self.new, self.store)
        durable_writes.sync_directory(self.path)
        durable_writes.sync_directory(self.store.parent)
        return self._aside(aside)

    @contextlib.contextmanager
    def _unmarked_on_error(self, damaged: HeldDirectory) -> Iterator[None]:
        """Remove the mark if the names could not be changed; see `_settle`."""
        try:
            yield
        except MmreplayError:
            durable_writes.unlink(self._mark)
            self._check_there(damaged, self.store)
            raise

    def _check_there(
        self, damaged: HeldDirectory, place: AnyPath, undo: Callable[[], object] | None = None
    ) -> None:
        """Raise LockedError unless the damaged store is at `place`."""
        with contextlib.suppress(FileNotFoundError):
            if damaged.is_at(place):
                return
        if undo is not None:  # another store took the name at this moment
            undo()
            durable_writes.unlink(self._mark)
        raise LockedError(
            f"{self.store}: was moved during the {self._what}, to {damaged.place()}; nothing was "
            f"changed: call again with that path"
        )

    def _aside(self, store: AnyPath) -> AnyPath:
        """Rename the damaged store to the first free name for such stores."""
        name, number = f"{self.store.name}.{self._suffix}", 2
        aside = self.store.with_name(name)
        while checked_reads.identity(aside) is not None:
            aside = self.store.with_name(f"{name}-{number}")
            number += 1
        durable_writes.rename(store, aside)
        durable_writes.sync_directory(aside.parent)
        durable_writes.sync_directory(self.path)
        return aside
