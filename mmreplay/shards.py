"""Compressed frames: immutable shards of inner chunks, and the tail that is still raw.

Invariant: a shard file is complete, with its index and checksums, the moment it has its name; a
row is read from the tail only if it was still there after it had been copied.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay import codecs, maps, reading, system
from mmreplay.columns import Array, Ids, LaneFiles, chunk_path
from mmreplay.errors import CorruptStoreError
from mmreplay.format import LANE_SHIFT, ArraySpec

__all__ = [
    "Shard",
    "ShardColumn",
    "TailFiles",
    "assemble",
    "file_size",
    "map_tail",
    "tail_path",
    "tail_problem",
]

Bytes = npt.NDArray[np.uint8]

ABSENT = (1 << 64) - 1
_ROOM_BYTES = 1 << 20
_ROOM_OF_A_CHUNK = 128  # its entry in the index, its crc32c, the header of its codec
"""What a shard may have beyond its uncompressed size, and an eighth of that."""
_ROW_MASK = (1 << LANE_SHIFT) - 1
_SCRATCH_BYTES = 16 << 20
_LEAST_RUN = 2  # rows that follow each other, on average, for which slices are worth it
_MAX_SHARDS = 4096  # maps kept open for each column


class TailFiles(LaneFiles, Protocol):
    """What a compressed column needs to know of a lane."""

    @property
    def tails(self) -> dict[str, Array]:
        """Raw rows of the compressed arrays, by path; empty once they are all in shards."""

    def tail_start(self) -> int:
        """The first row that is in the tail now; rows below are in shards."""


def file_size(path: Path, spec: ArraySpec) -> int:
    """The size of a shard's file, which must be one that a shard can have.

    Raises:
        FileNotFoundError: there is none.
        CorruptStoreError: it is too large, or no regular file.
    """
    n_chunks = spec.chunk_rows // max(spec.inner_rows, 1)
    room = spec.chunk_bytes // 8 + n_chunks * _ROOM_OF_A_CHUNK + _ROOM_BYTES
    return reading.regular_size(path, spec.chunk_bytes + room)


def tail_path(lane: Path, spec: ArraySpec) -> Path:
    """Where the raw rows of a compressed array stand until their shard is written."""
    return lane / ".live" / (spec.path.replace("/", "~") + ".tail")


def tail_problem(specs: Mapping[str, ArraySpec], head: int, tail_start: int) -> str:
    """Why the tail cannot hold the rows from `tail_start` to `head`; empty if it can."""
    half = max((spec.chunk_rows for spec in specs.values() if not spec.is_raw), default=0)
    if half and (tail_start % half or not tail_start <= head <= tail_start + 2 * half):
        return (
            f"tail_start: expected a multiple of {half:,} at most {2 * half:,} rows before the "
            f"head, {head:,}, found {tail_start:,}"
        )
    return ""


def map_tail(lane: Path, spec: ArraySpec, *, writable: bool = False) -> Array:
    """The tail of a compressed array, mapped: (2 * chunk_rows, *row_shape).

    Raises:
        FileNotFoundError: there is none.
        CorruptStoreError: it has another size.
    """
    data = maps.map_file(tail_path(lane, spec), 2 * spec.chunk_bytes, writable=writable)
    rows: Array = data.view(spec.dtype).reshape(2 * spec.chunk_rows, *spec.row_shape)
    return rows


def assemble(spec: ArraySpec, chunks: Sequence[bytes]) -> bytes:
    """A shard file: the encoded inner chunks, four bytes of digest, the index, its crc32c.

    A message with its own crc behind leaves the register of a crc as it leaves it for any other
    message of that length: without the digest, the crc32c of the whole file would follow from the
    lengths of its parts, and two shards of equal lengths could be exchanged unnoticed. To readers
    of zarr the digest is unused space, which the sharding specification allows.
    """
    n_chunks = spec.chunk_rows // spec.inner_rows
    index = np.full((n_chunks, 2), ABSENT, "<u8")
    sizes = np.array([len(chunk) for chunk in chunks], "<u8")
    index[: len(chunks), 1] = sizes
    index[: len(chunks), 0] = np.cumsum(sizes) - sizes
    table = index.tobytes()
    digest = codecs.crc32c(b"".join(chunk[-4:] for chunk in chunks)).to_bytes(4, "little")
    return b"".join([*chunks, digest, table, codecs.crc32c(table).to_bytes(4, "little")])


class Shard:
    """One shard file, mapped, its index checked."""

    __slots__ = ("_checked", "_codec", "_data", "_inner_bytes", "_path", "slices")

    def __init__(self, path: Path, spec: ArraySpec, codec: codecs.ChunkCodec) -> None:
        """Map and check.

        Raises:
            FileNotFoundError: there is none.
            CorruptStoreError: an index that does not fit the file.
        """
        self._path = path
        self._codec = codec
        self._inner_bytes = spec.inner_rows * spec.row_bytes
        n_chunks, size = spec.chunk_rows // spec.inner_rows, file_size(path, spec)
        end = size - (16 * n_chunks + 4)
        if end < 0:
            raise CorruptStoreError(
                f"{path}: expected a shard with an index of {n_chunks} chunks, found {size} bytes; "
                f"run `mmreplay verify`"
            )
        self._data: Bytes = maps.map_file(path, size)
        table = self._data[end:-4]
        expected = int.from_bytes(self._data[-4:].tobytes(), "little")
        if codecs.crc32c(table) != expected:
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
        return found, codecs.crc32c(inner).to_bytes(4, "little")

    def decode(self, chunk: int, out: Bytes) -> None:
        """Fill `out` with an inner chunk, checksum and header checked the first time.

        Raises:
            CorruptStoreError: the bytes are not what was written.
        """
        place = self.slices[chunk]
        try:
            if place is None:
                raise CorruptStoreError("expected a chunk, found none in the index")
            stored = self._data[place[0] : place[1]]
            if not self._checked[chunk]:
                codecs.check(self._codec, stored, self._inner_bytes)
                self._checked[chunk] = 1
            codecs.decode(self._codec, stored, out)
        except CorruptStoreError as error:
            raise CorruptStoreError(
                f"{self._path}: inner chunk {chunk}: {error}; run `mmreplay verify`"
            ) from error


class ShardColumn:
    """A compressed column of all lanes of a store."""

    def __init__(self, lanes: Sequence[TailFiles], path: str) -> None:
        """Open nothing yet."""
        self._lanes = lanes
        self._path = path
        self._specs = [lane.specs[path] for lane in lanes]
        spec = self._specs[0]
        self.row_shape, self.dtype = spec.row_shape, spec.dtype
        self._row_bytes = spec.row_bytes
        self._codecs = [codecs.make_codec(s.codec or {}) for s in self._specs]
        self._inner = np.array([s.inner_rows for s in self._specs], np.int64)
        self._uniform = len({s.inner_rows for s in self._specs}) == 1
        self._per_shard = [s.chunk_rows // s.inner_rows for s in self._specs]
        self._shards: collections.OrderedDict[tuple[int, int], Shard] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._local = threading.local()

    def refresh(self) -> None:
        """Forget shards that were evicted: their blocks are free once nobody maps them."""
        bases = [lane.base for lane in self._lanes]
        with self._lock:
            gone = [
                (number, shard)
                for number, shard in self._shards
                if (shard + 1) * self._specs[number].chunk_rows <= bases[number]
            ]
            for key in gone:
                del self._shards[key]

    def leave_parent(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id; each inner chunk is decoded once.

        Args:
            ids: any shape, each lane << 40 | row of a committed row.
            out: C-contiguous, (*ids.shape, *row_shape), filled and returned if given.

        Raises:
            EvictedError: a row went in the meantime.
            CorruptStoreError: a shard is missing or damaged.
        """
        if out is None:
            out = np.empty((*ids.shape, *self.row_shape), self.dtype)
        if not ids.size:
            return out
        wanted = ids.ravel()
        filled = out.reshape(-1, self._row_bytes // self.dtype.itemsize)
        todo = self._take_from_tails(wanted, filled)
        long = self._uniform and ids.shape[-1] >= 2 * self._specs[0].inner_rows
        decode = self._decode_runs if long else self._decode
        if todo is None:
            decode(wanted, filled, None)
        elif todo.size:
            decode(wanted[todo], filled, todo)
        return out

    def _take_from_tails(self, wanted: Ids, filled: Array) -> Ids | None:
        """Copy what is in the tails; returns the positions left to do, None for all of them."""
        left: npt.NDArray[np.bool_] | None = None
        for number, lane in enumerate(self._lanes):
            tail = lane.tails.get(self._path)
            if tail is None:
                continue
            start = (number << LANE_SHIFT) + lane.tail_start()
            if len(self._lanes) == 1:
                mask = wanted >= start
            else:
                mask = (wanted >= start) & (wanted >> LANE_SHIFT == number)
            here = mask.nonzero()[0]
            if not here.size:
                continue
            rows = wanted[here] & _ROW_MASK
            filled[here] = tail.take(rows % len(tail), axis=0).reshape(here.size, -1)
            # The writer takes a half of the tail back only after tail_start has passed it, so
            # what is not below the new tail_start was whole; the rest is in a shard by now.
            if system.barrier is not None:
                system.barrier()
            moved = (number << LANE_SHIFT) + lane.tail_start()
            if moved > start:
                here = here[wanted[here] >= moved]
            if left is None:
                left = np.ones(wanted.size, bool)
            left[here] = False
        return None if left is None else left.nonzero()[0]

    def _decode_runs(self, wanted: Ids, filled: Array, places: Ids | None) -> None:
        """Decode for long windows: whole chunks to where they are wanted, the others by slices.

        To copy a chunk once more costs half of what decoding it does.

        Args:
            wanted: as for `take`, those in the tails left out.
            filled: rows to fill.
            places: where each of `wanted` goes; None for one after the other.
        """
        inner = self._specs[0].inner_rows
        numbers = wanted >> LANE_SHIFT
        chunks, within = np.divmod(wanted & _ROW_MASK, inner)
        ends = (np.diff(wanted) != 1) | (np.diff(chunks) != 0)
        if places is not None:
            ends |= np.diff(places) != 1
        starts = np.append(0, ends.nonzero()[0] + 1)
        if starts.size * _LEAST_RUN > wanted.size:  # rows in any order: one by one is slow
            self._decode(wanted, filled, places)
            return
        lengths = np.diff(np.append(starts, wanted.size))
        # Each chunk's longest run first: a whole one is then decoded in place, once.
        order = np.lexsort((-lengths, chunks[starts], numbers[starts]))
        starts, lengths = starts[order], lengths[order]
        to = starts if places is None else places[starts]
        runs = (numbers[starts], chunks[starts], within[starts], lengths, to)
        self._scratch(1, inner)
        spare = self._local.parts[0]
        target = filled.reshape(-1).view(np.uint8)
        row_bytes = self._row_bytes
        known, rows = None, spare
        for number, chunk, first, length, at in zip(*(x.tolist() for x in runs), strict=True):
            byte, n_bytes = at * row_bytes, length * row_bytes
            if known != (number, chunk):
                known = number, chunk
                rows = target[byte : byte + n_bytes] if length == inner else spare
                self._decode_chunk(number, chunk, rows)
                if length == inner:
                    continue
            begin = first * row_bytes
            target[byte : byte + n_bytes] = rows[begin : begin + n_bytes]

    def _decode(self, wanted: Ids, filled: Array, places: Ids | None) -> None:
        if len(self._lanes) == 1:
            inner: Any = int(self._inner[0])
            keys, within = np.divmod(wanted, inner)
        else:
            lanes = wanted >> LANE_SHIFT
            inner = self._inner[lanes]
            keys, within = np.divmod(wanted & _ROW_MASK, inner)
            keys |= lanes << LANE_SHIFT
        unique, inverse = np.unique(keys, return_inverse=True)
        length = int(self._inner.max())
        room = max(1, _SCRATCH_BYTES // (length * self._row_bytes))
        scratch = self._scratch(min(room, unique.size), length)
        rows = scratch.reshape(-1, filled.shape[1])
        source = inverse * length + within
        for start in range(0, unique.size, room):
            self._decode_chunks(unique[start : start + room].tolist())
            if unique.size <= room:
                if places is None:
                    rows.take(source, axis=0, out=filled, mode="clip")
                else:
                    filled[places] = rows.take(source, axis=0)
                return
            here = ((inverse >= start) & (inverse < start + room)).nonzero()[0]
            target = here if places is None else places[here]
            filled[target] = rows.take(source[here] - start * length, axis=0)

    def _scratch(self, n_chunks: int, length: int) -> Array:
        """(n, inner rows, elements a row), one for each thread, kept."""
        have: Array | None = getattr(self._local, "scratch", None)
        if have is None or len(have) < n_chunks:
            have = np.empty((n_chunks, length, self._row_bytes // self.dtype.itemsize), self.dtype)
            self._local.scratch = have
            self._local.parts = list(have.reshape(n_chunks, -1).view(np.uint8))
        return have

    def _decode_chunks(self, keys: list[int]) -> None:
        """Decode inner chunks into the places of the scratch, in order."""
        parts: list[Bytes] = self._local.parts
        for part, key in zip(parts, keys, strict=False):
            number, chunk = key >> LANE_SHIFT, key & _ROW_MASK
            size = self._specs[number].inner_rows * self._row_bytes
            self._decode_chunk(number, chunk, part if self._uniform else part[:size])

    def _decode_chunk(self, number: int, chunk: int, out: Bytes) -> None:
        shard, inner = divmod(chunk, self._per_shard[number])
        found = self._shards.get((number, shard)) or self._open(number, shard)
        found.decode(inner, out)

    def _open(self, number: int, chunk: int) -> Shard:
        lane, spec = self._lanes[number], self._specs[number]
        path = chunk_path(lane.path, spec, chunk)
        try:
            found = Shard(path, spec, self._codecs[number])
        except FileNotFoundError as error:
            raise lane.missing(path, (chunk + 1) * spec.chunk_rows) from error
        lane.check_in_place()
        with self._lock:
            self._shards[number, chunk] = found
            while len(self._shards) > _MAX_SHARDS:
                self._shards.popitem(last=False)
        return found

    def read(self, number: int, start: int, stop: int) -> Array:
        """A copy of rows [start, stop) of one lane."""
        first = number << LANE_SHIFT
        return self.take(np.arange(first + start, first + stop, dtype=np.int64))
