"""Which transitions of a lane are sound, given what `verify` found.

Invariant: a row with a finding is not read and does not count as sound.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MmreplayError
from mmreplay.format.layout import FINALS, ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.copy_lane import is_intact
from mmreplay.maintenance.verify.chunks import NO_CHECKSUM, WRONG_CHECKSUM
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.rules import NO_FINAL
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage import chunk_files

__all__ = ["INDEX", "Damage", "Known", "Look", "Mask", "Span", "gaps", "merged"]

INDEX = ("id", "first")
"""Arrays of the final observations that follow from the steps."""

Span = tuple[int, int]
"""Rows [start, stop)."""
Mask = npt.NDArray[np.bool_]

_BLOCK_ENTRIES = 1 << 16
_ALL = -1


class Known(NamedTuple):
    """Final observations whose steps are known, (n,) each.

    `ids` are the last steps of their episodes, ascending; `places` their rows; `sound` whether they
    can be read.
    """

    places: Ids
    ids: Ids
    sound: Mask


class Look(NamedTuple):
    """`step`, `ends` and which transitions are sound, (rows, n) each.

    A transition is sound if it and the observation after it can be read.
    """

    step: Array
    ends: Mask
    sound: Mask


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in ascending order; adjacent ones are joined."""
    out: list[Span] = []
    for start, stop in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        elif start < stop:
            out.append((start, stop))
    return out


def gaps(spans: Iterable[Span], start: int, stop: int) -> Iterator[Span]:
    """The gaps between spans, within [start, stop)."""
    for first, last in merged(spans):
        if start < min(first, stop):
            yield start, min(first, stop)
        start = max(start, last)
    if start < stop:
        yield start, stop


class Damage:
    """The damage to one lane.

    Args:
        reader: the lane.
        findings: about it.
        lost: rows of final observations whose `id` is unknown.

    Attributes:
        wrong_sums: (array, chunk file) of sound files whose checksum is damaged or missing.
        index: (path, rows) of damaged parts of `INDEX`.
    """

    def __init__(
        self, reader: LaneReader, findings: Iterable[Finding], lost: Sequence[Span] = ()
    ) -> None:
        self.reader = reader
        self.wrong_sums: set[tuple[str, int]] = set()
        self.index: list[tuple[str, Span]] = []
        self._lost_finals: list[Span] = []
        self._spans: list[tuple[int, int, int, str]] = []
        for finding in findings:
            self._take(finding)
        self._unknown = [*lost]
        if lost and not reader.is_closed and reader.head:
            # Of the newest row, only these tell what its pending observations are of.
            self._spans.append((reader.head - 1, reader.head, _ALL, "ends"))

    def _take(self, finding: Finding) -> None:
        log, path = self._place(finding)
        spec = log.specs.get(path)
        if spec is None or finding.rows is None:
            return  # priorities and checksums are made again
        chunk = finding.rows[0] // spec.chunk_rows
        if finding.message in {NO_CHECKSUM, WRONG_CHECKSUM}:
            self.wrong_sums.add((finding.array, chunk))
        elif finding.message.startswith(NO_FINAL) or self._has_sum(log, spec, chunk):
            pass  # the steps are sound; or the rows, and not what lies past them
        elif log is self.reader.finals and path in INDEX:
            self.index.append((path, (max(finding.rows[0], log.base), finding.rows[1])))
        else:
            self._mark(finding)

    def _place(self, finding: Finding) -> tuple[LogReader, str]:
        """The log of the finding's array, and the array's path there."""
        path = finding.array.removeprefix(f"{FINALS}/")
        return self.reader.rows if path == finding.array else self.reader.finals, path

    def mark_damaged(self, finding: Finding, below: Span) -> bool:
        """Mark the rows of a finding about the copy of this lane as damaged.

        `below` are the rows of steps and of final observations that the copy has unchanged. Returns
        False if the finding is not about these, or not new.
        """
        log, path = self._place(finding)
        same = below[log is self.reader.finals]
        if finding.rows is None or path not in log.specs or finding.rows[0] >= same:
            return False
        return self._mark(finding)

    def _mark(self, finding: Finding) -> bool:
        """Mark the rows of a finding; False if they were marked."""
        log, path = self._place(finding)
        first, last = finding.rows or (0, 0)
        if last <= log.base:  # evicted rows: the rest of their shard cannot be shared either
            last = (first // log.specs[path].chunk_rows + 1) * log.specs[path].chunk_rows
        span = max(first, log.base), min(last, log.head)
        known = len(self._spans), len(self._lost_finals)
        if log is self.reader.finals:
            self._lost_finals += [span] * (span not in self._lost_finals)
            vars(self).pop("finals", None)
        else:
            environment = _ALL if finding.environment is None else finding.environment
            entry = (*span, environment, path)
            self._spans += [entry] * (entry not in self._spans)
            vars(self).pop("_limits", None)
        return (len(self._spans), len(self._lost_finals)) != known

    @staticmethod
    def _has_sum(log: LogReader, spec: ArraySpec, chunk: int) -> bool:
        """Whether only bytes after the rows of the last chunk file are damaged."""
        if not spec.is_raw or not log.is_closed or (chunk + 1) * spec.chunk_rows <= log.head:
            return False
        try:
            return is_intact(log, spec, chunk)
        except (MmreplayError, OSError):
            return False

    # ------------------------------------------------------------ rows

    @property
    def rows(self) -> list[Span]:
        """The rows with damage to any environment."""
        return merged((start, stop) for start, stop, *_ in self._spans)

    def stretches(self, start: int, stop: int, path: str = "") -> Iterator[Span]:
        """Rows of [start, stop) that are sound but for frames of some environments.

        With a `path`, rows in which this array is sound.
        """
        whole = ((a, b) for a, b, env, of in self._spans if env == _ALL and path in ("", of))
        return gaps(whole, start, stop)

    def blocks(
        self, start: int, stop: int, path: str = "", entries: int = _BLOCK_ENTRIES
    ) -> Iterator[Span]:
        """The same in pieces of about this many entries."""
        size = max(entries // self.reader.n, 1)
        for low, high in self.stretches(start, stop, path):
            yield from ((row, min(row + size, high)) for row in range(low, high, size))

    @functools.cached_property
    def _limits(self) -> tuple[Ids, Ids]:
        starts, stops = np.array([span[:2] for span in self._spans], np.int64).reshape(-1, 2).T
        return starts, stops

    def _hits(self, start: int, stop: int, *, frames: bool) -> Mask:
        """The damaged entries of rows [start, stop), (rows, n); with `frames` only frames."""
        starts, stops = self._limits
        out = np.zeros((stop - start, self.reader.n), np.bool_)
        for place in np.flatnonzero((starts < stop) & (stops > start)).tolist():
            first, last, environment, path = self._spans[place]
            if path.startswith("frames") or not frames:
                where = slice(None) if environment == _ALL else environment
                out[max(first - start, 0) : last - start, where] = True
        return out

    def read(self, path: str, start: int, stop: int) -> Array:
        """Rows of a stretch of an array of numbers of the steps, (rows, n)."""
        rows = self.reader.rows
        found = chunk_files.read_rows(rows, rows.specs[path], start, stop)
        return found.reshape(stop - start, self.reader.n)

    def look(self, start: int, stop: int) -> Look:
        """The transitions in rows [start, stop) of a stretch."""
        reader, n = self.reader, self.reader.n
        step, ends = self.read("step", start, stop), self.read("ends", start, stop) != 0
        places = self.finals.ids.searchsorted((start * n, stop * n))
        ids, final = self.finals.ids[slice(*places)], self.finals.sound[slice(*places)]
        if not reader.is_closed and stop == reader.head:
            ends[-1] = False
            ends[-1, ids[ids >= (stop - 1) * n] % n] = True
        has_final = np.zeros(ends.size, np.bool_)
        has_final[ids[final] - start * n] = True
        goes_on = ~self._hits(start + 1, stop + 1, frames=True)
        sound = np.where(ends, has_final.reshape(ends.shape), goes_on)
        sound &= (step > 0) & ~self._hits(start, stop, frames=False)
        return Look(step, ends, sound)

    # ------------------------------------------------------------ final observations

    @functools.cached_property
    def finals(self) -> Known:
        """The final observations of steps that are kept."""
        log, n = self.reader.finals, self.reader.n
        places, ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start, stop in gaps(self._unknown, log.base, log.head):
            # Metadata may speak of any number of them: holes are left out.
            for row, values in chunk_files.filled_rows(log, log.specs["id"], start, stop):
                places.append(np.arange(row, row + len(values)))
                ids.append(values.copy())
        at, of = np.concatenate(places), np.concatenate(ids)
        order = np.argsort(of, kind="stable")
        low, high = of[order].searchsorted((self.reader.base * n, self.reader.head * n)).tolist()
        at, of = at[order[low:high]], of[order[low:high]]
        sound = np.ones(at.size, np.bool_)
        for start, stop in self._lost_finals:
            sound &= (at < start) | (at >= stop)
        return Known(at, of, sound)

    # ------------------------------------------------------------ what can be kept

    def sound_prefix(self) -> int:
        """The row before which every transition is sound."""
        base, head = self.reader.base, self.reader.head
        stop = min((start for start, _ in self.rows), default=head)
        # The row before lacks what came after, if the frames are damaged.
        start = max(stop - 1, base) if self.finals.sound.all() and not self._unknown else base
        for low, high in self.blocks(start, stop):
            found = self.look(low, high)
            lost = ((found.step > 0) & ~found.sound).any(1)
            if lost.any():
                stop = low + int(lost.argmax())
                break
        if base < stop < head and self._hits(stop, stop + 1, frames=True).any():
            newest = self.look(stop - 1, stop)
            # What is copied ends with a row of which all that came after is sound.
            stop -= bool((newest.sound & ~newest.ends).any())
        return stop

    def n_sound(self, start: int) -> int:
        """Number of sound transitions from a row on."""
        blocks = self.blocks(start, self.reader.head)
        return sum(int(np.count_nonzero(self.look(*rows).sound)) for rows in blocks)

    def n_there(self, start: int) -> int:
        """Number of transitions from a row on; where `step` is lost, all entries count."""
        n_entries = max(self.reader.head - start, 0) * self.reader.n
        blocks = self.blocks(start, self.reader.head, "step")
        return n_entries - sum(int((self.read("step", *rows) <= 0).sum()) for rows in blocks)
