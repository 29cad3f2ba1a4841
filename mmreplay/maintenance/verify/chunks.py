"""The chunk files of one lane: size, checksum, and the rows in them, each file read once.

Invariant: a file is read before it is mapped, so that a bad sector is an error and does not end the
process; holes are skipped.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.maintenance.byte_count import ByteCount
from mmreplay.maintenance.verify.documents import PRIORITIES, Log
from mmreplay.maintenance.verify.report import Notes, reason
from mmreplay.storage import shard_file
from mmreplay.storage.checksums import crc32c_of_file, only
from mmreplay.storage.chunk_files import byte_ranges, chunk_files, chunk_path
from mmreplay.system import checked_reads

__all__ = ["NO_CHECKSUM", "PAST_THE_END", "WRONG_CHECKSUM", "ChunkReader", "Piece"]

NO_CHECKSUM = "expected a checksum, as every file of a closed lane has; found 0"
"""Without a checksum it is unknown whether a chunk file is the right one and undamaged."""

WRONG_CHECKSUM = "expected a checksum that fits, found one in which a single bit differs"
"""The file is sound: a flipped bit in it would change many bits of its crc32c."""

PAST_THE_END = "expected zeros past the last"
"""The rows before are sound."""

_MISSING = "expected this chunk file, found none"
_PIECE_BYTES = 4 << 20


class Piece(NamedTuple):
    """Entries (k, *entry_shape) from entry `first` on, `n` per row; 1 if of one environment."""

    first: int
    n: int
    values: Array


class ChunkReader:
    """Reads the arrays of one lane; `damaged` are the paths of those with damaged files."""

    def __init__(self, notes: Notes, tally: ByteCount, state: str) -> None:
        self._notes, self._tally, self._state = notes, tally, state
        self.damaged: set[str] = set()
        self._sums: tuple[tuple[str, int], Array | None] | None = None

    def pieces(self, log: Log, path: str) -> Iterator[Piece]:
        """Check all chunk files of an array; yields the entries of kept rows outside of holes."""
        spec = log.specs[path]
        for chunk in self._chunks(log, spec):
            found = self._raw(log, spec, chunk) if spec.is_raw else self._shard(log, spec, chunk)
            for first, n, values in found:
                start, stop = max(first, log.base * n), min(first + len(values), log.head * n)
                if start < stop:
                    yield Piece(start, n, values[start - first : stop - first])
        if self._state != "live":
            self._check_sums(log, spec)

    # ------------------------------------------------------------ which files there are

    def _chunks(self, log: Log, spec: ArraySpec) -> Iterator[int]:
        """Existing chunk files of an array; a finding for each gap between them."""
        kept = log.chunks(spec)
        try:
            existing = [chunk for chunk in chunk_files(log.path, spec) if chunk in kept]
        except (MmreplayError, OSError):
            existing = []
        if spec.path == PRIORITIES:  # rows without priorities need no file
            yield from existing
            for chunk in self._with_sums(log, spec):
                if chunk in kept and chunk not in existing:
                    self._find(log, spec, range(chunk, chunk + 1), _MISSING)
            return
        for before, chunk in itertools.pairwise([kept.start - 1, *existing, kept.stop]):
            if gap := range(before + 1, chunk):
                text = f"expected this chunk file and {len(gap) - 1:,} after it, found none"
                self._find(log, spec, gap, text if len(gap) > 1 else _MISSING)
            if chunk < kept.stop:
                yield chunk

    def _find(
        self,
        log: Log,
        spec: ArraySpec,
        chunks: range,
        text: str,
        rows: tuple[int, int] | None = None,
    ) -> None:
        """Note damage to rows of chunk files, by default all of their rows."""
        start, stop = chunks.start * spec.chunk_rows, chunks.stop * spec.chunk_rows
        # The pending frames are those that the newest step led to.
        rows = rows or (max(min(start, log.head - 1), log.base), min(stop, log.head))
        array = log.prefix + spec.path
        self.damaged.add(array)
        file = f"{array}/{spec.key(chunks.start)}"
        self._notes.find(file, text, array, rows)

    # ------------------------------------------------------------ uncompressed

    def _raw(self, log: Log, spec: ArraySpec, chunk: int) -> Iterator[Piece]:
        """The entries in an uncompressed chunk file; its checksum is compared at the end."""
        here, path = range(chunk, chunk + 1), chunk_path(log.path, spec, chunk)
        expected = self._sum(log, spec, chunk)  # before the file: one that is there is final
        if not log.closed and chunk >= max(log.head - 1, 0) // spec.chunk_rows:
            expected = None  # the newest row changes, and so do rows that a power cut took back
        start, n_rows = chunk * spec.chunk_rows, spec.chunk_rows
        if log.closed:
            n_rows = min(max(log.head - start, 0), n_rows)
        used = byte_ranges(spec, 0, n_rows)
        entry = spec.row_bytes // log.n
        found = n_other = end = 0
        try:
            # Of priorities, a writer that died may leave a short file, which the next completes.
            is_open = not log.closed and spec.path == PRIORITIES
            if is_open and checked_reads.regular_size(path, spec.chunk_bytes) < spec.chunk_bytes:
                return
            step = max(_PIECE_BYTES // entry, 1) * entry
            for offset, data in checked_reads.read_filled(path, spec.chunk_bytes, step):
                own = data if n_rows == spec.chunk_rows else only(used, offset, data)
                n_other += _n_filled(data) - _n_filled(own)
                found = compression.crc32c(own, compression.crc32c_of_zeros(offset - end, found))
                end = offset + len(data)
                values = np.frombuffer(data, spec.dtype).reshape(-1, *_entry_shape(log, spec))
                yield from _split(log, spec, chunk, offset // entry, values)
        except FileNotFoundError:  # since the directory was listed
            self._find(log, spec, here, _MISSING)
            return
        except (MmreplayError, OSError) as error:
            self._find(log, spec, here, reason(error, path))
            return
        self._tally.add(spec.chunk_bytes)
        found = compression.crc32c_of_zeros(spec.chunk_bytes - end, found)
        if text := self._sum_problem(log, found, expected):
            self._find(log, spec, here, text)
        if n_other:
            text = f"{PAST_THE_END} of {log.head:,} rows, found {n_other:,} other bytes"
            self._find(log, spec, here, text)

    # ------------------------------------------------------------ compressed

    def _shard(self, log: Log, spec: ArraySpec, chunk: int) -> Iterator[Piece]:
        """The entries in a shard; damaged inner chunks explain a wrong checksum."""
        here, path = range(chunk, chunk + 1), chunk_path(log.path, spec, chunk)
        expected, file = self._sum(log, spec, chunk), f"{log.prefix}{spec.path}/{spec.key(chunk)}"
        n_before = len(self._notes.findings)
        try:
            size = shard_file.file_size(path, spec)
            text = self._sum_problem(log, crc32c_of_file(path, size), expected)
            self._tally.add(size)
            shard = shard_file.Shard(path, spec, compression.make_codec(spec.codec or {}))
            found, digest = shard.digests()
            if found != digest and not text:
                text = f"digest: expected {digest.hex()}, found {found.hex()}"
            yield from self._inner_chunks(log, spec, chunk, shard)
        except FileNotFoundError:
            text = _MISSING
        except (MmreplayError, OSError) as error:
            text = reason(error, path)
        if any(one.file.endswith(file) for one in self._notes.findings[n_before:]):
            return
        if text:
            self._find(log, spec, here, text)
        elif not expected and not log.closed:
            text = "has no checksum: only its inner chunks could be checked"
            self._notes.warn(file, text, log.prefix + spec.path)

    def _inner_chunks(
        self, log: Log, spec: ArraySpec, chunk: int, shard: shard_file.Shard
    ) -> Iterator[Piece]:
        """The entries in the sound inner chunks of a shard; a finding for each of the others."""
        scratch = np.empty(spec.inner_bytes, np.uint8)
        n_blocks = max(-(-(log.in_shards - chunk * spec.chunk_rows) // spec.inner_rows), 0)
        for number in shard.chunks(n_blocks * spec.width):
            block, column = divmod(number, spec.width)
            first = chunk * spec.chunk_rows + block * spec.inner_rows
            stop = min(first + spec.inner_rows, log.in_shards)
            text = ""
            if first < log.in_shards:
                # Also those below base: they are kept, and were whole when they were written.
                try:
                    shard.decode(number, scratch)
                    values = scratch.view(spec.dtype).reshape(-1, *_entry_shape(log, spec))
                    n = log.n if spec.width == 1 else 1
                    yield Piece(first * n, n, values[: (stop - first) * n])
                    if log.closed and values[(stop - first) * n :].view(np.uint8).any():
                        text = f"{PAST_THE_END} row, found other bytes"
                except CorruptStoreError as error:
                    text = reason(error).partition(f"inner chunk {number}: ")[2]
            elif log.closed:
                text = "expected none past the last row, found one"
            if text:
                of = f" (environment {column})" if spec.width > 1 else ""
                text = f"inner chunk {number}: {text}{of}"
                rows = (first, max(stop, first + 1))
                self._find(log, spec, range(chunk, chunk + 1), text, rows)

    # ------------------------------------------------------------ checksums

    def _sum(self, log: Log, spec: ArraySpec, chunk: int) -> int | None:
        """The checksum of a chunk file; 0 if it has none, None if it cannot be read."""
        sums = log.sums.get(spec.path)
        if sums is None:
            return None
        file, entry = divmod(chunk, sums.chunk_rows)
        if self._sums is None or self._sums[0] != (log.prefix + spec.path, file):
            path = chunk_path(log.path, sums, file)
            values: Array | None = np.zeros(sums.chunk_rows, sums.dtype)
            try:
                data = checked_reads.read_at(path, 0, sums.chunk_bytes, sums.chunk_bytes)
                values = np.frombuffer(data, sums.dtype)
            except FileNotFoundError:
                pass
            except (CorruptStoreError, OSError):
                values = None  # a finding of its own, in the end
            self._sums = (log.prefix + spec.path, file), values
        values = self._sums[1]
        return None if values is None else int(values[entry])

    def _with_sums(self, log: Log, spec: ArraySpec) -> Iterator[int]:
        """The chunk files of an array of a closed lane that have a checksum."""
        sums = log.sums.get(spec.path)
        if sums is None or not log.closed:
            return
        with contextlib.suppress(MmreplayError, OSError):  # a finding of its own
            for file in chunk_files(log.path, sums):
                chunks = range(file * sums.chunk_rows, (file + 1) * sums.chunk_rows)
                yield from (chunk for chunk in chunks if self._sum(log, spec, chunk))

    @staticmethod
    def _sum_problem(log: Log, found: int, expected: int | None) -> str:
        """What is wrong with a file of this crc32c; empty if nothing is known to be."""
        found = found or 1
        if expected == 0 and log.closed:
            return NO_CHECKSUM
        if not expected or found == expected:
            return ""
        if (found ^ expected).bit_count() == 1:
            return WRONG_CHECKSUM
        return f"checksum: expected crc32c {expected:08x}, found {found:08x}"

    def _check_sums(self, log: Log, spec: ArraySpec) -> None:
        """Check the files of an array's checksums; zeros follow the last one of a closed lane."""
        sums = log.sums.get(spec.path)
        if sums is None:
            return
        n_chunks = -(-log.head // spec.chunk_rows)
        try:
            files = chunk_files(log.path, sums)
        except (MmreplayError, OSError):
            return  # a finding of its own
        for file in files:
            path, array = chunk_path(log.path, sums, file), log.prefix + sums.path
            n_here = min(n_chunks - file * sums.chunk_rows, sums.chunk_rows)
            if n_here <= 0:
                continue  # it does not belong there: a finding of its own
            text = ""
            try:
                data = checked_reads.read_bytes(path, sums.chunk_bytes)
                self._tally.add(len(data))
                if len(data) < sums.chunk_bytes:
                    # A power cut leaves the name of a file whose length was not durable yet.
                    if log.closed or any(data):
                        text = f"expected {sums.chunk_bytes:,} bytes, found {len(data):,}"
                elif log.closed and any(data[n_here * sums.row_bytes :]):
                    text = f"{PAST_THE_END} of {n_chunks:,} checksums, found others"
            except (MmreplayError, OSError) as error:
                text = reason(error, path)
            if text:
                self._notes.find(f"{array}/{sums.key(file)}", text, array)


def _entry_shape(log: Log, spec: ArraySpec) -> tuple[int, ...]:
    return spec.row_shape[len(log.axes) - 1 :]


def _split(log: Log, spec: ArraySpec, chunk: int, place: int, values: Array) -> Iterator[Piece]:
    """The entries at `place` in a raw chunk file, which may have a part for each environment."""
    if spec.width == 1:
        yield Piece(chunk * spec.chunk_rows * log.n + place, log.n, values)
        return
    while len(values):
        row = place % spec.chunk_rows
        part = values[: spec.chunk_rows - row]
        yield Piece(chunk * spec.chunk_rows + row, 1, part)
        values, place = values[len(part) :], place + len(part)


def _n_filled(data: bytes) -> int:
    return int(np.count_nonzero(np.frombuffer(data, np.uint8)))
