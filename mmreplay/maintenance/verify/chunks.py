"""The chunk files of one lane: size, checksum and inner chunks, each file read once.

Invariant: files are read and not mapped, so that a bad sector is an error and does not end the
process; holes are skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.maintenance.verify.documents import Log
from mmreplay.maintenance.verify.report import (
    NO_CHECKSUM,
    PAST_THE_END,
    WRONG_CHECKSUM,
    ByteCount,
    Notes,
    Span,
    reason,
)
from mmreplay.storage import shard_file
from mmreplay.storage.checksums import crc32c_of_file, stored_checksum
from mmreplay.storage.chunk_files import byte_ranges, chunk_files, chunk_path
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

_MISSING = "expected this chunk file, found none"


class ChunkChecker:
    """Checks the arrays of one lane."""

    def __init__(self, notes: Notes, tally: ByteCount, state: str) -> None:
        self._notes, self._tally, self._state = notes, tally, state

    def check(self, log: Log, path: str) -> None:
        """Check all chunk files of an array, and its checksums."""
        spec = log.specs[path]
        for chunk in self._chunks(log, spec):
            file = chunk_path(log.path, spec, chunk)
            try:
                (self._check_raw if spec.is_raw else self._check_shard)(log, spec, chunk, file)
            except FileNotFoundError:  # since the directory was listed
                self._find(log, spec, chunk, _MISSING)
            except (MmreplayError, OSError) as error:
                self._find(log, spec, chunk, reason(error, file))
        if self._state != "live":
            self._check_sums(log, spec)

    def _chunks(self, log: Log, spec: ArraySpec) -> Iterator[int]:
        """Existing chunk files of an array; a finding for each gap between them."""
        kept = log.chunks(spec)
        try:
            existing = [chunk for chunk in chunk_files(log.path, spec) if chunk in kept]
        except (MmreplayError, OSError):
            existing = []
        if spec.may_change:  # rows without values need no file
            yield from existing
            return
        for before, chunk in itertools.pairwise([kept.start - 1, *existing, kept.stop]):
            if n_missing := chunk - before - 1:
                text = f"expected this chunk file and {n_missing - 1:,} after it, found none"
                rows = self._rows(log, spec, before + 1, chunk)
                self._find(log, spec, before + 1, text if n_missing > 1 else _MISSING, rows)
            if chunk < kept.stop:
                yield chunk

    @staticmethod
    def _rows(log: Log, spec: ArraySpec, first: int, stop: int) -> Span:
        """The rows to examine in chunk files [first, stop); of pending frames alone the head."""
        start = max(first * spec.chunk_rows, log.base)
        return start, max(min(stop * spec.chunk_rows, log.head), start + 1)

    def _find(
        self, log: Log, spec: ArraySpec, chunk: int, text: str, rows: Span | None = None
    ) -> None:
        """Note damage to rows of a chunk file, by default all of its rows."""
        array = log.prefix + spec.path
        rows = rows or self._rows(log, spec, chunk, chunk + 1)
        self._notes.find(f"{array}/{spec.key(chunk)}", text, array, rows)

    def _check_raw(self, log: Log, spec: ArraySpec, chunk: int, path: AnyPath) -> None:
        expected = self._sum(log, spec, chunk)  # before the file: one that is there is final
        if not log.closed and chunk >= max(log.head - 1, 0) // spec.chunk_rows:
            expected = None  # the newest row changes, and so do rows that a power cut took back
        size, is_open = spec.chunk_bytes, not log.closed and spec.may_change
        if is_open and checked_reads.regular_size(path, size) < size:
            return  # a writer that died may leave a short file, which the next completes
        found = rows = crc32c_of_file(path, size)
        n_rows = log.head - chunk * spec.chunk_rows
        if log.closed and n_rows < spec.chunk_rows:
            rows = crc32c_of_file(path, size, byte_ranges(spec, 0, max(n_rows, 0)))
        self._tally.add(size)
        text = self._sum_problem(log, rows, expected)
        if spec.may_change and (text == NO_CHECKSUM or expected != self._sum(log, spec, chunk)):
            name = f"{spec.path}/{spec.key(chunk)}"
            self._notes.warn(name, "has no checksum: its values were being changed", spec.path)
        elif text:
            self._find(log, spec, chunk, text)
        if rows != found:
            self._find(log, spec, chunk, f"{PAST_THE_END} of {log.head:,} rows, found other bytes")

    def _check_shard(self, log: Log, spec: ArraySpec, chunk: int, path: AnyPath) -> None:
        """Check a compressed chunk file; damaged inner chunks explain a wrong checksum."""
        n_before = len(self._notes.findings)
        expected, size = self._sum(log, spec, chunk), shard_file.file_size(path, spec)
        text = self._sum_problem(log, crc32c_of_file(path, size), expected)
        self._tally.add(size)
        shard = shard_file.Shard(path, spec, compression.make_codec(spec.codec or {}))
        found, digest = shard.digests()
        if found != digest and not text:
            text = f"digest: expected {digest.hex()}, found {found.hex()}"
        is_explained = self._check_inner_chunks(log, spec, chunk, shard)
        if text and not is_explained:
            self._find(log, spec, chunk, text)
        elif not expected and not log.closed and len(self._notes.findings) == n_before:
            text = "has no checksum: only its inner chunks could be checked"
            array = log.prefix + spec.path
            self._notes.warn(f"{array}/{spec.key(chunk)}", text, array)

    def _check_inner_chunks(
        self, log: Log, spec: ArraySpec, chunk: int, shard: shard_file.Shard
    ) -> bool:
        """Check the inner chunks of a shard, also below base; whether any cannot be decoded."""
        is_damaged, there = False, set(shard.chunks(0))
        scratch = np.empty(spec.inner_bytes, np.uint8)
        n_blocks = max(-(-(log.in_shards - chunk * spec.chunk_rows) // spec.inner_rows), 0)
        for number in shard.chunks(n_blocks * spec.width):
            block, column = divmod(number, spec.width)
            first = chunk * spec.chunk_rows + block * spec.inner_rows
            stop = min(first + spec.inner_rows, log.in_shards)
            text = ""
            if first < log.in_shards:
                try:
                    shard.decode(number, scratch)
                    after = (stop - first) * (spec.inner_bytes // spec.inner_rows)
                    if log.closed and scratch[after:].any():
                        text = f"{PAST_THE_END} row, found other bytes"
                except CorruptStoreError as error:
                    text = reason(error).partition(f"inner chunk {number}: ")[2]
                    is_damaged |= number in there
            elif log.closed:
                text = "expected none past the last row, found one"
            if text:
                of = f" (environment {column})" if spec.width > 1 else ""
                text = f"inner chunk {number}: {text}{of}"
                self._find(log, spec, chunk, text, (first, max(stop, first + 1)))
        return is_damaged

    @staticmethod
    def _sum(log: Log, spec: ArraySpec, chunk: int) -> int | None:
        """The checksum of a chunk file; 0 if it has none, None if it cannot be read."""
        if spec.path not in log.sums:
            return None
        try:
            return stored_checksum(log.path, spec, chunk)
        except (CorruptStoreError, OSError):
            return None  # a finding of its own

    @staticmethod
    def _sum_problem(log: Log, found: int, expected: int | None) -> str:
        """What is wrong with a file of this crc32c; empty if nothing is known to be."""
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
                elif spec.may_change:
                    values = np.frombuffer(data, sums.dtype)
                    self._check_there(log, spec, np.flatnonzero(values) + file * sums.chunk_rows)
            except (MmreplayError, OSError) as error:
                text = reason(error, path)
            if text:
                self._notes.find(f"{array}/{sums.key(file)}", text, array)

    def _check_there(self, log: Log, spec: ArraySpec, chunks: Ids) -> None:
        """Check that the chunk files exist that have a checksum."""
        for chunk in chunks.tolist():
            if chunk in log.chunks(spec) and not chunk_path(log.path, spec, chunk).exists():
                self._find(log, spec, chunk, _MISSING)
