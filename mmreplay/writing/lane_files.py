"""A lane that is locked for writing: its logs, one of a single environment, two of many.

Invariant: while one process has a lane open for writing, no other process changes its files.
"""

from __future__ import annotations

import fnmatch
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    FormatError,
    MmreplayError,
    SchemaError,
)
from mmreplay.format import layout, parse
from mmreplay.format.columns import lane_columns, start_columns, tick_columns
from mmreplay.storage import chunk_files
from mmreplay.storage.lane_metadata import read_holder, read_metadata, read_root
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath, check_there
from mmreplay.system.locks import DirectoryLock, holder
from mmreplay.writing import build_lane, recover
from mmreplay.writing.kept_rows import LaneRows, StartRows, TickRows
from mmreplay.writing.log import Kept, Log

__all__ = ["LockedLane", "holder_of"]

_LOG = logging.getLogger("mmreplay")


class LockedLane:
    """A lane locked for writing.

    Args:
        path: its directory.
        changes: attributes to change, such as the capacity.
        kind: ``lane`` or ``vector``: what it must be.

    Raises:
        LockedError: another writer is at work.
        StoreNotFoundError, FormatError, CorruptStoreError: there is no sound lane.
        SchemaError: it is of another kind.
        DiskFullError: no room for the tails; nothing was changed.

    Attributes:
        path: its directory, which is locked: whatever has its name later is not touched.
        metadata: attributes.mmreplay as they stand on disk.
        schema: what a row holds.
        logs: in the order in which they are opened, flushed and closed: rows of a later one name
            rows of one before.
        log: the last of them, of the steps; its directory also has the random state.
        capacity: transitions to keep, or None.
        on_flush: gives the random state to keep with a flush.
        flush_lock, failure: one flush at a time, and none after one that failed.
        starts: of a lane of one environment, the rows from the log's base on with a reset; its
            writer appends to it.
        released: whether there is nothing left to flush.
        is_new: whether the call that opened it has made the store, too.
    """

    def __init__(self, path: AnyPath, changes: Mapping[str, Any], kind: str = "lane") -> None:
        _check_kind(path, kind)  # says that there is no lane, before a lock says less
        self._lock = DirectoryLock(path, who=lambda: holder_of(path))
        self.path: AnyPath = self._lock.directory.root
        try:
            try:
                self._open(changes, kind)
            except MmreplayError as error:
                check_there(self.path, error)  # what is missing went with all the rest
                raise
        except BaseException:
            self._lock.release()
            raise

    def _open(self, changes: Mapping[str, Any], kind: str) -> None:
        metadata = _check_kind(self.path, kind)
        self.schema = parse.schema_from_json(metadata.get("schema"), str(self.path / "zarr.json"))
        self.released = self.is_new = False
        self.starts: list[int] = []
        self.failure: FailedStoreError | None = None
        self.flush_lock = threading.Lock()
        self.on_flush: Callable[[], str | None] | None = None
        durable_writes.sync_name(self.path)
        self.capacity: int | None = changes.get("capacity", metadata["capacity"])
        if kind == "lane":
            self.logs = self._open_lane(metadata, changes)
            self._root: dict[str, Any] | None = None
        else:
            self.logs = self._open_vector(metadata)
            self._root = _changed(self.path, metadata, changes)

    def _open_lane(self, metadata: dict[str, Any], changes: Mapping[str, Any]) -> tuple[Log, ...]:
        path = self.path
        if not (path / layout.index_spec().path).is_dir():
            raise FormatError(f"{path / layout.index_spec().path}: missing; run `mmreplay repair`")
        with _Holder(path, metadata):
            log = Log(path, lane_columns(self.schema), changes, capacity=metadata["capacity"])
        rows = LaneRows(log, self.capacity)
        self.starts = rows.starts
        _begin(log, rows)
        return (log,)

    def _open_vector(self, metadata: dict[str, Any]) -> tuple[Log, ...]:
        path, width, capacity = self.path, metadata["width"], metadata["capacity"]
        checked_reads.check_directories(path, *layout.LOGS)
        # A change of the attributes that a killed process made may be only in the page cache.
        durable_writes.sync_file(path / "zarr.json")
        durable_writes.sync_directory(path)
        for litter in fnmatch.filter(checked_reads.names(path), "zarr.json.*.tmp"):
            durable_writes.unlink(path / litter)
        own = [_log_metadata(path / name, metadata) for name in (layout.STARTS, layout.TICKS)]
        if not any(one["closed"] for one in own):
            # Ticks that came after starts that are lost would name others.
            recover.distrust_after(path / layout.STARTS, path / layout.TICKS, metadata["uuid"])
        opened: list[Log] = []

        def open_starts() -> None:
            log = Log(
                path / layout.STARTS,
                start_columns(self.schema),
                capacity=capacity,
                before_reopening=lambda: _drop_copy(path, metadata),
            )
            opened.append(log)

        with _Holder(path / layout.TICKS, own[1]):
            is_open = [not one["closed"] for one in own]
            if all(is_open):
                open_starts()
            # What can fail of a closed one fails before the other is opened.
            ticks = Log(
                path / layout.TICKS,
                tick_columns(self.schema, width),
                capacity=capacity,
                width=width,
                before_reopening=open_starts,
            )
            if not opened:
                open_starts()
        starts = opened[0]
        _check_starts(starts, ticks)
        _begin(ticks, TickRows(ticks, self.capacity))
        _begin(starts, StartRows(starts, ticks), told=ticks.lost > 0)
        return starts, ticks

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay as they stand on disk."""
        return self.log.metadata if self._root is None else self._root

    @property
    def log(self) -> Log:
        """That of the steps."""
        return self.logs[-1]

    def generator(self) -> str | None:
        """The random state that was saved with a flush."""
        return build_lane.read_generator(self.log.path)

    @property
    def closed(self) -> bool:
        """Whether all of it is plain zarr by now."""
        return all(log.closed for log in self.logs)

    @property
    def recovered(self) -> bool:
        """Whether some of its rows are in the page cache only, until the next flush."""
        return any(log.recovered for log in self.logs)

    def abandon(self) -> None:
        """Its writer was dropped without close: whoever waits for the lock gets it soon."""
        self._lock.is_abandoned = True

    def release(self) -> None:
        """Let other writers in, once what runs here has ended."""
        self.released = True  # a flush that waits for its turn does nothing any more
        with self.flush_lock:
            pass
        self._lock.release()


def _check_kind(path: AnyPath, kind: str) -> dict[str, Any]:
    """attributes.mmreplay of a lane of that kind."""
    metadata = read_metadata(path)
    if metadata["kind"] == kind:
        return metadata
    if metadata["kind"] == "lanes":
        raise SchemaError(f"{path}: this store has many lanes; name one (lane=...)")
    raise SchemaError(
        f"{path}: expected a lane of kind {kind!r}, found one of kind {metadata['kind']!r}"
    )


def _log_metadata(path: AnyPath, root: Mapping[str, Any]) -> dict[str, Any]:
    """attributes.mmreplay of one of the two logs of a vector lane."""
    metadata = read_metadata(path)
    if (metadata["kind"], metadata["uuid"]) != ("log", root["uuid"]):
        raise FormatError(f"{path}: expected a log of the lane that it is in, {root['uuid']}")
    return metadata


def _drop_copy(path: AnyPath, metadata: dict[str, Any]) -> None:
    """The copy of its documents is of a closed lane; before the first of its logs is open."""
    if read_root(path).copy is not None:
        build_lane.write_metadata(path, metadata)


def _begin(log: Log, kept: Kept, *, told: bool = False) -> None:
    """Set where a log begins, and tell of lost rows, unless it is `told` of those that go along."""
    log.kept = kept
    log.first = log.base + layout.context_rows(log.width) if log.base else 0
    log.first = kept.first_row(log.head)
    if log.lost and not told:
        _LOG.warning(
            "%s: %d rows after the last flush are not kept: the system has restarted since, an "
            "fsync of them failed, or this is a copy, and the original has them",
            log.path,
            log.lost,
        )


def _check_starts(starts: Log, ticks: Log) -> None:
    """Make sure that no start to come gets a number that a tick has already."""
    newest = ticks.head - 1
    if newest < 0:
        return
    episodes = chunk_files.read_rows(ticks, ticks.specs["episode"], newest, newest + 1)
    if int(np.max(episodes)) >= starts.head:
        raise CorruptStoreError(
            f"{ticks.path}: tick {newest:,} is of episode {int(np.max(episodes)):,}, but "
            f"{starts.path} has {starts.head:,} starts; run `mmreplay verify`"
        )


def _changed(path: AnyPath, metadata: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    if all(metadata.get(name) == value for name, value in changes.items()):
        return metadata
    return build_lane.write_metadata(path, metadata, **changes)


class _Holder:
    """Who opens a lane leaves word of it beside the log of its steps.

    At once where that log was left open: a recovery takes a while, and who died does not hold it
    up. Otherwise when it has been opened.
    """

    def __init__(self, path: AnyPath, metadata: Mapping[str, Any]) -> None:
        self._path = path
        self._told = not metadata["closed"] and (path / ".live").is_dir()

    def __enter__(self) -> None:
        if self._told:
            self._record()

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None and not self._told:
            self._record()

    def _record(self) -> None:
        """A full disk is no reason not to open."""
        where = self._path / ".live" / "writer"
        try:
            durable_writes.write_file(where, holder(), durable=False)
        except DiskFullError:
            durable_writes.unlink(where)  # of the process before: rather no name than a wrong one


def holder_of(path: AnyPath) -> str:
    """Who holds a lane, for the message."""
    about = read_holder(path) or read_holder(path, layout.TICKS)
    return f" (pid {about['pid']} on {about['host']}, since {about['since']})" if about else ""
