"""The chunk files of all arrays of one lane: those of rows, checksums, index and priorities.

Invariant: what is found counts only if it is still so when the file is read again (`Watch`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from mmreplay.errors import MmreplayError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array, Ids
from mmreplay.maintenance.verify import row_rules
from mmreplay.maintenance.verify.chunk_files import ChunkReader
from mmreplay.maintenance.verify.metadata import Arrays
from mmreplay.maintenance.verify.report import Finding, reason
from mmreplay.maintenance.verify.row_rules import Problem, Rows
from mmreplay.maintenance.verify.second_look import Watch
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import chunk_path
from mmreplay.system import checked_reads

_FEW = 16  # missing files that each have a finding
_MISSING = Problem("expected this chunk file, found none")


class ArrayFiles:
    """Checks the chunk files of one lane, an array at a time; each adds to what `rows` knows."""

    def __init__(
        self, watch: Watch, arrays: Arrays, rows: Rows, chunks: ChunkReader, state: str
    ) -> None:
        self._watch, self._arrays, self._rows = watch, arrays, rows
        self._chunks, self._state = chunks, state

    # ------------------------------------------------------------ columns

    def check_column(self, spec: ArraySpec) -> None:
        """The chunk files of a column, and their checksums; the reset bits come first."""
        watch, rows = self._watch, self._rows
        before = len(watch.findings)
        rows.last_flag, rows.n_odd = None, 0
        kept = self._rows.chunks(spec, rows.head if spec.is_raw else self._chunks.in_shards)
        for chunk in self._chunks_to_read(spec, kept):
            known = watch.confirm(partial(self._check_chunk, spec, chunk))
            if known is not None:
                rows.starts, rows.last_flag = known.starts, known.last_flag
                rows.n_odd, rows.first_odd = known.n_odd, known.first_odd
        for chunk in self._chunks.without_checksum():
            file = f"{spec.path}/{spec.key(chunk)}"
            text = "has no checksum: only its inner chunks could be checked"
            watch.warnings.append(watch.finding(file, text, spec.path))
        if rows.n_odd:
            text = (
                f"NaN or infinite values: {rows.n_odd:,}, the first in row {rows.first_odd:,}; "
                f"stored as they came"
            )
            watch.warnings.append(watch.finding(spec.path, text, spec.path))
        if spec.path == "resets" and len(watch.findings) > before:
            rows.sound = False
        if self._state != "live" and spec.path in self._arrays.sums:
            self._check_sums(spec)

    def _chunks_to_read(self, spec: ArraySpec, kept: range) -> Iterator[int]:
        """The chunk files among `kept` that exist, and those missing if they are not many.

        Metadata may speak of any number of rows; the others make one finding for each gap.
        """
        existing = [chunk for chunk in self._existing(spec) if chunk in kept]
        for before, chunk in itertools.pairwise([kept.start - 1, *existing, kept.stop]):
            gap = range(before + 1, chunk)
            if len(gap) > _FEW:
                self._watch.confirm(partial(self._check_gap, spec, gap))
            else:
                yield from gap
            if chunk < kept.stop:
                yield chunk

    def _existing(self, spec: ArraySpec) -> list[int]:
        """The chunk files of an array that exist."""
        try:
            return chunk_files.chunk_files(self._watch.path, spec)
        except OSError:
            return []  # a finding of its own

    def _check_gap(self, spec: ArraySpec, gap: range) -> tuple[list[Finding], None]:
        """That there is still none of these chunk files."""
        stop = min(gap.stop * spec.chunk_rows, self._rows.head)
        if self._watch.evicted(stop):
            self._rows.base = max(self._rows.base, stop)
            return [], None
        rows = (max(gap.start * spec.chunk_rows, self._rows.base), stop)
        text = f"expected this chunk file and {len(gap) - 1:,} after it, found none"
        return [
            self._watch.finding(f"{spec.path}/{spec.key(gap.start)}", text, spec.path, rows)
        ], None

    def _check_chunk(self, spec: ArraySpec, chunk: int) -> tuple[list[Finding], Rows | None]:
        """What is wrong with a chunk file, and what is known after it."""
        stop = (chunk + 1) * spec.chunk_rows
        known: Rows | None = None
        try:
            if spec.is_raw:
                problems, known = self._chunks.raw(spec, chunk, self._rows)
            else:
                problems, known = self._chunks.shard(spec, chunk, self._rows)
        except FileNotFoundError:
            if self._watch.evicted(stop):
                self._rows.base = max(self._rows.base, stop)
                return [], None
            problems = [_MISSING]
        except (MmreplayError, OSError) as error:
            problems = [self._unreadable(spec, chunk, error)]
        return self._row_findings(spec, chunk, problems), known

    def _unreadable(self, spec: ArraySpec, chunk: int, error: Exception) -> Problem:
        """What an error says of a chunk file."""
        return Problem(reason(error, chunk_path(self._watch.path, spec, chunk)))

    def _row_findings(
        self, spec: ArraySpec, chunk: int, problems: Iterable[Problem]
    ) -> list[Finding]:
        """Findings about rows of a chunk file: about all of them, if a problem names none."""
        start = chunk * spec.chunk_rows
        whole = (max(start, self._rows.base), min(start + spec.chunk_rows, self._rows.head))
        file = f"{spec.path}/{spec.key(chunk)}"
        return [
            self._watch.finding(file, problem.message, spec.path, problem.rows or whole)
            for problem in problems
        ]

    # ------------------------------------------------------------ checksums and index

    def _check_sums(self, spec: ArraySpec) -> None:
        """Past the last checksum of a closed lane lie zeros; an open one may have more."""
        sums = self._arrays.sums[spec.path]
        n_chunks = -(-self._rows.head // spec.chunk_rows)
        for file in self._existing(sums):
            n_here = n_chunks - file * sums.chunk_rows if self._watch.closed else sums.chunk_rows
            if n_here <= 0:
                continue  # it does not belong there: a finding of its own
            if not self._watch.closed and self._is_empty(sums, file):
                continue  # a power cut leaves the name of a file whose length was not durable yet
            # A file that is not there is named for each chunk file that has no checksum then.
            read = partial(self._entries, sums, file, n_here, "checksums", missing_ok=True)
            self._watch.confirm(read)

    def _is_empty(self, spec: ArraySpec, file: int) -> bool:
        """Whether a file is short, and nothing was stored in it."""
        path = chunk_path(self._watch.path, spec, file)
        try:
            data = checked_reads.read_bytes(path, spec.chunk_bytes)
            return len(data) < spec.chunk_bytes and not any(data)
        except (MmreplayError, OSError):
            return False  # a finding of its own

    def check_index(self) -> None:
        """``episodes/starts`` holds the rows with a reset."""
        if self._arrays.starts is None:
            return
        spec, count = self._arrays.starts
        parts = [np.empty(0, np.int64)]
        for file in range(-(-count // spec.chunk_rows)):
            n_here = count - file * spec.chunk_rows
            part = self._watch.confirm(partial(self._entries, spec, file, n_here, "entries"))
            if part is None:
                return
            parts.append(part.astype(np.int64))
        stored: Ids = np.concatenate(parts)
        self._watch.note(
            [
                self._watch.finding(spec.path, problem.message, spec.path)
                for problem in row_rules.check_index(stored, self._rows)
            ]
        )

    def _entries(
        self, spec: ArraySpec, file: int, n_entries: int, what: str, *, missing_ok: bool = False
    ) -> tuple[list[Finding], Array | None]:
        """The entries in a chunk file of an array that holds no rows; past them lie zeros."""
        data: Array | None = None
        problems: list[Problem] = []
        try:
            whole = self._chunks.whole(spec, file)
            data = whole.view(spec.dtype)[:n_entries]
            problems = row_rules.zero_past(whole[data.nbytes :], n_entries, what)
        except FileNotFoundError:
            if not missing_ok:
                problems = [_MISSING]
        except (MmreplayError, OSError) as error:
            problems = [self._unreadable(spec, file, error)]
        name = f"{spec.path}/{spec.key(file)}"
        return [self._watch.finding(name, problem.message, spec.path) for problem in problems], data

    def check_priorities(self) -> None:
        """Priorities are finite and not negative; rows may have none, and files may be missing."""
        if self._arrays.priorities is None or self._state == "live":
            return  # they change all the time
        spec = self._arrays.priorities
        kept = self._rows.chunks(spec, self._rows.head)
        expected = set(self._existing(spec)) | self._with_checksums(spec)
        for chunk in sorted(chunk for chunk in expected if chunk in kept):
            self._watch.confirm(partial(self._check_priority_chunk, spec, chunk))
        if spec.path in self._arrays.sums:
            self._check_sums(spec)

    def _is_short(self, spec: ArraySpec, chunk: int) -> bool:
        """Whether a raw chunk file has fewer bytes than it should."""
        path = chunk_path(self._watch.path, spec, chunk)
        return checked_reads.regular_size(path, spec.chunk_bytes) < spec.chunk_bytes

    def _with_checksums(self, spec: ArraySpec) -> set[int]:
        """The chunks that existing files of checksums have room for."""
        sums = self._arrays.sums.get(spec.path)
        if sums is None:
            return set()
        starts = (file * sums.chunk_rows for file in self._existing(sums))
        return {chunk for start in starts for chunk in range(start, start + sums.chunk_rows)}

    def _check_priority_chunk(self, spec: ArraySpec, chunk: int) -> tuple[list[Finding], None]:
        """What is wrong with a chunk file of priorities."""
        problems: list[Problem] = []
        try:
            if not self._watch.closed and self._is_short(spec, chunk):
                return [], None  # its maker died before it had its blocks; the next one goes on
            problems, _ = self._chunks.raw(spec, chunk, self._rows)
            values = self._chunks.whole(spec, chunk).view(spec.dtype)
            wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
            if wrong.size:
                n_cells = values.size // spec.chunk_rows  # of a row
                row, value = chunk * spec.chunk_rows + int(wrong[0]) // n_cells, values[wrong[0]]
                text = f"expected finite priorities of 0 or more, found {value}"
                problems.append(Problem(text, (row, row + 1)))
        except FileNotFoundError:
            if self._chunks.checksum(spec, chunk):
                problems = [_MISSING]
        except (MmreplayError, OSError) as error:
            problems = [self._unreadable(spec, chunk, error)]
        return self._row_findings(spec, chunk, problems), None
