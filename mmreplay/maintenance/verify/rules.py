"""The rules of steps and episodes: docs/semantics.md, "Rows".

Invariant: rules are checked only for rows that no writer changes any more, and that were found to
be sound in all arrays that a rule is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array, Ids, distinct
from mmreplay.maintenance.verify.documents import Log
from mmreplay.maintenance.verify.report import Finding, Notes, Span, gaps, merged
from mmreplay.reading.lane_reader import LogReader
from mmreplay.storage import chunk_files

Mask = npt.NDArray[np.bool_]
_EMPTY = np.empty(0, np.int64)

_FLAGS = ("resets", "ends", "non_terminals")

SPINE, INDEX = {"step", *_FLAGS}, {"finals/id", "finals/first"}
"""The arrays of the steps, and of the final observations, that must fit each other."""

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
    """Checks the rules for a lane; `note` makes findings of the result."""

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

    def _filled(
        self, log: Log, path: str, text: str, start: int, stop: int
    ) -> Iterator[tuple[int, Array]]:
        """Rows [start, stop) in pieces, up to the first large hole, which may claim any size."""
        for row, values in chunk_files.filled_rows(log, log.specs[path], start, stop):
            if row > start:
                break
            yield row, values
            start = row + len(values)
        if start < stop:
            key = log.prefix + path, log.specs[path].key(start // log.specs[path].chunk_rows), text
            self._wrong[key] = start, stop - 1, stop - start

    def check(self, findings: Iterable[Finding]) -> None:
        """Check that steps fit each other, and final observations, where files were sound."""
        log, n = self._rows, self._rows.n
        damaged = [one for one in findings if one.is_of_rows]
        lost = merged(one.rows for one in damaged if one.array in SPINE and one.rows)
        ended = [(_EMPTY, _EMPTY)]
        for start, stop in gaps(lost, log.base, log.head):
            before = None if start else (np.zeros(n, np.int64), np.zeros(n, bool))
            end = start
            for row, values in self._filled(log, "step", NO_TRANSITION, start, stop):
                step, end = values.reshape(-1, n), row + len(values)
                flags = [chunk_files.read_rows(log, log.specs[path], row, end) for path in _FLAGS]
                for path, one in zip(_FLAGS, flags, strict=True):
                    odd = one.view(np.uint8).reshape(-1, n) > 1
                    self._break(log, path, FLAG, _rows(np.arange(row, end), odd))
                resets, ends = (one.reshape(-1, n) != 0 for one in flags[:2])
                self._check_rows(row, step, resets, ends, before)
                ended.append(ends_of(row, step, ends, is_open=not log.closed and end == log.head))
                before = step[-1], ends[-1]
            lost.append((end, stop))
        if INDEX.isdisjoint(one.array for one in damaged):
            ids, firsts = map(np.concatenate, zip(*ended, strict=True))
            self._check_finals(ids, firsts, lost)

    def _check_finals(self, ids: Ids, firsts: Ids, lost: Iterable[Span]) -> None:
        """Each of these episodes has a final observation, in ascending rows, and nothing else has.

        Of rows that are `lost` it is not known where episodes ended.
        """
        log, finals, n = self._rows, self._finals, self._rows.n
        pieces = self._filled(finals, "id", NO_END, finals.base, finals.head)
        stored = np.concatenate([_EMPTY, *(values for _, values in pieces)])
        # The oldest may be of evicted steps.
        n_evicted = int(np.append(stored >= log.base * n, [True]).argmax()) if log.base else 0
        stored, start = stored[n_evicted:], finals.base + n_evicted
        rows, which = np.arange(start, start + stored.size), meant(stored, ids)
        begins = chunk_files.read_rows(finals, finals.specs["first"], start, start + stored.size)
        odd = (which >= 0) & (begins != np.append(firsts, -1)[which])
        self._break(finals, "first", FIRST, rows[odd])
        right = which >= 0
        for first, last in lost:
            right |= (stored >= first * n) & (stored < last * n)
        wrong = ~right
        if not (log.closed or log.is_all):
            wrong &= stored < log.head * n  # else of steps that are not examined
        places = np.flatnonzero(right)
        again = np.ones(places.size, bool)
        again[np.unique(stored[places], return_index=True)[1]] = False
        wrong[places[again]] = True
        wrong[places[1:][np.diff(stored[places] // n) < 0]] = True
        self._break(finals, "id", NO_END, rows[wrong])
        known = ids.size if log.closed else int(ids.searchsorted((log.head - 1) * n))
        lacking = np.delete(ids[:known], which[(which >= 0) & (which < known)]) // n
        self._break(log, "ends", NO_FINAL, distinct(lacking))

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


def begins_of(
    log: Log | LogReader, n: int, lost: Mapping[str, Sequence[Span]], start: int, stop: int
) -> Ids:
    """The entries in which episodes begin, by `resets`, else by `step`, until both are `lost`."""
    known = [*gaps(lost["resets"], start, stop)]
    others = [*gaps(known, start, stop)]
    steps = [*gaps(lost["step"], start, stop)]
    end = next((row for first, last in others for row, _ in gaps(steps, first, last)), stop)
    found = [_EMPTY]
    for path, spans in (("resets", known), ("step", others)):
        for first, last in spans:
            pieces = chunk_files.filled_rows(log, log.specs[path], first, min(last, end))
            found += [np.flatnonzero(values == 1) + row * n for row, values in pieces]
    return np.sort(np.concatenate(found))


def ends_of(row: int, step: Ids, ends: Mask, *, is_open: bool) -> tuple[Ids, Ids]:
    """(ids, firsts) of the episodes that end in these rows, or may end in the newest open one."""
    over = (step > 0) & ends
    if is_open:
        over[-1] = step[-1] > 0
    entries = np.flatnonzero(over)
    n = step.shape[1]
    ids = row * n + entries
    return ids, ids - (step.reshape(-1)[entries] - 1) * n


def meant(values: Ids, ends: Ids) -> Ids:
    """Which of the ends, or of their first steps, each value is; -1 if none."""
    order = np.append(ends.argsort(kind="stable"), -1)
    out: Ids = order[ends.searchsorted(values, sorter=order[:-1])]
    out[np.append(ends, -1)[out] != values] = -1
    return out
