"""Read-only view of a lane: the log of its steps, and that of its final observations.

Invariant: the head of the steps is taken before that of the final observations, so that every
episode that ended before the newest step has one that is known.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format.layout import CONTEXT_ROWS, FINALS
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.log_reader import Entries, LogReader, Stamp, file_stamp
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.lane_metadata import LaneDocument, read_lane
from mmreplay.system import locks
from mmreplay.system.held_directories import AnyPath

_ATTEMPTS = 50
_IDLE_ATTEMPTS = 5
_PATIENCE_S = 0.02


class LaneReader:
    """A lane, read-only; `own_documents` ignores the copy of its arrays' zarr.json files.

    Raises StoreNotFoundError, FormatError or CorruptStoreError as docs/format.md says.

    Attributes:
        number: its index in the store.
        environments: how many step together; None where arrays have no axis for them, so `n` is 1.
        entries: its steps as columns read them, one row for each environment of each.
        frames: the same for frames, with the pending row of a lane that is not closed.
    """

    document: LaneDocument
    metadata: dict[str, Any]
    schema: Schema
    environments: int | None
    n: int
    rows: LogReader
    finals: LogReader
    is_closed: bool

    def __init__(self, path: AnyPath, number: int = 0, *, own_documents: bool = False) -> None:
        self.path, self.number = path, number
        self._own_documents = own_documents
        self._load()
        n, has_axis = self.n, self.environments is not None
        self.entries = Entries(self.rows, n, has_axis=has_axis)
        pending = 0 if self.is_closed else 1
        self.frames = Entries(self.rows, n, has_axis=has_axis, pending=pending)

    def _load(self) -> None:
        n_idle = 0
        for attempt in range(_ATTEMPTS):
            if attempt:
                # Without a lock, no writer is opening or closing it: there is nothing to wait for.
                n_idle = 0 if locks.is_locked(self.path) else n_idle + 1
                if n_idle > _IDLE_ATTEMPTS:
                    break
                time.sleep(_PATIENCE_S)
            stamp = file_stamp(self.path)
            try:
                self.document = read_lane(self.path, own_documents=self._own_documents)
                is_loaded = self._load_logs(stamp)
                if is_loaded:
                    self._check_head()
            except chunk_files.EvictedError:
                continue  # it was closed or opened meanwhile
            except (FormatError, CorruptStoreError):
                if file_stamp(self.path) == stamp:
                    raise
                continue  # another store has the path by now, or none
            if is_loaded and file_stamp(self.path) == stamp and self.in_session():
                return
        raise CorruptStoreError(
            f"{self.path}: neither closed nor live: expected .live and {FINALS}/.live, each with "
            f"state, checkpoint and tails; found no whole set of them"
        )

    def _load_logs(self, stamp: Stamp) -> bool:
        """Take both logs; False if they changed hands meanwhile."""
        path, document = self.path, self.document
        own = self.metadata = document.metadata
        self.schema, self.environments, self.n = document.schema, document.environments, document.n
        self.rows = LogReader(path, document.rows, path, stamp)
        self.finals = LogReader(path / FINALS, document.finals, path, stamp)
        self.is_closed = own["closed"]
        if self.is_closed:
            for name, found in zip(("rows", "finals"), document.lengths, strict=True):
                if found < own[name]:
                    raise FormatError(
                        f"{path}: the root says {own[name]:,} {name}, the arrays {found:,}"
                    )
            self.rows.load_closed(max(own["first"] - CONTEXT_ROWS, 0), own["rows"])
            self.finals.load_closed(own["first_final"], own["finals"])
            return True
        uuid, capacity = own["uuid"], own["capacity"]
        if not self.rows.load_open(uuid, capacity, trust=True):
            return False
        if not self.finals.load_open(uuid, capacity, trust=self.rows.is_live):
            return False
        if self.rows.is_live and not self.finals.is_live:
            # The newest steps may have ended episodes whose final observations are lost.
            return self.rows.load_open(uuid, capacity, trust=False)
        return True

    def _check_head(self) -> None:
        """Check that the newest row has a file, before anything is made for rows."""
        if self.head * self.n >= 1 << LANE_SHIFT:
            raise CorruptStoreError(
                f"{self.path}: expected fewer than 2**{LANE_SHIFT} transitions, found "
                f"{self.head:,} rows of {self.n:,} environments"
            )
        if self.head:
            chunk_files.check_last(self.rows, self.rows.specs["step"], self.head)

    @property
    def base(self) -> int:
        """The oldest row kept."""
        return self.rows.base

    @property
    def head(self) -> int:
        """Rows committed."""
        return self.rows.head

    @property
    def is_live(self) -> bool:
        """Whether rows may still be appended."""
        return self.rows.is_live

    @property
    def extent(self) -> tuple[int, int, int, int]:
        """(base, head) of the rows, and of the finals."""
        rows, finals = self.rows, self.finals
        return rows.base, rows.head, finals.base, finals.head

    def poll(self) -> bool:
        """Take the newest heads of a live lane; False if a session is over: it must be loaded."""
        return self.rows.poll() and self.finals.poll()

    def in_session(self) -> bool:
        """Whether the sessions that were loaded go on."""
        return self.is_closed or (self.rows.in_session() and self.finals.in_session())

    def is_in_place(self) -> bool:
        """Whether what stands at the path is still what was loaded."""
        return self.rows.is_in_place() and self.finals.is_in_place()

    def replaced(self) -> bool:
        """Whether the zarr.json or a state is another than the one that was loaded."""
        return self.rows.replaced() or self.finals.replaced()


def lane_state(path: AnyPath, *, closed: bool) -> str:
    """``live`` while a writer is at work; else what zarr.json says: ``closed``, or ``crashed``."""
    if locks.is_locked(path):
        return "live"
    return "closed" if closed else "crashed"


def store_state(states: Iterable[str]) -> str:
    """The first of live, crashed and closed that any lane is in, else ``unknown``."""
    present = set(states)
    return next((state for state in ("live", "crashed", "closed") if state in present), "unknown")
