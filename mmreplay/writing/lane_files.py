"""A lane that is locked for writing: the log of its steps, and that of its final observations.

Invariant: while one process has a lane open for writing, no other process changes its files.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmreplay.episode_index import Gaps, floor_row
from mmreplay.errors import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    FormatError,
    MmreplayError,
)
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.storage import chunk_files, priority_column
from mmreplay.storage.lane_metadata import LaneDocument, read_holder, read_lane
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath, check_there
from mmreplay.system.locks import DirectoryLock, holder
from mmreplay.writing import build_lane, recover
from mmreplay.writing.episode_log import EpisodeLog
from mmreplay.writing.log import Log
from mmreplay.writing.request import Resume, merged

_LOG = logging.getLogger("mmreplay")
_UNITS = ("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1)


class LockedLane:
    """A lane locked for writing; its sessions begin with `begin`.

    `changes` are attributes to change; `check` is called with the documents before any change.

    Attributes:
        held: a step that is committed while its final observations are not yet, or None.
        promised: the head of the last flush that began: its pending row is durable, or will be.
        on_flush: gives the random state to keep with a flush.
        flush_lock, failure: one flush at a time, and none after a failed one.
        is_new: whether the call that opened it has made the store.
        is_recovered: it was left open, so that episodes may lack their final observations.
        has_unflushed: some rows are only in the page cache, until the next flush.
    """

    def __init__(
        self,
        path: AnyPath,
        changes: Mapping[str, Any],
        check: Callable[[LaneDocument], None] = lambda _: None,
    ) -> None:
        self._lock = DirectoryLock(path, who=lambda: holder_of(path))
        self.path: AnyPath = self._lock.directory.root
        try:
            try:
                self._open(changes, check)
            except MmreplayError as error:
                check_there(self.path, error)  # what is missing went with all the rest
                raise
        except BaseException:
            self._lock.release()
            raise

    def _open(self, changes: Mapping[str, Any], check: Callable[[LaneDocument], None]) -> None:
        path = self.path
        document = self.document = read_lane(path, own_documents=True)
        check(document)
        self.age_s: float | None = time.time() - _last_change(path)  # None: new
        if "env" in changes:
            changes = {**changes, "env": merged(document.metadata.get("env") or {}, changes["env"])}
        self.schema, self.environments, self.n = document.schema, document.environments, document.n
        self.released = self.is_new = False
        self.held: int | None = None
        self.failure: FailedStoreError | None = None
        self.flush_lock = threading.Lock()
        self.on_flush: Callable[[], str | None] | None = None
        durable_writes.sync_name(path)
        metadata = document.metadata
        self.capacity: int | None = changes.get("capacity", metadata["capacity"])
        if not (path / layout.FINALS).is_dir():
            raise FormatError(f"{path / layout.FINALS}: missing; run `mmreplay repair`")
        priorities: ArraySpec | None = None
        with contextlib.suppress(FormatError, CorruptStoreError):  # damaged, they cost no row
            priorities = priority_column.take_over(path, document.environments)
        more = {} if priorities is None else {priorities.path: priorities}
        self.rows = Log(path, {**document.rows, **more}, pending=1)
        self.finals = Log(path / layout.FINALS, document.finals, pending=0)
        self.logs = self.rows, self.finals
        self.episodes = EpisodeLog(path, document.schema.episode)
        self.is_recovered, self._lost = False, 0
        if metadata["closed"]:
            self.metadata = recover.reopen(document, *self.logs, self.episodes, changes)
            self._record_holder()
            self.promised = self.rows.head
        elif all(recover.is_as_made(log.path, metadata) for log in self.logs):
            self._record_holder()
            self.age_s = None
            for log in (self.finals, self.rows):
                recover.make_ready(log, metadata)
            if any(metadata.get(name) != value for name, value in changes.items()):
                metadata = build_lane.write_metadata(path, metadata, **changes)
            self.metadata, self.promised = metadata, 0
        else:
            self._record_holder()  # first: a recovery may take a while
            self.metadata, self._lost = recover.recover(
                document, *self.logs, self.episodes, changes
            )
            self.promised = self.rows.checkpoint.best.head
            self.is_recovered = True
        self.has_unflushed = any(log.is_trusted for log in self.logs)
        for log in self.logs:
            log.fresh.extend(log.path / spec.path for spec in log.specs.values())
        self.finals.first = self.finals.base
        self._gaps: Gaps | None = None
        self._floor = self.rows.first = floor_row(self.rows.base)
        self.rows.first = self.first_row(self.rows.head)

    def open_episodes(self) -> None:
        """Open the fields of episodes, once all of these are over."""
        rows, finals = self.logs
        self.episodes.base = rows.before
        self.episodes.head = recover.begun(rows, finals, finals.head, self.n)
        recover.open_episodes(self.episodes, recovered=self.is_recovered)

    def begin(self) -> None:
        """Begin the sessions of a lane that was recovered, and say what it lost."""
        if not self.is_recovered:
            return
        for log in (self.finals, self.rows):
            recover.begin(log)
        if self._lost:
            _LOG.warning(
                "%s: %d steps after the last flush are not kept: the system has restarted since, "
                "an fsync of them failed, or this is a copy, and the original has them",
                self.path,
                self._lost,
            )

    def log_resumed(self, n_transitions: int, resume: Resume, more: str = "") -> None:
        """Log that the lane was there, its size and age: a warning with "auto", else an info."""
        if self.age_s is None:
            return
        was, now = self.document.metadata["capacity"], self.capacity
        if now is not None and now < (was or now + 1) and n_transitions + self.n > now:
            more += f"; older ones were evicted (capacity {now:,}, before {was and f'{was:,}'})"
        age = max(self.age_s, 0)
        unit, unit_s = next((unit, s) for unit, s in _UNITS if age >= 2 * s or s == 1)
        _LOG.log(
            logging.WARNING if resume == "auto" else logging.INFO,
            "%s: resumed, with %s transitions, last written %.0f %s ago%s",
            self.path,
            f"{n_transitions:,}",
            age / unit_s,
            unit,
            more,
        )

    def finished(self) -> int:
        """The steps whose final observations are committed, too."""
        head = self.rows.state.words[COMMITTED]
        held = self.held  # read second: a step held earlier has its final observations now
        return head if held is None else min(head, held)

    def first_row(self, head: int) -> int:
        """The oldest step to be sampled of those below `head`; for one thread at a time."""
        floor = max(self.rows.first, self._floor)
        if self.capacity is None or head <= floor:
            return min(floor, head)
        if self._gaps is None:
            self._gaps = Gaps(self.n, floor, self.path)
        self._gaps.follow(head, self._read)
        self._gaps.forget(floor)
        return self._gaps.oldest(floor, self.capacity)

    def _read(self, path: str, start: int, stop: int) -> Array:
        rows = chunk_files.read_rows(self.rows, self.rows.specs[path], start, stop)
        return rows.reshape(stop - start, self.n)

    def episodes_in(self, start: int, stop: int) -> int:
        """How many episodes begin in these steps."""
        pieces = chunk_files.filled_rows(self.rows, self.rows.specs["resets"], start, stop)
        return sum(int(np.count_nonzero(values)) for _, values in pieces)

    def take_priorities(self) -> None:
        """Take in a column of priorities that another process has made; in turn of flushes."""
        if layout.PRIORITIES in self.rows.specs or not (self.path / layout.PRIORITIES).exists():
            return
        with contextlib.suppress(FormatError, CorruptStoreError):
            spec = priority_column.find_spec(self.path, self.environments)
            if spec is not None:
                self.rows.add(spec)

    def add_priorities(self) -> None:
        """Make the column of priorities, if there is none; all of them are about to change."""
        with self.flush_lock:
            spec = priority_column.find_or_make(self.path, self.environments)
            self.rows.add(spec)
            self.rows.sums.drop(spec, self.rows.sums.present(spec))

    def generator(self) -> str | None:
        """The random state that was saved with a flush."""
        return build_lane.read_generator(self.path)

    @property
    def closed(self) -> bool:
        """Whether it is plain zarr by now."""
        return self.rows.closed

    def abandon(self) -> None:
        """Its writer was dropped without close: a process that waits for the lock gets it soon."""
        self._lock.is_abandoned = True

    def release(self) -> None:
        """Let other writers in, once what runs here has ended."""
        self.released = True  # a flush that waits for its turn does nothing any more
        with self.flush_lock:
            pass
        self._lock.release()

    def _record_holder(self) -> None:
        """Leave pid and host for lock messages; a full disk does not prevent the opening."""
        where = self.path / ".live" / "writer"
        if not where.parent.is_dir():
            return  # as the recovery is about to report
        try:
            durable_writes.write_file(where, holder(), durable=False)
        except DiskFullError:
            durable_writes.unlink(where)  # no name is better than that of the process before


def _last_change(path: AnyPath) -> float:
    """When a lane was written last, as far as the times of its files tell: s since 1970."""
    found = [0.0]
    for name in ("zarr.json", ".live/state", ".live/checkpoint"):
        with contextlib.suppress(OSError):
            found.append(path.joinpath(name).stat().st_mtime)
    return max(found)


def holder_of(path: AnyPath) -> str:
    """The process that holds a lane, for the message."""
    about = read_holder(path)
    return f" (pid {about['pid']} on {about['host']}, since {about['since']})" if about else ""
