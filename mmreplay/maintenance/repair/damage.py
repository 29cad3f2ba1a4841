"""Opens a damaged lane, and says which of its rows are sound, given what `verify` found.

Invariant: a row with a finding, or without the final observation of an episode that ended with it,
is not kept. Two of three say which final observation is whose: `finals/id`, `finals/first`, and the
order of the ends in sound rows.
"""

from __future__ import annotations

import bisect
import collections
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mmreplay.episode_index import floor_row
from mmreplay.errors import CorruptStoreError, FormatError, StoreNotFoundError
from mmreplay.format import parse
from mmreplay.format.layout import FINALS
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.verify import rules
from mmreplay.maintenance.verify.documents import OWN_DIGEST, root_problems
from mmreplay.maintenance.verify.lane import Examination
from mmreplay.maintenance.verify.report import ByteCount, Finding, Span, gaps, merged
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.lane_metadata import read_document, read_lane
from mmreplay.system.held_directories import AnyPath

_BLOCK_ROWS = 1 << 16
_EMPTY = np.empty(0, np.int64)
_DAMAGED = -2  # what an array of the index names where it cannot be read


def open_damaged(root: AnyPath, lane: AnyPath, findings: Sequence[Finding]) -> Damage:
    """Open a lane without what is damaged of its documents; CorruptStoreError if impossible."""
    read_own(lane)
    opened: list[tuple[int, Damage]] = []
    text, is_copy = "", any(finding.message.startswith("name:") for finding in findings)
    # Where a document and its consolidated copy differ, the one that fits the rows is right.
    for copy_first in (False, True):
        if copy_first:
            if not any(one.file.endswith("zarr.json") for one in findings):
                break
            examination = Examination(root, lane, ByteCount(None, lane), copy_first=True)
            examination.run()
            findings = examination.findings
        try:
            document = read_lane(lane, own_documents=not copy_first)
            if is_copy:  # another lane has the name
                document.metadata.pop("name", None)
            damage = Damage(LaneReader(lane, given=document, mends=True), findings)
        except (CorruptStoreError, FormatError) as error:
            text = str(error).removeprefix(f"{lane}: ")
        else:
            opened.append((len(findings), damage))
    if not opened:
        raise _refusal(lane, text)
    return min(opened, key=lambda one: one[0])[1]


def _refusal(path: AnyPath, text: str) -> CorruptStoreError:
    return CorruptStoreError(
        f"{path}: cannot be repaired: {text}; put what is lost or damaged back from a backup or a "
        f"snapshot, and repair again, or pack what can still be opened (`mmreplay pack`)"
    )


def read_own(path: AnyPath) -> dict[str, Any]:
    """Attributes of a store or lane; CorruptStoreError if damaged, FormatError if foreign."""
    where = str(path / "zarr.json")
    document: dict[str, Any] = {}
    try:
        data = read_document(path)
        document = parse.parse_json(data, where)
        own = parse.root_attributes(document, where)
    except (CorruptStoreError, FormatError, StoreNotFoundError) as error:
        if parse.is_of_another_format(document):
            raise
        text = str(error).removeprefix(f"{where}: ").removeprefix(f"{path}: ")
    else:
        text = next((one for one in root_problems(data) if one.startswith(OWN_DIGEST)), "")
        if not text:
            return own
    raise _refusal(path, f"zarr.json: {text}")


def blocks(spans: Iterable[Span], size: int = _BLOCK_ROWS) -> Iterator[Span]:
    """The same rows, at most `size` at a time."""
    for start, stop in spans:
        yield from ((row, min(row + size, stop)) for row in range(start, stop, size))


class Damage:
    """The damage to one lane.

    Attributes:
        remade: (array, chunk file) of files that are damaged elsewhere than in rows that can be
            kept: in their checksum, or, of shards, in other rows; of lost values that cost no row:
            of columns that may change, and of fields of episodes.
        finals: (rows of the log, ids, firsts) of the sound final observations of sound rows, by id.
    """

    def __init__(self, reader: LaneReader, findings: Iterable[Finding]) -> None:
        self.reader = reader
        self.remade: set[tuple[str, int]] = set()
        self._spans = collections.defaultdict[str, list[Span]](list)
        for finding in findings:
            self._take(finding)
        self.finals, self._lacking = self._match()

    def _take(self, finding: Finding) -> None:
        path = finding.array.removeprefix(f"{FINALS}/")
        log = self.reader.rows if path == finding.array else self.reader.finals
        spec = log.specs.get(path)
        values = self.reader.document.episodes.get(finding.array)
        if spec is not None and spec.may_change:
            values = spec
        if values is not None:
            if finding.is_of_rows and finding.rows is not None:
                size, (start, stop) = values.chunk_rows, finding.rows
                self.remade |= {(finding.array, n) for n in range(start // size, -(-stop // size))}
            return
        # Priorities and checksums are made again, and `_match` finds what the index lacks.
        made_again = finding.message.startswith((rules.NO_FINAL, rules.NO_END, rules.FIRST))
        if spec is None or finding.rows is None or made_again:
            return
        start, stop = finding.rows
        if not (finding.is_of_rows and spec.is_raw):
            self.remade.add((finding.array, start // spec.chunk_rows))
        if finding.is_of_rows and stop > log.base:
            # Whether an episode ended is also said by the row after, and that one began by `step`.
            stop += finding.message.startswith(rules.END) and stop < log.head
            for array in (finding.array, *[rules.RESET] * finding.message.startswith(rules.RESET)):
                self._spans[array].append((max(start, log.base), stop))

    def found(self, *paths: str) -> list[Span]:
        """The rows of some arrays with a finding, by default of all arrays of the steps."""
        arrays = paths or self.reader.rows.specs
        return merged(span for path in arrays for span in self._spans[path])

    def read(self, path: str, start: int, stop: int) -> Array:
        """Rows of an array of numbers of the steps, (rows, n)."""
        rows = self.reader.rows
        found = chunk_files.read_rows(rows, rows.specs[path], start, stop)
        return found.reshape(stop - start, self.reader.n)

    def runs(self, row: int) -> bool:
        """Whether any episode continues after a sound row."""
        n_steps = np.count_nonzero(self.read("step", row, row + 1) > 0)
        return bool(n_steps > self.finals_of(row, row + 1).shape[1])

    def n_transitions(self, spans: Iterable[Span]) -> int:
        """The number of transitions in these rows; where `step` is lost, all entries count."""
        n, lost = self.reader.n, self.found("step")
        total = 0
        for span in spans:
            total += max(span[1] - span[0], 0) * n
            for rows in blocks(gaps(lost, *span)):
                total -= int((self.read("step", *rows) <= 0).sum())
        return total

    def first(self) -> int:
        """The oldest row that could be sampled."""
        own, head = self.reader.metadata, self.reader.head
        first, capacity = max(own["first"], floor_row(self.reader.base)), own["capacity"]
        if self.reader.is_closed or capacity is None:
            return int(first)
        rows = range(max(first, head - capacity), head)
        return rows.start + bisect.bisect_left(
            rows, -capacity, key=lambda row: -self.n_transitions([(row, head)])
        )

    def _ends(self, stretches: Iterable[Span]) -> tuple[Ids, Ids]:
        """(ids, firsts) of the episodes that end in these rows, by id; see `rules.ends_of`."""
        reader, found = self.reader, [(_EMPTY, _EMPTY)]
        for start, stop in blocks(stretches):
            step, ends = self.read("step", start, stop), self.read("ends", start, stop) != 0
            is_open = stop == reader.head and not reader.is_closed
            found.append(rules.ends_of(start, step, ends, is_open=is_open))
        ids, firsts = map(np.concatenate, zip(*found, strict=True))
        return ids, firsts

    def _stored(self, path: str, ends: Ids) -> tuple[Ids, Ids, Ids]:
        """(rows, values, which ends they name) of what can be read of an array of the index."""
        log, found = self.reader.finals, [(_EMPTY, _EMPTY)]
        for start, stop in gaps(self._spans[f"{FINALS}/{path}"], log.base, log.head):
            # Metadata may name any number of them: holes are left out.
            for row, values in chunk_files.filled_rows(log, log.specs[path], start, stop):
                found.append((np.arange(row, row + len(values)), values.copy()))
        rows, values = map(np.concatenate, zip(*found, strict=True))
        return rows, values, rules.meant(values, ends)

    def finals_of(self, start: int, stop: int) -> Ids:
        """Those of `finals` that are of steps in these rows, (3, m)."""
        n = self.reader.n
        return self.finals[:, slice(*self.finals[1].searchsorted((start * n, stop * n)))]

    def _match(self) -> tuple[Ids, list[Span]]:
        """`finals`, and the rows that may lack one."""
        reader, log, n = self.reader, self.reader.finals, self.reader.n
        stretches = [*gaps(self.found(*rules.SPINE), reader.base, reader.head)]
        ids, firsts = self._ends(stretches)
        by_id, by_first = self._stored("id", ids), self._stored("first", firsts)
        rows = np.union1d(by_id[0], by_first[0])
        said = np.full((2, rows.size), _DAMAGED)
        for one, (of, _, which) in zip(said, (by_id, by_first), strict=True):
            one[rows.searchsorted(of)] = which
        # Nothing else says what ended with the newest row of an open lane: both are needed there.
        known = ids.size if reader.is_closed else int(ids.searchsorted((reader.head - 1) * n))
        same, which = said[0] == said[1], said.max(0)
        which[~same & ((said != _DAMAGED).all(0) | (which >= known))] = -1
        twice = np.bincount(which[which >= 0], minlength=ids.size + 1)[which] > 1
        which[twice] = -1
        places = np.full(ids.size, -1)
        places[which[which >= 0]] = rows[which >= 0]
        for start, stop in stretches:
            low, high = ids[:known].searchsorted((start * n, stop * n))
            least, most = log.base, log.head - int(high - low)
            if start == 0:
                most = 0
            if reader.is_closed and stop == reader.head:
                least = most
            _count(places[low:high], ids[low:high] // n, least, most)
        sound = places >= 0
        frames = (f"{FINALS}/{path}" for path in reader.schema.frame_paths.values())
        for start, stop in self.found(*frames):
            sound &= (places < start) | (places >= stop)
        lacking = ids[~sound & ((places >= 0) | (np.arange(ids.size) < known))] // n
        spans = [(row, row + 1) for row in lacking.tolist()]
        settled = int(places[:known].max(initial=log.base - 1)) + 1
        of, value, _ = by_id  # one past the head is of a step that a power cut took back
        same &= (which >= known) | np.isin(rows, of[(value < reader.head * n) | (not log.is_live)])
        n_said = np.count_nonzero((same & ~twice)[rows >= settled])
        if not reader.is_closed and n_said < log.head - settled:
            spans.append((reader.head - 1, reader.head))
        return np.stack((places, ids, firsts))[:, sound], spans

    def fields_of(self, firsts: Ids) -> dict[str, Array]:
        """The fields of episodes by the entries of their first steps, (k, ...) as stored, by path.

        0 where they are lost, or where it is not known which they are: after a row in which both
        `resets` and `step` are damaged.
        """
        begins, before = self._begins
        numbers = begins.searchsorted(firsts) + before
        known = np.append(begins, -1)[numbers - before] == firsts
        out = {}
        for path, spec in self.reader.document.episodes.items():
            rows = out[path] = np.zeros((firsts.size, *spec.row_shape), spec.dtype)
            for place in known.nonzero()[0].tolist():
                number = int(numbers[place])
                if (path, number // spec.chunk_rows) not in self.remade:
                    one = chunk_files.read_rows(self.reader.rows, spec, number, number + 1)
                    rows[place] = one[0]
        return out

    @functools.cached_property
    def _begins(self) -> tuple[Ids, int]:
        """The entries in which episodes begin, as far as that is known, and the first's number."""
        reader, (row, before) = self.reader, self.reader.begun_before()
        lost = self._spans | {"step": self._spans["step"] + self._spans[rules.RESET]}
        entries = rules.begins_of(reader.rows, reader.n, lost, reader.base, reader.head)
        return entries, before - int(entries.searchsorted(row * reader.n))

    def stretches(self) -> Iterator[Span]:
        """The rows that can be kept; if an episode runs on, with the sound frames after them."""
        base, head = self.reader.base, self.reader.head
        frames = self.found(*self.reader.schema.frame_paths.values())
        for start, stop in gaps([*self.found(), *self._lacking], base, head):
            if any(first <= stop < last for first, last in frames) and self.runs(stop - 1):
                stop -= 1  # noqa: PLW2901 (one row less)
            if start < stop:
                yield start, stop


def _count(places: Ids, rows: Ids, least: int, most: int) -> None:
    """Fill in the places, or -1, of the ends in a stretch of rows; the first is in [least, most].

    They follow each other by row. If those that are known contradict that, none is known; of a row,
    one that is not known follows from the others.
    """
    if not rows.size:
        return
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    row = np.repeat(np.arange(begins.size), np.diff(begins, append=rows.size))
    known = places >= 0
    least = int((places - np.append(begins[1:], rows.size)[row] + 1)[known].max(initial=least))
    most = int((places - begins[row])[known].min(initial=most))
    if least > most:
        places[:] = -1
    elif least == most:
        rest = np.add.reduceat(least + np.arange(rows.size) - np.where(known, places, 0), begins)
        single = ~known & (np.add.reduceat(~known, begins, dtype=np.int64) == 1)[row]
        places[single] = rest[row[single]]
