"""How episodes end: their final observations, written and committed after their last steps.

Invariant: an episode that has ended has its final observation, or its last step is the newest one
and its final observation the pending one, until the call that ended it, or the next one, is done.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array, Ids
from mmreplay.storage import chunk_files
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import platform
from mmreplay.writing import flush
from mmreplay.writing.appender import Appender
from mmreplay.writing.lane_files import LockedLane

Mask = npt.NDArray[np.bool_]


class Ends:
    """The log of final observations of a lane that is open for writing."""

    def __init__(self, lane: LockedLane, rows: Appender, finals: Appender) -> None:
        self._lane, self._rows, self.finals = lane, rows, finals
        self._n = lane.n
        self._words = lane.finals.state.words
        self._frames = {path: lane.finals.specs[path] for path in lane.schema.frame_paths.values()}
        self._head = lane.finals.head  # with those that are not committed yet

    def add(self, ids: Ids, firsts: Ids, frames: Mapping[str, Array]) -> None:
        """Write final observations, without committing them; DiskFullError: nothing was changed."""
        start = self._words[COMMITTED]
        self.finals.make_room(start, ids.size)
        for path, values in {**frames, "id": ids, "first": firsts}.items():
            self.finals.put(path, start, values)
        self._head = start + ids.size

    def commit(self) -> None:
        """Commit what was added."""
        if platform.barrier is not None:
            platform.barrier()
        self._words[COMMITTED] = self._head

    def ended(self, row: int) -> Mask:
        """(n,) the environments with a final observation of a step in this row, the newest one."""
        out, log = np.zeros(self._n, np.bool_), self._lane.finals
        stop = self._words[COMMITTED]
        ids = chunk_files.read_rows(log, log.specs["id"], max(stop - self._n, log.base), stop)
        rows, environments = np.divmod(ids, self._n)
        out[environments[rows == row]] = True
        return out

    def end_newest(self, which: Mask) -> None:
        """End episodes, (n,), with the newest step, as truncated: their final frame is pending.

        It is durable, where that step is, before this returns: the pending one may be overwritten.
        """
        head = self._lane.rows.head
        environments = which.nonzero()[0]
        ids = (head - 1) * self._n + environments
        frames = {
            path: self._rows.stored(path, head).reshape(self._n, *spec.row_shape)[environments]
            for path, spec in self._frames.items()
        }
        steps = self._rows.stored("step", head - 1).reshape(-1)[environments]
        self.add(ids, ids - (steps - 1) * self._n, frames)
        self.commit()
        if platform.barrier is not None:
            platform.barrier()
        if self._lane.promised == head:
            flush.flush_finals(self._lane)
        self._rows.stored("ends", head - 1).reshape(-1)[environments] = 1

    def settle(self) -> Mask | None:
        """Make the newest step and the final observations fit each other, after any interruption.

        What was not committed is forgotten; episodes that an interrupted call ended get their final
        observation. Returns (n,) which episodes ended with the newest step; None before any step.
        """
        head = self._lane.rows.head
        if not head:
            return None
        over = self.ended(head - 1)
        ends = self._rows.stored("ends", head - 1).reshape(-1)
        owed = (ends != 0) & ~over
        if owed.any():
            self.end_newest(owed)
            over |= owed
        # Not durable if an interrupt came in the middle of `end_newest`.
        is_durable = self._lane.finals.checkpoint.best.head == self._words[COMMITTED]
        if over.any() and self._lane.promised == head and not is_durable:
            flush.flush_finals(self._lane)
        ends[over] = 1
        self._lane.held = None
        return over

    def end_running(self) -> None:
        """After a crash: end all running episodes as truncated."""
        head = self._lane.rows.head
        if not head:
            return
        there = self._rows.stored("step", head - 1).reshape(-1) > 0
        missing = there & ~self.ended(head - 1)
        if missing.any():
            self.end_newest(missing)
        # Before a session begins, and before anything is written over what is pending.
        flush.flush_finals(self._lane)
        self._rows.stored("ends", head - 1).reshape(-1)[there] = 1
