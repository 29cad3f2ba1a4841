"""Shard files: immutable files of compressed chunks, with an index at the end.

Invariant: a shard file is complete, with its index and checksums, the moment it has its name.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression
from mmreplay.format.layout import ArraySpec
from mmreplay.format.native_decoders import Decoder
from mmreplay.system import checked_reads, memory_maps
from mmreplay.system.held_directories import AnyPath

Bytes = npt.NDArray[np.uint8]

ABSENT = (1 << 64) - 1
_ROOM_BYTES = 1 << 20
_ROOM_OF_A_CHUNK = 128  # its entry in the index, its crc32c, the header of its codec
"""Bytes that a shard may have beyond 9/8 of its uncompressed size."""

_LONG = 1 << 32  # bytes of a file from which on an offset takes eight
_CHECKED, _NATIVE = 1, 2  # a chunk; and the codec's native decoder may decode it
_ENTRY = struct.Struct("<QQ")


def file_size(path: AnyPath, spec: ArraySpec) -> int:
    """The size of a shard's file; raises CorruptStoreError if no shard can have it."""
    return checked_reads.regular_size(path, _most_bytes(spec))


def _most_bytes(spec: ArraySpec) -> int:
    room = spec.chunk_bytes // 8 + spec.n_inner * _ROOM_OF_A_CHUNK + _ROOM_BYTES
    return spec.chunk_bytes + room


def assemble(spec: ArraySpec, chunks: Sequence[bytes]) -> bytes:
    """A shard file: the encoded inner chunks, four bytes of digest, the index, its crc32c.

    Chunks end with their own crc, which cancels in the crc32c of the whole: without the digest two
    shards with chunks of equal lengths would have the same checksum. Readers of zarr ignore it.
    """
    n_chunks = spec.n_inner
    index = np.full((n_chunks, 2), ABSENT, "<u8")
    sizes = np.array([len(chunk) for chunk in chunks], "<u8")
    index[: len(chunks), 1] = sizes
    index[: len(chunks), 0] = np.cumsum(sizes) - sizes
    table = index.tobytes()
    digest = compression.crc32c(b"".join(chunk[-4:] for chunk in chunks)).to_bytes(4, "little")
    return b"".join([*chunks, digest, table, compression.crc32c(table).to_bytes(4, "little")])


def _read_index(path: AnyPath, n_chunks: int, size: int, stored: bytes) -> memoryview[int]:
    """Where each inner chunk of a file of `size` bytes begins and ends, 0 and 0 if it is absent."""
    end, table = size - len(stored), stored[:-4]
    if compression.crc32c(table) != int.from_bytes(stored[-4:], "little"):
        raise CorruptStoreError(f"{path}: the shard's index does not match its crc32c")
    offsets, sizes = np.frombuffer(table, "<u8").reshape(n_chunks, 2).T
    present = (offsets != ABSENT).nonzero()[0]
    offsets, sizes = offsets[present], sizes[present]
    bounds = np.zeros((n_chunks, 2), "u8")
    # Each bound is checked on its own before the sum, which could overflow.
    sound = bool((offsets <= end).all() and (sizes <= end).all() and sizes.all())
    if sound:
        stops, order = offsets + sizes, offsets.argsort()
        apart = bool((stops[order][:-1] <= offsets[order][1:]).all())
        bounds[present] = np.stack((offsets, stops), 1)
        sound = apart and bool((stops <= end).all())
    if not sound:
        raise CorruptStoreError(f"{path}: the shard's index points outside the file, or twice")
    return bounds.astype("I" if size < _LONG else "Q").reshape(-1).data


def _damaged(path: AnyPath, chunk: int, error: CorruptStoreError) -> CorruptStoreError:
    return CorruptStoreError(f"{path}: inner chunk {chunk}: {error}; run `mmreplay verify`")


class Shard:
    """One shard file, mapped, its index checked."""

    __slots__ = ("_address", "_bounds", "_checked", "_codec", "_data", "_inner_bytes", "_path")

    def __init__(self, path: AnyPath, spec: ArraySpec, codec: compression.ChunkCodec) -> None:
        """Map; raises CorruptStoreError if the index does not fit the file."""
        self._path = path
        self._codec = codec
        self._inner_bytes = spec.inner_bytes
        size = file_size(path, spec)
        n_bytes = 16 * spec.n_inner + 4
        if size < n_bytes:
            raise CorruptStoreError(
                f"{path}: expected a shard with an index of {spec.n_inner} chunks, found {size} "
                f"bytes; run `mmreplay verify`"
            )
        self._data: Bytes = memory_maps.map_file(path, size)
        self._address = self._data.ctypes.data
        self._bounds = _read_index(path, spec.n_inner, size, self._data[-n_bytes:].tobytes())
        self._checked = bytearray(spec.n_inner)

    def chunks(self, n: int = 0) -> list[int]:
        """The first `n` inner chunks, and those after them that are in the file, ascending."""
        return [chunk for chunk, stop in enumerate(self._bounds[1::2]) if stop or chunk < n]

    def digests(self) -> tuple[bytes, bytes]:
        """The four bytes before the index, and what they should be; see `assemble`."""
        end = self._data.size - (8 * len(self._bounds) + 4)
        stops = (stop for stop in self._bounds[1::2] if stop)
        inner = b"".join(self._data[stop - 4 : stop].tobytes() for stop in stops)
        found = self._data[max(end - 4, 0) : end].tobytes()
        return found, compression.crc32c(inner).to_bytes(4, "little")

    def decode(self, chunk: int, out: Bytes) -> None:
        """Fill `out` with an inner chunk, checked the first time; raises CorruptStoreError."""
        stored = self._stored(chunk)
        try:
            compression.decode(self._codec, stored, out, native=self._checked[chunk] == _NATIVE)
        except CorruptStoreError as error:
            raise _damaged(self._path, chunk, error) from error

    def decode_start(self, chunk: int, address: int, n_bytes: int) -> bool:
        """Decode only so many of a chunk's first bytes, to an address; raises CorruptStoreError.

        False if they cannot be decoded alone, or are damaged, as `decode` then says.
        """
        if not self._checked[chunk]:
            self._stored(chunk)
        if self._checked[chunk] != _NATIVE:
            return False
        start, stop = self._bounds[2 * chunk], self._bounds[2 * chunk + 1]
        native: Decoder = self._codec.native  # type: ignore[assignment]
        return native(self._address + start, stop - start, address, n_bytes, self._inner_bytes)

    def release(self) -> None:
        """As `memory_maps.release`."""
        memory_maps.release(self._data)

    def encoded(self, chunk: int) -> bytes:
        """An inner chunk as it stands in the file, checked; raises CorruptStoreError."""
        return self._stored(chunk).tobytes()

    def _stored(self, chunk: int) -> Bytes:
        start, stop = self._bounds[2 * chunk : 2 * chunk + 2]
        stored = self._data[start:stop]
        if not self._checked[chunk]:
            try:
                if not stop:
                    raise CorruptStoreError("expected a chunk, found none in the index")
                is_native = compression.check(self._codec, stored, self._inner_bytes)
            except CorruptStoreError as error:
                raise _damaged(self._path, chunk, error) from error
            self._checked[chunk] = _NATIVE if is_native else _CHECKED
        return stored


class OpenShard:
    """One shard file of very many: open while the chunks of a batch are read, and not mapped."""

    __slots__ = ("_codec", "_file", "_index", "_path", "_spec")

    def __init__(self, path: AnyPath, spec: ArraySpec, codec: compression.ChunkCodec) -> None:
        """Open, and read the index; CorruptStoreError if it does not fit."""
        self._path, self._spec, self._codec = path, spec, codec
        n_last = 16 * spec.n_inner + 4
        self._file = checked_reads.OpenFile(path)
        try:
            size = self._file.size
            self._index = self._file.read(max(size - n_last, 0), n_last)
            is_sound = compression.crc32c(self._index) == compression.CRC_BEHIND
            if len(self._index) < n_last or size > _most_bytes(spec) or not is_sound:
                Shard(path, spec, codec)  # raises what is wrong
                raise CorruptStoreError(f"{path}: changed while it was read")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def decode(self, chunk: int, out: Bytes) -> None:
        """As that of `Shard`; what is read is checked each time."""
        try:
            stored = self._read(chunk)
            is_native = compression.check(self._codec, stored, self._spec.inner_bytes)
            compression.decode(self._codec, stored, out, native=is_native)
        except CorruptStoreError:
            Shard(self._path, self._spec, self._codec).decode(chunk, out)  # raises what is wrong

    def decode_start(self, *_: int) -> bool:
        """As that of `Shard`, never."""
        return False

    def _read(self, chunk: int) -> Bytes:
        start, length = _ENTRY.unpack_from(self._index, 16 * chunk)
        if start + length > self._file.size:
            raise CorruptStoreError("expected a chunk, found none in the file")
        return np.frombuffer(self._file.read(start, length), np.uint8)
