"""Chunk files: size, checksum, and what is in them.

Invariant: a file is read before it is mapped, so that a bad sector is an error and not the end of
the process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import distinct
from mmreplay.maintenance.verify import row_rules
from mmreplay.maintenance.verify.report import Finding, reason
from mmreplay.maintenance.verify.row_rules import Problem, Rows
from mmreplay.storage import shard_file
from mmreplay.storage.checksums import crc32c_of_file, only, stored_checksum
from mmreplay.storage.chunk_files import byte_ranges, chunk_path, rows_at
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

NO_CHECKSUM = "expected a checksum, as every file of a closed lane has; found 0"
"""Of a chunk file: nothing tells whether it is another, or, if it is raw, damaged."""

WRONG_CHECKSUM = "expected a checksum that fits, found one in which a single bit differs"
"""Of a chunk file that is sound: a bit that flips in it changes many bits of its crc32c."""

ANOTHER = "expected the shard that was written here, found another, or one with a damaged index"
"""Of a shard: what is wrong with single inner chunks does not explain its checksum."""

Bytes = npt.NDArray[np.uint8]

_PIECE_BYTES = 4 << 20
_MOST_PROBLEMS = 8  # of a chunk file

_CRC_BYTES = 4


class ChunkReader:
    """Reads and checks the chunk files of one lane.

    `sums`: the checksum arrays that can be used, by the path of the array that they are for. `read`
    is called with the size of each file. Rows below `in_shards` are in shards.
    """

    def __init__(
        self,
        lane: Path,
        sums: Mapping[str, ArraySpec],
        read: Callable[[int], None],
        in_shards: int,
    ) -> None:
        self._lane, self._sums, self._read = lane, sums, read
        self.in_shards = in_shards
        self._scratch = np.empty(0, np.uint8)
        self._without: list[int] = []

    def whole(self, spec: ArraySpec, chunk: int) -> Bytes:
        """The bytes of a file that must have as many as an uncompressed chunk."""
        path = chunk_path(self._lane, spec, chunk)
        data = checked_reads.read_at(path, 0, spec.chunk_bytes, spec.chunk_bytes)
        self._read(len(data))
        return np.frombuffer(data, np.uint8)

    def without_checksum(self) -> list[int]:
        """The shards read since the last call that have none."""
        out, self._without = self._without, []
        return out

    def raw(self, spec: ArraySpec, chunk: int, rows: Rows) -> tuple[list[Problem], Rows]:
        """A chunk file of an uncompressed column, piece by piece, and what is known after it.

        Its holes are zeros: of these only the rows are looked at to which a rule applies. Raises
        FileNotFoundError, or CorruptStoreError if it has another size or is no regular file.
        """
        expected = self.checksum(spec, chunk)  # before the file: one that is there is final
        if not rows.closed and chunk >= max(rows.head - 1, 0) // spec.chunk_rows:
            expected = None  # of rows that a power cut took back: the newest row changes again
        known, start = dataclasses.replace(rows), chunk * spec.chunk_rows
        found, n_other, end, wrong = 0, 0, 0, list[Problem]()
        n_rows = min(max(rows.head - start, 0), spec.chunk_rows) if rows.closed else spec.chunk_rows
        used = byte_ranges(spec, 0, n_rows)
        has_rules = row_rules.apply_to(spec)
        for offset, data in self._pieces(spec, chunk, known, by_row=has_rules):
            found = compression.crc32c_of_zeros(offset - end, found)
            found = compression.crc32c(data, found)
            end = offset + len(data)
            if n_rows < spec.chunk_rows:
                n_other += _n_filled(data) - _n_filled(only(used, offset, data))
            for first, values in rows_at(spec, offset, data) if has_rules else ():
                if len(wrong) < _MOST_PROBLEMS:
                    wrong += row_rules.check_values(spec, values, start + first, known)
                known.remember(spec.path, values, start + first)
        found = compression.crc32c_of_zeros(spec.chunk_bytes - end, found)
        self._read(spec.chunk_bytes)
        out = _check_sum(found, expected)
        if expected == 0 and rows.closed:
            out.append(Problem(NO_CHECKSUM))
        return out + row_rules.others_past(n_other, rows.head) + wrong, known

    def _pieces(
        self, spec: ArraySpec, chunk: int, known: Rows, *, by_row: bool
    ) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of a raw chunk file, without what of its holes says nothing.

        `by_row`: in pieces of whole rows, or cells, for a rule that is about rows. `known` tells
        with each piece that was taken what is known of its rows.
        """
        size = _PIECE_BYTES
        if by_row:
            row = spec.row_bytes // spec.width
            size = max(_PIECE_BYTES // row, 1) * row
        path, end = chunk_path(self._lane, spec, chunk), 0
        for offset, data in checked_reads.read_filled(path, spec.chunk_bytes, size):
            yield from self._zeros(spec, chunk, range(end, offset, size), known)
            yield offset, data
            end = offset + len(data)
        yield from self._zeros(spec, chunk, range(end, spec.chunk_bytes, size), known)

    @staticmethod
    def _zeros(
        spec: ArraySpec, chunk: int, pieces: range, known: Rows
    ) -> Iterator[tuple[int, bytes]]:
        """Of the pieces of a hole, which begin at these bytes, those that a rule speaks of."""
        if not pieces or spec.path not in {"resets", "non_terminals"}:
            return  # zeros are what the rules for the others ask for
        start = chunk * spec.chunk_rows
        finals = known.finals(start + pieces.start, start + pieces.stop) - start
        edges = [pieces.start, pieces.stop - 1]
        bytes_ = np.clip(np.concatenate((finals - 1, finals, edges)), pieces.start, None)
        for number in distinct((bytes_ - pieces.start) // pieces.step).tolist():
            yield pieces[number], bytes(min(pieces.step, pieces.stop - pieces[number]))

    def shard(self, spec: ArraySpec, chunk: int, rows: Rows) -> tuple[list[Problem], Rows]:
        """A shard: whole, then its index, then each inner chunk; and what is known after it.

        Raises FileNotFoundError, or CorruptStoreError if it is no regular file or its index does
        not fit.
        """
        known, expected = dataclasses.replace(rows), self.checksum(spec, chunk)
        path = chunk_path(self._lane, spec, chunk)
        size = shard_file.file_size(path, spec)
        found = crc32c_of_file(path, size)
        self._read(size)
        out = _check_sum(found, expected)
        if expected == 0 and not rows.closed and chunk not in self._without:
            self._without.append(chunk)
        try:
            shard = shard_file.Shard(path, spec, compression.make_codec(spec.codec or {}))
        except CorruptStoreError as error:
            return [*out, Problem(reason(error, path))], known
        has_sum, out = bool(out), out + _check_digest(shard)
        if expected == 0 and rows.closed:
            out.append(Problem(NO_CHECKSUM))
        inner = self._inner_chunks(shard, spec, chunk, known)
        if has_sum and inner and not _is_explained(path, size, shard, expected):
            out.append(Problem(ANOTHER))
        return out + inner, known

    def _inner_chunks(
        self, shard: shard_file.Shard, spec: ArraySpec, chunk: int, rows: Rows
    ) -> list[Problem]:
        start = chunk * spec.chunk_rows
        wrong: list[Problem] = []
        for number, place in enumerate(shard.slices):
            block, env = divmod(number, spec.width)
            first = start + block * spec.inner_rows
            stop = min(first + spec.inner_rows, self.in_shards)
            if first < self.in_shards:
                # Also those below base: they are kept, and were whole when they were written.
                text = self._inner_chunk(shard, spec, number, first, stop, rows)
            elif rows.closed and place is not None:
                text = "expected none past the last row, found one"
            else:
                continue
            if text and spec.width > 1:
                text += f" (environment {env})"
            if text:
                wrong.append(Problem(f"inner chunk {number}: {text}", (first, stop)))
        return _joined(wrong)

    def _inner_chunk(
        self,
        shard: shard_file.Shard,
        spec: ArraySpec,
        number: int,
        first: int,
        stop: int,
        rows: Rows,
    ) -> str:
        """What is wrong with an inner chunk of rows [first, stop); empty if nothing is."""
        size = spec.inner_bytes
        if self._scratch.size != size:
            self._scratch = np.empty(size, np.uint8)
        try:
            shard.decode(number, self._scratch)
        except CorruptStoreError as error:
            return reason(error).partition(f"inner chunk {number}: ")[2]
        if spec.dtype == np.bool_ and self._scratch.max() > 1:
            return "bools: expected 0 or 1, found other values"
        filled = (stop - first) * size // spec.inner_rows
        if rows.closed and self._scratch[filled:].any():
            return "expected zeros past the last row, found other bytes"
        if spec.dtype.kind == "f":
            values = self._scratch[:filled].view(spec.dtype).reshape(stop - first, -1)
            rows.count_odd(values[max(rows.base - first, 0) :], max(first, rows.base))
        return ""

    def checksum(self, spec: ArraySpec, chunk: int) -> int | None:
        """Of a chunk file; 0 if it has none, None if that cannot be read."""
        if spec.path not in self._sums:
            return None
        try:
            return stored_checksum(self._lane, spec, chunk)
        except (CorruptStoreError, OSError):
            return None  # a finding of its own, where that file is read


def unexplained(findings: Iterable[Finding]) -> list[Finding]:
    """Without those about a shard as a whole that are explained by what is wrong in it."""
    findings = list(findings)
    narrow = narrow_files(findings)
    return [one for one in findings if one.file not in narrow or is_narrow(one)]


def narrow_files(findings: Sequence[Finding]) -> set[str]:
    """Shards of which some inner chunks are damaged, and nothing else is."""
    narrow = {finding.file for finding in findings if is_narrow(finding)}
    return narrow - {finding.file for finding in findings if finding.message == ANOTHER}


def is_narrow(finding: Finding) -> bool:
    """Whether a finding is of inner chunks, each of which has a checksum of its own."""
    return finding.message.startswith("inner chunk ")


def _n_filled(data: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8)))


def _check_sum(found: int, expected: int | None) -> list[Problem]:
    """The crc32c of a file against the stored one; 0 or None if there is none to compare with."""
    found = found or 1
    if not expected or found == expected:
        return []
    if (found ^ expected).bit_count() == 1:
        return [Problem(WRONG_CHECKSUM)]
    return [Problem(f"checksum: expected crc32c {expected:08x}, found {found:08x}")]


def _is_explained(path: AnyPath, size: int, shard: shard_file.Shard, expected: int | None) -> bool:
    """Whether a shard has its checksum once all its inner chunks are whole.

    What a whole inner chunk does to the register of a crc depends on its length alone, as it ends
    in its own crc32c. So the checksum of a shard is that of its index, of its digest and of chunks
    of these lengths with anything in them: if it is right with zeros, the index and the digest are
    those that were written, and only what the inner chunks say of themselves is in doubt.
    """
    value = end = 0
    for start, stop in sorted(place for place in shard.slices if place is not None):
        if start != end or stop - start < _CRC_BYTES:
            return False  # as no writer of ours leaves them
        size_inside = stop - start - _CRC_BYTES
        value = compression.crc32c_of_zeros(size_inside, value)
        own = compression.crc32c_of_zeros(size_inside)
        value = compression.crc32c(own.to_bytes(4, "little"), value)
        end += stop - start
    rest = checked_reads.read_at(path, end, size - end, size)
    return (compression.crc32c(rest, value) or 1) == expected


def _check_digest(shard: shard_file.Shard) -> list[Problem]:
    """A shard's digest of its inner chunks."""
    found, expected = shard.digests()
    if found == expected:
        return []
    return [Problem(f"digest: expected {expected.hex()}, found {found.hex()}")]


def _joined(wrong: list[Problem]) -> list[Problem]:
    """Inner chunks side by side as one, so that a file has few findings, and no sound row is in."""
    runs: list[list[Problem]] = []
    for problem in wrong:
        before = runs[-1][-1] if runs else problem
        if runs and problem.rows and before.rows and before.rows[1] >= problem.rows[0]:
            runs[-1].append(problem)
        else:
            runs.append([problem])
    out = []
    for run in runs:
        first, last = run[0], run[-1]
        more = f"; and {len(run) - 1:,} more behind it" if len(run) > 1 else ""
        rows = (first.rows[0], last.rows[1]) if first.rows and last.rows else None
        out.append(Problem(first.message + more, rows))
    return out
