"""The rules of rows: docs/semantics.md, "Rows".

Invariant: rules are checked only for rows that no writer changes any more, and in sound files.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MmreplayError
from mmreplay.ids import Array, Ids, distinct
from mmreplay.maintenance.verify.chunks import ChunkReader, Piece
from mmreplay.maintenance.verify.documents import PRIORITIES, Log
from mmreplay.maintenance.verify.report import Notes
from mmreplay.storage import chunk_files

__all__ = ["Rules"]

Mask = npt.NDArray[np.bool_]

_BLOCK_ENTRIES = 1 << 16
_FLAGS = ("non_terminals", "resets", "ends")

NO_TRANSITION = "expected a transition in every row, found none"
NUMBER = "expected 1, or one more than in the row before; found another"
RESET = "expected 1 exactly where `step` is 1"
END = "expected 1 exactly in the last step of each episode"
LEFT_OUT = "expected zeros where an environment was left out (`step` is 0), found others"
FLAG = "expected 0 or 1, found others"
PRIORITY = "expected finite numbers of 0 or more, found others"
NO_FINAL = "expected one final observation of each episode that ended, found none"
NO_END = "expected the last step of an episode, in ascending rows, each once; found another"
FIRST = "expected the first step of the episode that ends with `id`, found another"


class Rules:
    """Checks the rules for one lane; `note` turns what breaks them into findings.

    Args:
        rows, finals: its logs.
        reader: reads their arrays.
        first: the oldest row that can be sampled; older ones are not counted.

    Attributes:
        n_kept: transitions from `first` on.
        n_before: those of the row before it.
        n_odd: by array, how many values are NaN or infinite, and the first row with one.
    """

    def __init__(self, rows: Log, finals: Log, reader: ChunkReader, first: int) -> None:
        self._rows, self._finals, self._reader, self._first = rows, finals, reader, first
        self.n_kept = self.n_before = 0
        self.n_odd: dict[str, tuple[int, int]] = {}
        self._has_gaps = False
        self._absent: tuple[range, Mask] = range(0), np.empty((0, 0), np.bool_)
        # By log, array, chunk file and rule: the first and the last row, entries, other arrays.
        self._wrong: dict[tuple[str, str, int, str], tuple[int, int, int, tuple[str, ...]]] = {}

    def note(self, notes: Notes) -> None:
        """Add the findings to a lane's notes, except those that damaged files may explain."""
        logs = {log.prefix: log for log in (self._rows, self._finals)}
        for (prefix, path, chunk, text), (first, last, count, needed) in self._wrong.items():
            if not self._reader.damaged.isdisjoint((prefix + path, *needed)):
                continue
            where = f"row {first:,}"
            if count > 1:
                where = f"{count:,} entries, the first of them in row {first:,}"
            file = f"{prefix}{path}/{logs[prefix].specs[path].key(chunk)}"
            notes.find(file, f"{text}, in {where}", prefix + path, (first, last + 1))

    def _break(self, log: Log, path: str, text: str, rows: Ids, *needed: str) -> None:
        """A rule is broken in these ascending rows; it depends on the arrays `needed`, too."""
        chunks = rows // log.specs[path].chunk_rows
        for chunk in distinct(chunks).tolist():
            part, key = rows[chunks == chunk], (log.prefix, path, chunk, text)
            first, _, count, _ = self._wrong.get(key, (int(part[0]), 0, 0, ()))
            self._wrong[key] = (first, int(part[-1]), count + part.size, needed)

    # ------------------------------------------------------------ one array

    def check_array(self, log: Log, path: str) -> None:
        """Check the values of an array one by one, after `check_steps`."""
        spec = log.specs[path]
        has_gaps = self._has_gaps and log is self._rows
        is_bool, is_float = spec.dtype == np.bool_, spec.dtype.kind == "f"
        by_entry = has_gaps or is_bool or is_float or path in _FLAGS
        for piece in self._reader.pieces(log, path, by_entry=by_entry):
            values = piece.values.reshape(len(piece.values), -1)
            if is_bool or path in _FLAGS:
                self._break_entries(log, path, FLAG, piece, (values.view(np.uint8) > 1).any(1))
            elif path == PRIORITIES:
                wrong = ~((values >= 0) & (values < np.inf)).all(1)
                self._break_entries(log, path, PRIORITY, piece, wrong)
            elif is_float:
                self._count_odd(log.prefix + path, piece, ~np.isfinite(values).all(1))
            if has_gaps:
                others = self._left_out(piece) & values.view(np.uint8).any(1)
                self._break_entries(log, path, LEFT_OUT, piece, others, "step")

    def _break_entries(
        self, log: Log, path: str, text: str, piece: Piece, wrong: npt.ArrayLike, *needed: str
    ) -> None:
        found = np.flatnonzero(wrong)
        if found.size:
            self._break(log, path, text, (found + piece.first) // piece.n, *needed)

    def _count_odd(self, array: str, piece: Piece, odd: npt.ArrayLike) -> None:
        found = np.flatnonzero(odd)
        if found.size:
            first = int(found[0] + piece.first) // piece.n
            count, row = self.n_odd.get(array, (0, first))
            self.n_odd[array] = count + found.size, min(first, row)

    def _left_out(self, piece: Piece) -> Mask:
        """Which entries are of environments that were left out; none if that is unreadable."""
        log, rows = self._rows, piece.rows
        if self._absent[0] != rows:
            try:
                step = chunk_files.read_rows(log, log.specs["step"], rows.start, rows.stop)
            except (MmreplayError, OSError):  # has a finding, or was evicted
                step = np.ones((len(rows), log.n), np.int64)
            self._absent = rows, step.reshape(len(rows), -1) == 0
        absent = self._absent[1]
        if piece.environment is not None:
            of_one: Mask = absent[:, piece.environment]
            return of_one
        start = piece.first - rows.start * piece.n
        return absent.reshape(-1)[start : start + len(piece.values)]

    # ------------------------------------------------------------ steps and episodes

    def check_steps(self) -> None:
        """Check that steps, resets, ends and final observations fit each other."""
        log, n = self._rows, self._rows.n
        streams = {path: _Stream(self._reader, log, path) for path in ("step", "resets", "ends")}
        finals = self._read_finals()
        block = max(_BLOCK_ENTRIES // n, 1)
        row, before = log.base, None if log.base else (np.zeros(n, np.int64), np.zeros(n, bool))
        while row < log.head:
            # Metadata may speak of any number of rows that nothing was stored in.
            filled = min(streams["step"].filled // n, log.head)
            if filled > row:
                edges = np.array([row, filled - 1])[: filled - row]
                self._break(log, "step", NO_TRANSITION, edges)
                row, before = filled, None
                continue
            stop = min(row + block, log.head)
            step, resets, ends = (one.take(row * n, stop * n, n) for one in streams.values())
            for path, flags in (("resets", resets), ("ends", ends)):
                self._break(log, path, FLAG, row + np.flatnonzero((flags > 1).any(1)))
            self._check_rows(row, step, resets != 0, ends != 0, before)
            self._match(row, step, ends != 0, finals)
            self._count(row, step > 0)
            before = step[-1], ends[-1] != 0
            row = stop
        self._check_finals(finals)
        for one in streams.values():
            one.drain()

    def _read_finals(self) -> _Finals:
        """The log of final observations, and a finding for each long hole in it."""
        log = self._finals
        ids, firsts = (_Stream(self._reader, log, path) for path in ("id", "first"))
        blocks, row = [np.empty((3, 0), np.int64)], log.base
        while row < log.head:
            filled = min(ids.filled, log.head)
            if filled > row:
                edges = np.array([row, filled - 1])[: filled - row]
                self._break(log, "id", NO_END, edges, "step", "ends")
                row = filled
                continue
            stop = min(row + _BLOCK_ENTRIES, log.head)
            values = [one.take(row, stop)[:, 0] for one in (ids, firsts)]
            blocks.append(np.stack((np.arange(row, stop), *values)))
            row = stop
        for one in (ids, firsts):
            one.drain()
        return _Finals(np.concatenate(blocks, 1), self._rows.base * self._rows.n)

    def _match(self, row: int, step: Ids, ends: Mask, finals: _Finals) -> None:
        """Each episode that ended in these rows has a final observation."""
        log, n, stop = self._rows, self._rows.n, row + len(step)
        known, flat = ((step > 0) & ends).reshape(-1), step.reshape(-1)
        which = finals.within(row * n, stop * n)
        entries = finals.ids[which] - row * n
        if not log.closed and stop == log.head:  # of the newest row, these say what ended
            newest = entries[entries >= known.size - n]
            known[-n:] = False
            known[newest] = flat[newest] > 0
        finals.ends[which] = known[entries]
        odd = known[entries] & (finals.firsts[which] != finals.ids[which] - (flat[entries] - 1) * n)
        self._break(
            self._finals, "first", FIRST, np.sort(finals.rows[which[odd]]), "finals/id", "step"
        )
        known[entries] = False
        lost = row + np.flatnonzero(known.reshape(step.shape).any(1))
        self._break(log, "ends", NO_FINAL, lost, "step", "finals/id")

    def _check_finals(self, finals: _Finals) -> None:
        """Each final observation is of the end of an episode, in ascending rows, each once."""
        log = self._rows
        wrong = ~finals.ends
        if not log.closed:
            wrong &= finals.ids < log.head * log.n  # else of steps that are not examined
        right = np.flatnonzero(finals.ends)
        ids = finals.ids[right]
        wrong[right[_repeated(ids)]] = True
        wrong[right[np.flatnonzero(np.diff(ids // log.n) < 0) + 1]] = True
        self._break(self._finals, "id", NO_END, finals.rows[wrong], "step", "ends")

    def _check_rows(
        self,
        row: int,
        step: Ids,
        resets: Mask,
        ends: Mask,
        before: tuple[Ids, Mask] | None,
    ) -> None:
        """Check rows from `row` on, (rows, n) each; `before` is the row before, if known."""
        log, there = self._rows, step > 0
        self._has_gaps |= not there.all()
        rows = np.arange(row, row + len(step))
        self._break(log, "step", NO_TRANSITION, rows[~there.any(1)])
        self._break(log, "resets", RESET, _rows(rows, resets != (step == 1)), "step")
        self._break(log, "ends", LEFT_OUT, _rows(rows, ends & ~there), "step")
        if before is None:  # nothing is known of the row before
            before, step, rows = (step[0], ends[0]), step[1:], rows[1:]
            ends = ends[1:]
        was, ended = _below(step, before[0]), _below(ends, before[1])
        goes_on = (step > 1) & (step == was + 1)
        self._break(log, "step", NUMBER, _rows(rows, (step < 0) | ((step > 1) & ~goes_on)))
        # Whether an episode ended is known with the row after, or once the lane is closed.
        wrong = np.where(step > 1, goes_on & ended, (was > 0) & ~ended)
        self._break(log, "ends", END, _rows(rows - 1, wrong), "step")
        if log.closed and rows.size and rows[-1] == log.head - 1:
            wrong = (step[-1:] > 0) & ~ends[-1:]
            self._break(log, "ends", END, _rows(rows[-1:], wrong), "step")

    def _count(self, row: int, there: Mask) -> None:
        at = self._first - row
        self.n_kept += int(np.count_nonzero(there[max(at, 0) :]))
        if 0 < at <= len(there):
            self.n_before = int(np.count_nonzero(there[at - 1]))


def _below(rows: Array, before: Array) -> Array:
    """For each row the one before it; `before` is that of the first."""
    return np.concatenate((before[None], rows[:-1]))


def _rows(rows: Ids, wrong: Mask) -> Ids:
    """The row of each wrong entry."""
    found: Ids = rows[np.nonzero(wrong)[0]]
    return found


def _repeated(ids: Ids) -> Ids:
    """The indices of numbers that occur earlier, too."""
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0) + 1
    found: Ids = order[same]
    return found


class _Stream:
    """Reads the rows of an uncompressed array in order."""

    def __init__(self, reader: ChunkReader, log: Log, path: str) -> None:
        self._pieces: Iterator[Piece] = reader.pieces(log, path)
        self._dtype = log.specs[path].dtype
        self._piece: Piece | None = next(self._pieces, None)

    @property
    def filled(self) -> int:
        """The next entry outside of holes; a large number at the end."""
        return 1 << 62 if self._piece is None else self._piece.first

    def take(self, start: int, stop: int, n: int = 1) -> Array:
        """Entries [start, stop), as rows of n; skips those before."""
        out = np.zeros(stop - start, self._dtype)
        while (piece := self._piece) is not None and piece.first < stop:
            end = piece.first + len(piece.values)
            first, last = max(piece.first, start), min(end, stop)
            if first < last:
                part = piece.values[first - piece.first : last - piece.first]
                out[first - start : last - start] = part
            if end > stop:
                self._piece = Piece(stop, None, piece.n, piece.values[stop - piece.first :])
                break
            self._piece = next(self._pieces, None)
        return out.reshape(-1, n) if n > 1 else out[:, None]

    def drain(self) -> None:
        """Check the remaining files."""
        for _ in self._pieces:
            pass


class _Finals:
    """The final observations of steps that are kept, in their order.

    Attributes:
        rows, ids, firsts: their rows, the last and the first steps of their episodes.
        ends: which of them are of an episode that ended.
    """

    def __init__(self, values: Ids, first: int) -> None:
        if first:  # those before it are of evicted steps
            values = values[:, np.append(np.flatnonzero(values[1] >= first), values.shape[1])[0] :]
        self.rows, self.ids, self.firsts = values
        self.ends = np.zeros(self.ids.size, bool)
        self._order = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._order]

    def within(self, start: int, stop: int) -> Ids:
        """Which of them are of steps [start, stop)."""
        low, high = np.searchsorted(self._sorted, (start, stop))
        return self._order[low:high]
