"""Appends the sound rows after the damage to the copy of those before it.

Invariant: every sound transition is kept. Its episode continues in the next row if it did so and
that row's transition is sound; else it ends there as truncated, and begins again later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mmreplay.batches.runs import BLOCK_BYTES
from mmreplay.format.layout import FINALS, ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.episodes import row_bytes
from mmreplay.maintenance.repair.damage import Damage, Mask
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage import chunk_files
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.session import Session

__all__ = ["LaterRows"]

_MADE = ("step", "resets", "ends")


class _Rows(NamedTuple):
    """Rows to append.

    Attributes:
        values: by path, (k, n, ...): 0 where an environment is left out.
        there: (k, n), which are not left out.
        goes_on: (k, n), whose episode continues in the next row.
        finals: by path, the final observations of the other ones, in this order.
    """

    values: dict[str, Array]
    there: Mask
    goes_on: Mask
    finals: dict[str, Array]


class LaterRows:
    """Appends the sound rows from `start` on to a copy of those below `start`, and closes it.

    Attributes:
        renumbered: whether appended rows have new numbers.
    """

    def __init__(self, damage: Damage, start: int) -> None:
        self._damage, self._start = damage, start
        self._reader = damage.reader
        self._columns: dict[str, ShardColumn] = {}
        self.renumbered = False

    def append(self, lane: AnyPath) -> None:
        """As `close` of `copy_lane`."""
        reader, damage, start = self._reader, self._damage, self._start
        going_on, begins = np.zeros(reader.n, np.bool_), np.zeros(reader.n, np.int64)
        if reader.base < start < reader.head and [*damage.stretches(start - 1, start + 1)] == [
            (start - 1, start + 1)
        ]:
            found = damage.look(start - 1, start + 1)
            going_on = _goes_on(found.step, found.sound)[0]
            begins = start - found.step[0]
        files = LockedLane(lane, {})
        background = Background(0, os.cpu_count() or 1, building=True)
        self._session = Session(files, background, self._stop, going_on)
        self._running, self._begins = going_on, begins
        try:
            self._session.begin()
            for rows in self._read():
                self._write(rows)
            self._session.close(lambda: None)
        except BaseException:
            self._session.release_unclosed()  # the lane is removed
            raise

    def _stop(self) -> None:
        """Do nothing: a session that is over raises errors itself."""

    # ------------------------------------------------------------ read

    def _read(self) -> Iterator[_Rows]:
        """The sound rows in blocks; rows without a sound transition are left out."""
        damage, head = self._damage, self._reader.head
        start = max(self._start, self._reader.base)
        most = max(BLOCK_BYTES // row_bytes(self._reader.schema), 1)
        n_rows = self._start
        for first, last in damage.blocks(start, head, entries=most):
            # The row after the block shows whether episodes continue.
            more = next(damage.stretches(first, min(last + 1, head)))[1]
            found = damage.look(first, more)
            goes_on = _goes_on(found.step, found.sound)[: last - first]
            there = found.sound[: last - first]
            some = np.flatnonzero(there.any(1))
            self.renumbered |= bool((some + first != n_rows + np.arange(some.size)).any())
            n_rows += some.size
            if some.size:
                yield self._block(first + some, there[some], goes_on[some], found.ends[some])

    def _block(self, rows: Ids, there: Mask, goes_on: Mask, ended: Mask) -> _Rows:
        reader, n = self._reader, self._reader.n
        values = {
            path: self._values(spec, rows, there)
            for path, spec in reader.rows.specs.items()
            if path not in _MADE
        }
        over = there & ~goes_on
        ids = (rows[:, None] * n + np.arange(n))[over]
        finals: dict[str, Array] = {}
        known, is_final = self._damage.finals, ended[over]
        places = known.places[known.ids.searchsorted(ids[is_final])]
        for path in reader.schema.frame_paths.values():
            spec = reader.finals.specs[path]
            out = finals[path] = np.empty((ids.size, *spec.row_shape), spec.dtype)
            out[is_final] = self._rows(reader.finals, FINALS, spec, places)
            out[~is_final] = self._entries(reader.rows.specs[path], ids[~is_final] + n)
        return _Rows(values, there, goes_on, finals)

    def _values(self, spec: ArraySpec, rows: Ids, there: Mask) -> Array:
        """Rows of an array, (k, n, ...), zeros where an environment is left out."""
        n = self._reader.n
        ids = (rows[:, None] * n + np.arange(n))[there]
        found = self._entries(spec, ids)
        out = np.zeros((*there.shape, *found.shape[1:]), spec.dtype)
        out[there] = found
        return out

    def _entries(self, spec: ArraySpec, ids: Ids) -> Array:
        """Entries of an array of the steps, pending frames included."""
        reader, n = self._reader, self._reader.n
        if not spec.is_raw:
            column = self._columns.setdefault(spec.path, ShardColumn([reader.frames], spec.path))
            return column.take(ids)
        rows, where = np.unique(ids // n, return_inverse=True)
        found = self._rows(reader.rows, "", spec, rows)
        shape = spec.row_shape if reader.environments is None else spec.row_shape[1:]
        return found.reshape(-1, n, *shape)[where, ids % n]

    def _rows(self, log: LogReader, name: str, spec: ArraySpec, rows: Ids) -> Array:
        """Rows of an array."""
        if not spec.is_raw:
            key = f"{name}/{spec.path}"
            return self._columns.setdefault(key, ShardColumn([log], spec.path)).take(rows)
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1) if rows.size else []
        spans = [(int(run[0]), int(run[-1]) + 1) for run in runs] or [(0, 0)]
        return np.concatenate([chunk_files.read_rows(log, spec, *span) for span in spans])

    # ------------------------------------------------------------ write

    def _write(self, block: _Rows) -> None:
        """Append rows, each time as many as there is room for or up to the next ends."""
        session, n = self._session, self._reader.n
        words, over = session.files.rows.state.words, block.there & ~block.goes_on
        lasts = [*np.flatnonzero(over.any(1)).tolist(), len(over) - 1]
        done = n_ended = 0
        while done < len(over):
            head = words[COMMITTED]
            with session.failing():
                session.rows.make_room(head)
            stop = min(
                next(row for row in lasts if row >= done) + 1, done + session.rows.border - head
            )
            part, count = slice(done, stop), stop - done
            there = block.there[part]
            new = there.any(0) & ~self._running
            self._begins[new] = head + there.argmax(0)[new]
            step = np.where(there, head + 1 + np.arange(count)[:, None] - self._begins, 0)
            made = {path: one[part] for path, one in block.values.items()}
            made |= {"step": step, "resets": step == 1, "ends": over[part]}
            for path, values in made.items():
                rows = values.reshape(count, *session.files.rows.specs[path].row_shape)
                session.rows.put(path, head, rows)
            last = over[stop - 1]
            which = np.flatnonzero(last)
            if which.size:
                end = slice(n_ended, n_ended + which.size)
                frames = {path: one[end] for path, one in block.finals.items()}
                ids = (head + count - 1) * n + which
                with session.failing():
                    session.ends.add(ids, self._begins[which] * n + which, frames)
                session.files.held = head + count - 1
            words[COMMITTED] = head + count
            if which.size:
                session.ends.commit()
                session.files.held = None
                n_ended += which.size
            self._running = block.goes_on[stop - 1]
            done = stop


def _goes_on(step: Array, sound: Mask) -> Mask:
    """(k, n): whether the episode continues in the next row."""
    out = np.zeros(sound.shape, np.bool_)
    out[:-1] = sound[:-1] & sound[1:] & (step[1:] == step[:-1] + 1)
    return out
