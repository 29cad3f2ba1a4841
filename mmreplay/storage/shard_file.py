"""Shard files: immutable files of compressed chunks, with an index at the end.

Invariant: a shard file is complete, with its index and checksums, the moment it has its name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.system import checked_reads, memory_maps
from mmreplay.system.held_directories import AnyPath

Bytes = npt.NDArray[np.uint8]

ABSENT = (1 << 64) - 1
_ROOM_BYTES = 1 << 20
_ROOM_OF_A_CHUNK = 128  # its entry in the index, its crc32c, the header of its codec
"""What a shard may have beyond its uncompressed size, and an eighth of that."""


def file_size(path: AnyPath, spec: ArraySpec) -> int:
    """The size of a shard's file; raises CorruptStoreError if no shard can have it."""
    n_chunks = spec.n_inner
    room = spec.chunk_bytes // 8 + n_chunks * _ROOM_OF_A_CHUNK + _ROOM_BYTES
    return checked_reads.regular_size(path, spec.chunk_bytes + room)


def assemble(spec: ArraySpec, chunks: Sequence[bytes]) -> bytes:
    """A shard file: the encoded inner chunks, four bytes of digest, the index, its crc32c.

    A message with its own crc behind leaves the register of a crc as it leaves it for any other
    message of that length: without the digest, the crc32c of the whole file would follow from the
    lengths of its parts, and two shards of equal lengths could be exchanged unnoticed. To readers
    of zarr the digest is unused space, which the sharding specification allows.
    """
    n_chunks = spec.n_inner
    index = np.full((n_chunks, 2), ABSENT, "<u8")
    sizes = np.array([len(chunk) for chunk in chunks], "<u8")
    index[: len(chunks), 1] = sizes
    index[: len(chunks), 0] = np.cumsum(sizes) - sizes
    table = index.tobytes()
    digest = compression.crc32c(b"".join(chunk[-4:] for chunk in chunks)).to_bytes(4, "little")
    return b"".join([*chunks, digest, table, compression.crc32c(table).to_bytes(4, "little")])


class Shard:
    """One shard file, mapped, its index checked."""

    __slots__ = ("_checked", "_codec", "_data", "_inner_bytes", "_path", "slices")

    def __init__(self, path: AnyPath, spec: ArraySpec, codec: compression.ChunkCodec) -> None:
        """Map; raises CorruptStoreError if the index does not fit the file."""
        self._path = path
        self._codec = codec
        self._inner_bytes = spec.inner_bytes
        n_chunks, size = spec.n_inner, file_size(path, spec)
        end = size - (16 * n_chunks + 4)
        if end < 0:
            raise CorruptStoreError(
                f"{path}: expected a shard with an index of {n_chunks} chunks, found {size} bytes; "
                f"run `mmreplay verify`"
            )
        self._data: Bytes = memory_maps.map_file(path, size)
        table = self._data[end:-4]
        expected = int.from_bytes(self._data[-4:].tobytes(), "little")
        if compression.crc32c(table) != expected:
            raise CorruptStoreError(f"{path}: the shard's index does not match its crc32c")
        index = np.frombuffer(table.tobytes(), "<u8").reshape(n_chunks, 2)
        present = index[:, 0] != ABSENT
        offsets, sizes = index[present, 0], index[present, 1]
        # Each bound is checked on its own before the sum, which could overflow.
        sound = bool(np.all(offsets <= end) and np.all(sizes <= end))
        if sound and offsets.size:
            stops = offsets + sizes
            order = np.argsort(offsets)
            apart = np.all(stops[order][:-1] <= offsets[order][1:])
            sound = bool(np.all(stops <= end) and np.all(sizes > 0) and apart)
        if not sound:
            raise CorruptStoreError(f"{path}: the shard's index points outside the file, or twice")
        self.slices: list[tuple[int, int] | None] = [
            (offset, offset + size) if offset != ABSENT else None for offset, size in index.tolist()
        ]
        self._checked = bytearray(n_chunks)

    def digests(self) -> tuple[bytes, bytes]:
        """The four bytes before the index, and what they should be; see `assemble`."""
        end = self._data.size - (16 * len(self.slices) + 4)
        inner = b"".join(
            self._data[place[1] - 4 : place[1]].tobytes()
            for place in self.slices
            if place is not None
        )
        found = self._data[max(end - 4, 0) : end].tobytes()
        return found, compression.crc32c(inner).to_bytes(4, "little")

    def decode(self, chunk: int, out: Bytes) -> None:
        """Fill `out` with an inner chunk, checked the first time; raises CorruptStoreError."""
        try:
            compression.decode(self._codec, self._stored(chunk), out)
        except CorruptStoreError as error:
            raise self._damaged(chunk, error) from error

    def encoded(self, chunk: int) -> bytes:
        """An inner chunk as it stands in the file, checked; raises CorruptStoreError."""
        try:
            return self._stored(chunk).tobytes()
        except CorruptStoreError as error:
            raise self._damaged(chunk, error) from error

    def fetch_pages(self, chunk: int) -> None:
        """Read a byte of each page of an inner chunk."""
        place = self.slices[chunk]
        if place is not None:
            self._data[place[0] : place[1] : memory_maps.GRANULARITY].max()

    def _stored(self, chunk: int) -> Bytes:
        place = self.slices[chunk]
        if place is None:
            raise CorruptStoreError("expected a chunk, found none in the index")
        stored = self._data[place[0] : place[1]]
        if not self._checked[chunk]:
            compression.check(self._codec, stored, self._inner_bytes)
            self._checked[chunk] = 1
        return stored

    def _damaged(self, chunk: int, error: CorruptStoreError) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._path}: inner chunk {chunk}: {error}; run `mmreplay verify`"
        )
