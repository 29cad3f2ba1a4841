"""Checksums of a lane's chunk files: kept by the writer, read and compared on disk.

Invariant: a checksum that is not 0 belongs to a chunk file that is finished and below the head, and
whose values have not changed since; it becomes durable with the next flush.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression, layout
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import chunk_files, shard_file
from mmreplay.storage.chunk_files import Window
from mmreplay.system import checked_reads, durable_writes, memory_maps
from mmreplay.system.held_directories import AnyPath

_PIECE_BYTES = 1 << 20


class Checksums:
    """`checksums/<array>` of every array; `fresh` takes directories with a new file."""

    def __init__(
        self, lane: AnyPath, specs: Mapping[str, ArraySpec], fresh: collections.deque[AnyPath]
    ) -> None:
        self._lane, self._specs, self._fresh = lane, specs, fresh
        self._windows: dict[tuple[str, int], Window] = {}
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self._dirty: collections.deque[tuple[str, int]] = collections.deque()

    def _window(self, path: str, file: int) -> Window:
        window = self._windows.get((path, file))
        if window is None:
            sums = layout.checksum_spec(path)
            window = self._windows[path, file] = chunk_files.open_window(self._lane, sums, file)
            self._fresh.append(self._lane / sums.path)  # after: a flush may empty it at any time
        return window

    def set(self, spec: ArraySpec, chunk: int, value: int) -> None:
        """Store the crc32c of a finished chunk file; 0 stands for none, so a real 0 becomes 1."""
        file = chunk // layout.CHECKSUM_ROWS
        window = self._window(spec.path, file)
        window.items[chunk - window.start] = value or 1
        self._dirty.append((spec.path, file))

    def has(self, spec: ArraySpec, chunk: int) -> bool:
        """Whether a chunk file's checksum is known."""
        window = self._window(spec.path, chunk // layout.CHECKSUM_ROWS)
        return bool(window.items[chunk - window.start])

    def forget(self, head: int, tail_start: int) -> None:
        """Zero those of raw chunk files from row `head` - 1 on, of shards from `tail_start` on."""
        for spec in self._specs.values():
            finished = max(head - 1, 0) if spec.is_raw else tail_start
            sums = layout.checksum_spec(spec.path)
            for file in chunk_files.chunk_files(self._lane, sums):
                window = self._window(spec.path, file)
                memory_maps.dirty_again(
                    chunk_files.chunk_path(self._lane, sums, file), 0, sums.chunk_bytes
                )
                window.rows[max(finished // spec.chunk_rows - window.start, 0) :] = 0
                self._dirty.append((spec.path, file))

    def drop(self, spec: ArraySpec, chunks: Collection[int]) -> None:
        """Durably zero those of some chunk files, before their values change."""
        for chunk in chunks:
            file = chunk // layout.CHECKSUM_ROWS
            window = self._window(spec.path, file)
            window.items[chunk - window.start] = 0
            self._dirty.append((spec.path, file))
        self.sync()

    def present(self, spec: ArraySpec) -> frozenset[int]:
        """The chunk files that have one."""
        files = chunk_files.chunk_files(self._lane, layout.checksum_spec(spec.path))
        windows = [self._window(spec.path, file) for file in files]
        return frozenset(one.start + int(n) for one in windows for n in np.flatnonzero(one.rows))

    def complete(self, spec: ArraySpec, head: int) -> None:
        """Compute those that are missing of the chunk files with rows below `head`."""
        for chunk in chunk_files.chunk_files(self._lane, spec):
            if chunk * spec.chunk_rows >= head:
                break  # of the pending row
            is_short = spec.is_raw and head < (chunk + 1) * spec.chunk_rows
            # A power cut may have lost a shard's checksum though the shard itself was durable.
            if (is_short and not spec.may_change) or not self.has(spec, chunk):
                path = chunk_files.chunk_path(self._lane, spec, chunk)
                size = spec.chunk_bytes if spec.is_raw else shard_file.file_size(path, spec)
                # Read, not mapped: on tmpfs a map needs room even for what lies in a hole.
                self.set(spec, chunk, crc32c_of_file(path, size))

    def sync(self) -> None:
        """Make what was stored since the last call durable."""
        n_dirty = len(self._dirty)
        dirty = dict.fromkeys(self._dirty[number] for number in range(n_dirty))
        durable_writes.sync_all(
            chunk_files.chunk_path(self._lane, layout.checksum_spec(path), file)
            for path, file in dirty
        )
        for _ in range(n_dirty):  # not before: interrupted, it is done by the next call
            self._dirty.popleft()


def stored_checksum(lane: AnyPath, spec: ArraySpec, chunk: int) -> int:
    """The checksum that is stored for a chunk file, or 0."""
    sums = layout.checksum_spec(spec.path)
    file, entry = divmod(chunk, sums.chunk_rows)
    path = chunk_files.chunk_path(lane, sums, file)
    try:
        data = checked_reads.read_at(path, entry * sums.row_bytes, sums.row_bytes, sums.chunk_bytes)
    except FileNotFoundError:
        return 0
    return int.from_bytes(data, "little")


def crc32c_of_file(path: AnyPath, size: int, used: Sequence[tuple[int, int]] | None = None) -> int:
    """The checksum of a file; bytes outside of the (offset, length) in `used` count as zeros."""
    value = end = 0
    for offset, data in checked_reads.read_filled(path, size, _PIECE_BYTES):
        here = data if used is None else only(used, offset, data)
        value = compression.crc32c(here, compression.crc32c_of_zeros(offset - end, value))
        end = offset + len(here)
    return compression.crc32c_of_zeros(size - end, value) or 1


def only(used: Sequence[tuple[int, int]], offset: int, data: bytes) -> bytes:
    """The bytes at `offset` of a file, with zeros outside of some (offset, length)."""
    out = bytearray(len(data))
    for start, length in used:
        first, stop = max(start - offset, 0), min(start + length - offset, len(data))
        if first < stop:
            out[first:stop] = data[first:stop]
    return bytes(out)


def rows_match(lane: AnyPath, spec: ArraySpec, chunk: int, head: int) -> bool:
    """Whether the rows below `head` in a raw chunk file of a closed lane match its checksum."""
    path = chunk_files.chunk_path(lane, spec, chunk)
    n_rows = min(max(head - chunk * spec.chunk_rows, 0), spec.chunk_rows)
    used = chunk_files.byte_ranges(spec, 0, n_rows)
    return crc32c_of_file(path, spec.chunk_bytes, used) == stored_checksum(lane, spec, chunk)


def damaged(path: AnyPath, what: str = "does not match its checksum") -> CorruptStoreError:
    """The error for a file whose rows must not be taken over: they would get a new checksum."""
    return CorruptStoreError(
        f"{path}: {what}; run `mmreplay verify` to see all of the damage, and `mmreplay repair` "
        f"for what is sound"
    )
