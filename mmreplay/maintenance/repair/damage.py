"""Which rows of a lane are sound, given what `verify` found.

Invariant: a row with a finding, or without the final observation of an episode that ended with it,
is not kept.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mmreplay.format.layout import FINALS, checksum_spec
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.verify.chunks import NO_CHECKSUM, PAST_THE_END, WRONG_CHECKSUM
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.rules import NO_FINAL
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files

INDEX = ("id", "first")
"""Arrays of the final observations that follow from the steps."""

Span = tuple[int, int]
"""Rows [start, stop)."""

_BLOCK_ROWS = 1 << 16


def _merged(spans: Iterable[Span]) -> list[Span]:
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
    for first, last in _merged(spans):
        if start < min(first, stop):
            yield start, min(first, stop)
        start = max(start, last)
    if start < stop:
        yield start, stop


def blocks(spans: Iterable[Span], size: int) -> Iterator[Span]:
    """The same rows, at most `size` at a time."""
    for start, stop in spans:
        yield from ((row, min(row + size, stop)) for row in range(start, stop, size))


class Damage:
    """The damage to one lane; `unknown` are rows of final observations whose `id` is unknown.

    Attributes:
        wrong_sums: (array, chunk file) of sound files whose checksum is damaged or missing.
        lost_values: (array, chunk file) of damaged values that cost no row: of columns that may
            change, and of fields of episodes.
        index: (path, rows) of damaged parts of `INDEX`.
    """

    def __init__(
        self, reader: LaneReader, findings: Iterable[Finding], unknown: Sequence[Span] = ()
    ) -> None:
        self.reader = reader
        self.wrong_sums: set[tuple[str, int]] = set()
        self.lost_values: set[tuple[str, int]] = set()
        self.index: list[tuple[str, Span]] = []
        self._lost_finals: list[Span] = [*unknown]
        self._spans: list[tuple[str, Span]] = []
        for finding in findings:
            self._take(finding)
        if self._lost_finals and not reader.is_closed and reader.head:
            # Only final observations show which episodes ended with the newest row.
            self._spans.append(("ends", (reader.head - 1, reader.head)))

    def _take_sums(self, file: str) -> None:
        """If a file of checksums is damaged as a whole, none of them counts."""
        for log, prefix in ((self.reader.rows, ""), (self.reader.finals, f"{FINALS}/")):
            for path, spec in log.specs.items():
                sums, n_chunks = checksum_spec(path), -(-log.head // spec.chunk_rows)
                for start in range(0, n_chunks, sums.chunk_rows):
                    if file == f"{prefix}{sums.path}/{sums.key(start // sums.chunk_rows)}":
                        stop = min(start + sums.chunk_rows, n_chunks)
                        self.wrong_sums |= {(prefix + path, n) for n in range(start, stop)}

    def _take(self, finding: Finding) -> None:
        of_episodes = self.reader.document.episodes.get(finding.array)
        if of_episodes is not None and finding.rows is not None:
            if not finding.message.startswith((PAST_THE_END, NO_CHECKSUM, WRONG_CHECKSUM)):
                first, last = finding.rows[0], max(finding.rows[1] - 1, finding.rows[0])
                size = of_episodes.chunk_rows
                chunks = range(first // size, last // size + 1)
                self.lost_values |= {(finding.array, chunk) for chunk in chunks}
            return
        path = finding.array.removeprefix(f"{FINALS}/")
        log = self.reader.rows if path == finding.array else self.reader.finals
        spec = log.specs.get(path)
        if spec is None or finding.rows is None:
            self._take_sums(finding.file.removeprefix(f"{finding.lane}/"))
            return  # priorities and checksums are made again
        if finding.message.startswith((PAST_THE_END, NO_FINAL)):
            return  # the rows are sound; `lost` finds missing final observations
        first, last = finding.rows
        if finding.message in {NO_CHECKSUM, WRONG_CHECKSUM}:
            self.wrong_sums.add((finding.array, first // spec.chunk_rows))
        elif spec.may_change:
            chunks = range(first // spec.chunk_rows, -(-last // spec.chunk_rows))
            self.lost_values |= {(path, chunk) for chunk in chunks}
        elif log is self.reader.finals and path in INDEX:
            self.index.append((path, (max(first, log.base), last)))
        else:
            if last <= log.base:  # evicted rows: the rest of their shard cannot be shared either
                last = (first // spec.chunk_rows + 1) * spec.chunk_rows
            span = max(first, log.base), min(last, log.head)
            if log is self.reader.finals:
                self._lost_finals.append(span)
            else:
                self._spans.append((path, span))

    def found(self, *paths: str) -> list[Span]:
        """The rows with a finding, about one of these arrays if any is given."""
        return _merged(span for path, span in self._spans if not paths or path in paths)

    def read(self, path: str, start: int, stop: int) -> Array:
        """Rows of an array of numbers of the steps, (rows, n)."""
        rows = self.reader.rows
        found = chunk_files.read_rows(rows, rows.specs[path], start, stop)
        return found.reshape(stop - start, self.reader.n)

    @property
    def n_finals(self) -> int:
        """The final observations before the first damaged one, evicted ones included."""
        return min((start for start, _ in self._lost_finals), default=self.reader.finals.head)

    @functools.cached_property
    def finals(self) -> tuple[Ids, Ids]:
        """(rows, ids) of the sound final observations of kept steps, by ascending id."""
        log, n = self.reader.finals, self.reader.n
        places, ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start, stop in gaps(self._lost_finals, log.base, log.head):
            # Metadata may name any number of them: holes are left out.
            for row, values in chunk_files.filled_rows(log, log.specs["id"], start, stop):
                places.append(np.arange(row, row + len(values)))
                ids.append(values.copy())
        at, of = np.concatenate(places), np.concatenate(ids)
        order = np.argsort(of, kind="stable")
        low, high = of[order].searchsorted((self.reader.base * n, self.reader.head * n)).tolist()
        return at[order[low:high]], of[order[low:high]]

    def fields_of(self, firsts: Ids) -> dict[str, Array]:
        """The fields of episodes by the entries of their first steps, (k, ...) as stored, by path.

        0 where they are lost, or where it is not known which they are: without an unbroken row of
        `resets` or `step` from the oldest row on.
        """
        begins, before = self._begins
        numbers = begins.searchsorted(firsts) + before
        known = np.append(begins, -1)[numbers - before] == firsts
        out = {}
        for path, spec in self.reader.document.episodes.items():
            rows = out[path] = np.zeros((firsts.size, *spec.row_shape), spec.dtype)
            for place in known.nonzero()[0].tolist():
                number = int(numbers[place])
                if (path, number // spec.chunk_rows) not in self.lost_values:
                    one = chunk_files.read_rows(self.reader.rows, spec, number, number + 1)
                    rows[place] = one[0]
        return out

    @functools.cached_property
    def _begins(self) -> tuple[Ids, int]:
        """The entries in which episodes begin, as far as that is known, and the first's number."""
        reader, damaged, found = self.reader, self.found("resets"), [np.empty(0, np.int64)]
        lost = next((a for a, b in damaged for c, d in self.found("step") if a < d and c < b), None)
        row, before = reader.begun_before()
        for start, stop in blocks([(reader.base, reader.head if lost is None else lost)], 1 << 16):
            is_lost = any(a < stop and start < b for a, b in damaged)
            begins = (
                self.read("step", start, stop) == 1 if is_lost else self.read("resets", start, stop)
            )
            found.append(np.flatnonzero(begins) + start * reader.n)
        entries = np.concatenate(found)
        return entries, before - int(entries.searchsorted(row * reader.n))

    def finals_of(self, start: int, stop: int) -> tuple[Ids, Ids]:
        """(rows, ids) of the sound final observations of steps in rows [start, stop)."""
        n, (places, ids) = self.reader.n, self.finals
        here = slice(*ids.searchsorted((start * n, stop * n)))
        return places[here], ids[here]

    @functools.cached_property
    def lost(self) -> list[Span]:
        """The rows that cannot be kept."""
        reader, out = self.reader, self.found()
        for start, stop in blocks(gaps(self.found(), reader.base, reader.head), _BLOCK_ROWS):
            ended = (self.read("ends", start, stop) != 0) & (self.read("step", start, stop) > 0)
            if stop == reader.head and not reader.is_closed:
                ended[-1] = False  # not all of them are known
            _, ids = self.finals_of(start, stop)
            ended.reshape(-1)[ids - start * reader.n] = False
            out += [(row, row + 1) for row in (start + np.flatnonzero(ended.any(1))).tolist()]
        return _merged(out)

    def stretches(self) -> Iterator[Span]:
        """The rows that can be kept; if an episode runs on, with the sound frames after them."""
        base, head = self.reader.base, self.reader.head
        frames = self.found(*self.reader.schema.frame_paths.values())
        for start, stop in gaps(self.lost, base, head):
            if any(first <= stop < last for first, last in frames) and self.runs(stop - 1):
                stop -= 1  # noqa: PLW2901 (one row less)
            if start < stop:
                yield start, stop

    def runs(self, row: int) -> bool:
        """Whether any episode continues after a row."""
        step, ends = self.read("step", row, row + 1), self.read("ends", row, row + 1)
        return bool(((step > 0) & (ends == 0)).any())

    def n_transitions(self, spans: Iterable[Span]) -> int:
        """The number of transitions in these rows; where `step` is lost, all entries count."""
        n, lost = self.reader.n, self.found("step")
        total = 0
        for span in spans:
            total += max(span[1] - span[0], 0) * n
            for rows in blocks(gaps(lost, *span), _BLOCK_ROWS):
                total -= int((self.read("step", *rows) <= 0).sum())
        return total
