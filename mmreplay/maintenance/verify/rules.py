"""The rules of steps and episodes: docs/semantics.md, "Rows".

Invariant: rules are checked only for rows that no writer changes any more, in files that were
found to be sound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array, Ids, distinct
from mmreplay.maintenance.verify.documents import Log
from mmreplay.maintenance.verify.report import Notes
from mmreplay.storage import chunk_files

Mask = npt.NDArray[np.bool_]

_FLAGS = ("resets", "ends", "non_terminals")

SPINE = {"step", *_FLAGS, "finals/id", "finals/first"}
"""The arrays that must fit each other."""

NO_TRANSITION = "expected a transition in every row, found none"
NUMBER = "expected 1, or one more than in the row before; found another"
RESET = "expected 1 exactly where `step` is 1"
END = "expected 1 exactly in the last step of each episode"
LEFT_OUT = "expected 0 where an environment was left out (`step` is 0), found another"
FLAG = "expected 0 or 1, found others"
NO_FINAL = "expected one final observation of each episode that ended, found none"
NO_END = "expected the last step of an episode, in ascending rows, each once; found another"
FIRST = "expected the first step of the episode that ends with `id`, found another"


class Rules:
    """Checks the rules for a lane whose `SPINE` is sound; `note` makes findings of the result."""

    def __init__(self, rows: Log, finals: Log) -> None:
        self._rows, self._finals = rows, finals
        # By array, file and rule: the first and the last row, and entries.
        self._wrong: dict[tuple[str, str, str], tuple[int, int, int]] = {}

    def note(self, notes: Notes) -> None:
        """Add the findings to a lane's notes."""
        for (array, file, text), (first, last, count) in self._wrong.items():
            where = f"row {first:,}"
            if count > 1:
                where = f"{count:,} entries, the first of them in row {first:,}"
            notes.find(f"{array}/{file}", f"{text}, in {where}", array, (first, last + 1))

    def _break(self, log: Log, path: str, text: str, rows: Ids) -> None:
        """A rule is broken in these ascending rows."""
        spec = log.specs[path]
        chunks = rows // spec.chunk_rows
        for chunk in distinct(chunks).tolist():
            part, key = rows[chunks == chunk], (log.prefix + path, spec.key(chunk), text)
            first, _, count = self._wrong.get(key, (int(part[0]), 0, 0))
            self._wrong[key] = (first, int(part[-1]), count + part.size)

    def _filled(self, log: Log, path: str, text: str) -> Iterator[tuple[int, Array]]:
        """Rows of an array in pieces; metadata may name any number of rows that a hole stands for.

        The first large hole breaks a rule and ends them.
        """
        end = log.base
        for row, values in chunk_files.filled_rows(log, log.specs[path], log.base, log.head):
            if row > end:
                break
            yield row, values
            end = row + len(values)
        if end < log.head:
            self._break(log, path, text, np.array([end]))

    def check(self) -> None:
        """Check that steps and final observations fit each other."""
        log, n = self._rows, self._rows.n
        ids = [values for _, values in self._filled(self._finals, "id", NO_END)]
        finals = _Finals(self._finals, np.concatenate([np.empty(0, np.int64), *ids]), log.base * n)
        before = None if log.base else (np.zeros(n, np.int64), np.zeros(n, bool))
        stop = log.base
        for row, values in self._filled(log, "step", NO_TRANSITION):
            step, stop = values.reshape(-1, n), row + len(values)
            flags = [chunk_files.read_rows(log, log.specs[path], row, stop) for path in _FLAGS]
            for path, one in zip(_FLAGS, flags, strict=True):
                odd = one.view(np.uint8).reshape(-1, n) > 1
                self._break(log, path, FLAG, _rows(np.arange(row, stop), odd))
            resets, ends = (one.reshape(-1, n) != 0 for one in flags[:2])
            self._check_rows(row, step, resets, ends, before)
            self._match(row, step, ends, finals)
            before = step[-1], ends[-1]
        if stop == log.head:
            self._check_finals(finals)

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
        right, same = np.flatnonzero(finals.ends), finals.order[1:][np.diff(finals.ordered) == 0]
        wrong[same[finals.ends[same]]] = True
        wrong[right[1:][np.diff(finals.ids[right] // log.n) < 0]] = True
        self._break(self._finals, "id", NO_END, finals.rows[wrong])

    def _check_rows(
        self, row: int, step: Ids, resets: Mask, ends: Mask, before: tuple[Ids, Mask] | None
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


class _Finals:
    """The final observations of kept steps: rows, the last and the first steps of their episodes.

    `ends` tells which of them are of an episode that ended; `ordered` are `ids` in `order`.
    """

    def __init__(self, log: Log, ids: Ids, first: int) -> None:
        # Those before are of evicted steps.
        start = int(np.append(ids >= first, [True]).argmax()) if first else 0
        self.ids, stop = ids[start:], log.base + len(ids)
        self.rows = np.arange(log.base + start, stop)
        self.firsts = chunk_files.read_rows(log, log.specs["first"], log.base + start, stop)
        self.ends = np.zeros(self.ids.size, bool)
        self.order = np.argsort(self.ids, kind="stable")
        self.ordered = self.ids[self.order]

    def within(self, start: int, stop: int) -> Ids:
        """Which of them are of steps [start, stop)."""
        low, high = np.searchsorted(self.ordered, (start, stop))
        return self.order[low:high]
