"""The rules of rows: docs/semantics.md, "Rows".

Invariant: rules are checked only for rows that no writer changes any more, in files that were
found to be sound.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MmreplayError
from mmreplay.ids import Array, Ids, distinct
from mmreplay.maintenance.verify.chunks import ChunkReader, Piece
from mmreplay.maintenance.verify.documents import PRIORITIES, Log
from mmreplay.maintenance.verify.report import Notes
from mmreplay.storage import chunk_files

__all__ = ["NO_FINAL", "SPINE", "Rules"]

Mask = npt.NDArray[np.bool_]

_BLOCK_ENTRIES = 1 << 16
_FLAGS = ("non_terminals", "resets", "ends")
_NEVER_ZERO = ("step", "id")

SPINE = {"step", "resets", "ends", "finals/id", "finals/first"}
"""The arrays that must fit each other."""

NO_TRANSITION = "expected a transition in every row, found none"
NUMBER = "expected 1, or one more than in the row before; found another"
RESET = "expected 1 exactly where `step` is 1"
END = "expected 1 exactly in the last step of each episode"
LEFT_OUT = "expected 0 where an environment was left out (`step` is 0), found another"
FLAG = "expected 0 or 1, found others"
PRIORITY = "expected finite numbers of 0 or more, and 0 where `step` is 0; found others"
NO_FINAL = "expected one final observation of each episode that ended, found none"
NO_END = "expected the last step of an episode, in ascending rows, each once; found another"
FIRST = "expected the first step of the episode that ends with `id`, found another"


_OF_STEPS = ("step", "resets", "ends", PRIORITIES)
"""Checked against each other, or by a rule of their own."""


class Rules:
    """Checks the rules for one lane; `note` turns what breaks them into findings.

    Attributes:
        n_kept, n_before: transitions from row `first` on (None: unknown), and in the row before.
        n_odd: by array, how many values are NaN or infinite, and the first row with one.
    """

    def __init__(self, rows: Log, finals: Log, reader: ChunkReader, first: int) -> None:
        self._rows, self._finals, self._reader, self._first = rows, finals, reader, first
        self.n_kept: int | None = None
        self.n_before = 0
        self.n_odd: dict[str, tuple[int, int]] = {}
        self._is_whole = True
        # By log, array, chunk file and rule: the first and the last row, and entries.
        self._wrong: dict[tuple[str, str, int, str], tuple[int, int, int]] = {}

    def note(self, notes: Notes) -> None:
        """Add the findings to a lane's notes, except those about arrays with damaged files."""
        logs = {log.prefix: log for log in (self._rows, self._finals)}
        for (prefix, path, chunk, text), (first, last, count) in self._wrong.items():
            if prefix + path in self._reader.damaged:
                continue
            where = f"row {first:,}"
            if count > 1:
                where = f"{count:,} entries, the first of them in row {first:,}"
            file = f"{prefix}{path}/{logs[prefix].specs[path].key(chunk)}"
            notes.find(file, f"{text}, in {where}", prefix + path, (first, last + 1))

    def _break(self, log: Log, path: str, text: str, rows: Ids) -> None:
        """A rule is broken in these ascending rows."""
        chunks = rows // log.specs[path].chunk_rows
        for chunk in distinct(chunks).tolist():
            part, key = rows[chunks == chunk], (log.prefix, path, chunk, text)
            first, _, count = self._wrong.get(key, (int(part[0]), 0, 0))
            self._wrong[key] = (first, int(part[-1]), count + part.size)

    # ------------------------------------------------------------ one array

    def check_array(self, log: Log, path: str) -> None:
        """Check the files of an array, and its values one by one."""
        spec, end, hole = log.specs[path], log.base, None
        is_flag, is_float = spec.dtype == np.bool_ or path in _FLAGS, spec.dtype.kind == "f"
        # Frames, which take most of the room, may hold anything there.
        has_gaps = log is self._rows and log.n > 1 and spec.width == 1 and path not in _OF_STEPS
        for piece in self._reader.pieces(log, path):
            if spec.width == 1 and piece.first // piece.n - end > 1:
                hole = hole or (end, piece.first // piece.n)
            end = -(-(piece.first + len(piece.values)) // piece.n)
            values = piece.values.reshape(len(piece.values), -1)
            if is_flag:
                self._break_entries(log, path, FLAG, piece, (values.view(np.uint8) > 1).any(1))
            elif path == PRIORITIES:
                wrong = ~((values >= 0) & (values < np.inf)).all(1)
                wrong |= (values[:, 0] > 0) & self._left_out(piece)
                self._break_entries(log, path, PRIORITY, piece, wrong)
            elif is_float:
                self._count_odd(log.prefix + path, piece, ~np.isfinite(values).all(1))
            if has_gaps:
                others = self._left_out(piece) & values.view(np.uint8).any(1)
                self._break_entries(log, path, LEFT_OUT, piece, others)
        if log.head - end > 1:
            hole = hole or (end, log.head)
        # Metadata may name any number of rows that were never stored.
        if hole and path in _NEVER_ZERO:
            self._is_whole = False
            text = NO_TRANSITION if path == "step" else NO_END
            self._break(log, path, text, np.array([hole[0], hole[1] - 1]))

    def _left_out(self, piece: Piece) -> Mask:
        """Which entries are of environments that were left out; none if that is unreadable."""
        log, start = self._rows, piece.first // piece.n
        stop = -(-(piece.first + len(piece.values)) // piece.n)
        try:
            step = chunk_files.read_rows(log, log.specs["step"], start, stop).reshape(-1)
        except (MmreplayError, OSError):  # has a finding
            return np.zeros(len(piece.values), np.bool_)
        found: Mask = step[piece.first - start * piece.n :][: len(piece.values)] == 0
        return found

    def _break_entries(
        self, log: Log, path: str, text: str, piece: Piece, wrong: npt.ArrayLike
    ) -> None:
        found = np.flatnonzero(wrong)
        if found.size:
            self._break(log, path, text, (found + piece.first) // piece.n)

    def _count_odd(self, array: str, piece: Piece, odd: npt.ArrayLike) -> None:
        found = np.flatnonzero(odd)
        if found.size:
            first = int(found[0] + piece.first) // piece.n
            count, row = self.n_odd.get(array, (0, first))
            self.n_odd[array] = count + found.size, min(first, row)

    # ------------------------------------------------------------ steps and episodes

    def check_steps(self) -> None:
        """Check that steps and final observations fit each other, if all their files are sound."""
        log, n = self._rows, self._rows.n
        if not (self._is_whole and SPINE.isdisjoint(self._reader.damaged)):
            return
        finals = _Finals(self._finals, log.base * n)
        before = None if log.base else (np.zeros(n, np.int64), np.zeros(n, bool))
        n_kept, block = 0, max(_BLOCK_ENTRIES // n, 1)
        for row in range(log.base, log.head, block):
            stop = min(row + block, log.head)
            step, resets, ends = (
                chunk_files.read_rows(log, log.specs[path], row, stop).reshape(-1, n)
                for path in ("step", "resets", "ends")
            )
            self._check_rows(row, step, resets != 0, ends != 0, before)
            self._match(row, step, ends != 0, finals)
            at = self._first - row
            n_kept += int(np.count_nonzero(step[max(at, 0) :] > 0))
            if 0 < at <= len(step):
                self.n_before = int(np.count_nonzero(step[at - 1] > 0))
            before = step[-1], ends[-1] != 0
        self._check_finals(finals)
        self.n_kept = n_kept

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
        self._break(self._finals, "first", FIRST, np.sort(finals.rows[which[odd]]))
        known[entries] = False
        lost = row + np.flatnonzero(known.reshape(step.shape).any(1))
        self._break(log, "ends", NO_FINAL, lost)

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
        self._break(self._finals, "id", NO_END, finals.rows[wrong])

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
        rows = np.arange(row, row + len(step))
        self._break(log, "step", NO_TRANSITION, rows[~there.any(1)])
        self._break(log, "resets", RESET, _rows(rows, resets != (step == 1)))
        self._break(log, "ends", LEFT_OUT, _rows(rows, ends & ~there))
        if before is None:  # the row before is unknown
            before, step, rows = (step[0], ends[0]), step[1:], rows[1:]
            ends = ends[1:]
        was, ended = _below(step, before[0]), _below(ends, before[1])
        goes_on = (step > 1) & (step == was + 1)
        self._break(log, "step", NUMBER, _rows(rows, (step < 0) | ((step > 1) & ~goes_on)))
        # Whether an episode ended is known with the row after, or once the lane is closed.
        wrong = np.where(step > 1, goes_on & ended, (was > 0) & ~ended)
        self._break(log, "ends", END, _rows(rows - 1, wrong))
        if log.closed and rows.size and rows[-1] == log.head - 1:
            wrong = (step[-1:] > 0) & ~ends[-1:]
            self._break(log, "ends", END, _rows(rows[-1:], wrong))


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


class _Finals:
    """The final observations of kept steps: rows, the last and the first steps of their episodes.

    `ends` tells which of them are of an episode that ended.
    """

    def __init__(self, log: Log, first: int) -> None:
        ids, firsts = (
            chunk_files.read_rows(log, log.specs[path], log.base, log.head)
            for path in ("id", "first")
        )
        # Those before are of evicted steps.
        start = int(np.append(ids >= first, [True]).argmax()) if first else 0
        self.rows = np.arange(log.base + start, log.head)
        self.ids, self.firsts = ids[start:], firsts[start:]
        self.ends = np.zeros(self.ids.size, bool)
        self._order = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._order]

    def within(self, start: int, stop: int) -> Ids:
        """Which of them are of steps [start, stop)."""
        low, high = np.searchsorted(self._sorted, (start, stop))
        return self._order[low:high]
