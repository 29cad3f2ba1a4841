"""Read compressed columns of all lanes: rows decoded from shards, or copied from the tail.

Invariant: a row is read from the tail only if it was still there after it had been copied.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.format import compression
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids, distinct
from mmreplay.storage.chunk_files import LaneFiles, chunk_path
from mmreplay.storage.decoded_chunks import DecodedChunks
from mmreplay.storage.shard_file import Bytes, OpenShard, Shard
from mmreplay.system import platform

_SCRATCH_BYTES = 16 << 20
# Rows that follow each other, on average, from which on each such run is copied by itself:
_RUN_BYTES, _RUN_OF_CHUNK = 4096, 0.25
_MAX_SHARDS = 4096  # per column: if there are more, they are not mapped
_NEIGHBOURS = 1.25  # chunks that blocks read, and those beside them, by those that blocks have
_LEAST_CHUNKS = 64  # besides, for the first frames of episodes, and blocks that end in a chunk


AnyShard = Shard | OpenShard
_NO_FILE: tuple[Any, Any] = None, None


class ShardColumn:
    """A compressed column of all lanes of a store."""

    def __init__(self, lanes: Sequence[LaneFiles], path: str) -> None:
        self._lanes = lanes
        self._path = path
        self._specs = [lane.specs[path] for lane in lanes]
        spec = self._specs[0]
        self.row_shape, self.dtype = spec.row_shape, spec.dtype
        self._row_bytes = spec.row_bytes
        self._codecs = [compression.make_codec(s.codec or {}) for s in self._specs]
        self._stops_early = any(codec.stops_early for codec in self._codecs)
        self._inner = np.array([s.inner_rows for s in self._specs], np.int64)
        self.longest_inner, self.shortest_inner = int(self._inner.max()), int(self._inner.min())
        self._chunk_bytes = [s.inner_rows * self._row_bytes for s in self._specs]
        # Inner chunks that lie beside each other: row r is of the one with the number r % width.
        self._widths = np.array([s.width for s in self._specs], np.int64)
        self._has_widths = bool((self._widths > 1).any())
        self._per_shard = [s.n_inner for s in self._specs]
        self._shards: dict[tuple[int, int], Shard] = {}  # those that are mapped
        self._has_tails = any(path in lane.tails for lane in lanes)
        self._lock = threading.Lock()
        self._local = threading.local()
        self._choose_maps()

    def _choose_maps(self) -> None:
        """Decide whether shards are mapped: mapping very many takes longer than reading them."""
        n_shards = sum(
            -(-lane.head // spec.chunk_rows) - lane.base // spec.chunk_rows
            for lane, spec in zip(self._lanes, self._specs, strict=True)
        )
        self._maps_shards = n_shards <= _MAX_SHARDS

    def refresh(self) -> None:
        """Forget shards that were evicted: their blocks are free once they are unmapped."""
        self._choose_maps()
        bases = [lane.base for lane in self._lanes]
        with self._lock:
            gone = [
                (number, shard)
                for number, shard in self._shards
                if (shard + 1) * self._specs[number].chunk_rows <= bases[number]
            ]
            for key in gone:
                del self._shards[key]

    def release(self) -> None:
        """As `memory_maps.release`, of all shards."""
        with self._lock:
            for shard in self._shards.values():
                shard.release()

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def take(self, ids: Ids, out: Array | None = None, kept: DecodedChunks | None = None) -> Array:
        """Rows by id; each inner chunk is decoded once, or not at all if it is among those `kept`.

        `out` is C-contiguous, (*ids.shape, *row_shape). Raises EvictedError, CorruptStoreError.
        """
        if out is None:
            out = np.empty((*ids.shape, *self.row_shape), self.dtype)
        if not ids.size:
            return out
        wanted = ids.ravel()
        filled = out.reshape(-1, self._row_bytes // self.dtype.itemsize)
        todo = None
        if self._has_tails:
            todo = self._take_from_tails(wanted, filled)
            if todo is not None:
                wanted = wanted[todo]
            if not wanted.size:
                return out
        try:
            if kept is None or not self._take_kept(wanted, filled, todo, kept):
                self._decode(wanted, filled, todo)
        finally:  # what was read by path, or was damage, may be of another store
            if not self._maps_shards:
                self._close_file()
                for number in distinct(wanted >> LANE_SHIFT).tolist():
                    self._lanes[number].check_in_place()
        return out

    def _take_kept(
        self, wanted: Ids, filled: Array, places: Ids | None, kept: DecodedChunks
    ) -> bool:
        """Copy rows from chunks that stay decoded; False if there is not enough room."""
        keys, within = self._locate(wanted)
        unique, inverse = np.unique(keys, return_inverse=True)
        with kept.hold(unique.tolist(), self._decode_key) as slots:
            if slots is None:
                return False
            source = slots[inverse] * self.longest_inner + within
            if places is None:
                kept.rows.take(source, axis=0, out=filled, mode="clip")
            else:
                filled[places] = kept.rows.take(source, axis=0)
        return True

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
            rows = wanted[here] & ROW_MASK
            filled[here] = tail.take(rows % len(tail), axis=0).reshape(here.size, -1)
            # The writer takes a half of the tail back only after tail_start has passed it, so
            # what is not below the new tail_start was whole; the rest is in a shard by now.
            if platform.barrier is not None:
                platform.barrier()
            moved = (number << LANE_SHIFT) + lane.tail_start()
            if moved > start:
                here = here[wanted[here] >= moved]
            if left is None:
                left = np.ones(wanted.size, bool)
            left[here] = False
        return None if left is None else left.nonzero()[0]

    def _locate(self, wanted: Ids) -> tuple[Ids, Ids]:
        """The inner chunks of rows, lane << LANE_SHIFT | chunk, and where in these they stand."""
        if len(self._lanes) == 1 and not self._has_widths:
            inner: Any = int(self._inner[0])
            keys, within = np.divmod(wanted, inner)
            return keys, within
        lanes = wanted >> LANE_SHIFT
        rows, inner = wanted & ROW_MASK, self._inner[lanes]
        if self._has_widths:
            widths = self._widths[lanes]
            steps = rows // widths
            keys = steps // inner
            within = steps - keys * inner
            # (keys * widths) and the environment, which is what the division by widths leaves.
            steps -= keys
            steps *= widths
            keys = rows - steps
        else:
            keys, within = np.divmod(rows, inner)
        keys |= lanes << LANE_SHIFT
        return keys, within

    def _decode(self, wanted: Ids, filled: Array, places: Ids | None) -> None:
        """Decode chunk after chunk, and copy its rows while they are in the processor's cache."""
        keys, within = self._locate(wanted)
        begins = np.empty(wanted.size, np.bool_)
        begins[0] = True
        np.not_equal(within[1:] - within[:-1], 1, out=begins[1:])
        begins[1:] |= keys[1:] != keys[:-1]
        if places is not None:
            begins[1:] |= places[1:] - places[:-1] != 1
        starts = begins.nonzero()[0]
        # Fewer bytes are copied faster all at once, from wherever they are by then.
        least = min(_RUN_BYTES / self._row_bytes, _RUN_OF_CHUNK * self.longest_inner)
        if wanted.size < least * starts.size:
            self._gather(keys, within, filled, places)
            return
        lengths = np.empty(starts.size, np.int64)
        np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
        lengths[-1] = wanted.size - starts[-1]
        chunks, firsts = keys[starts], within[starts]
        # Of each chunk first what ends last, so that it is decoded once, and no further; of these
        # the longest, as a whole chunk is decoded in its place.
        order = np.lexsort((firsts - (firsts + lengths) * self.longest_inner, chunks))
        to = starts if places is None else places[starts]
        runs = [chunks[order], *(one[order] * self._row_bytes for one in (firsts, lengths, to))]
        target = filled.reshape(-1).view(np.uint8)
        if (
            places is None and self._maps_shards and self._stops_early
        ):  # so all of `filled` is written here
            runs = self._decode_in_place(runs, target)
        if runs[0].size:
            self._decode_and_copy(runs, target)

    def _decode_in_place(self, runs: list[Ids], target: Bytes) -> list[Ids]:
        """Decode chunks of one run each so that it comes to its place; returns the other runs.

        A run is a chunk, and in bytes where it begins there, its length, and its place. What stands
        before it in the chunk is written over what stands before its place, which is written later:
        the last one comes first.
        """
        chunks, begins, _, to = runs
        alone = np.ones(chunks.size + 1, np.bool_)
        np.not_equal(chunks[1:], chunks[:-1], out=alone[1:-1])
        some = (alone[1:] & alone[:-1] & (begins <= to)).nonzero()[0]
        some = some[to[some].argsort()[::-1]]
        base, left = target.ctypes.data, np.ones(chunks.size, np.bool_)
        each = zip(some.tolist(), *(one[some].tolist() for one in runs), strict=True)
        for number, key, begin, n_bytes, at in each:
            if self._decode_chunk(key, None, base + at - begin, begin + n_bytes):
                left[number] = False
        return [one[left] for one in runs]

    def _decode_and_copy(self, runs: list[Ids], target: Bytes) -> None:
        """Decode chunks into the same room, one after the other; a whole one into its place."""
        spare = self._scratch(1)[0]
        address = spare.ctypes.data
        known, rows, into = None, spare.data, target.data
        for key, begin, n_bytes, at in zip(*(one.tolist() for one in runs), strict=True):
            if known != key:
                known, size = key, self._chunk_bytes[key >> LANE_SHIFT]
                if n_bytes == size:
                    self._decode_chunk(key, target[at : at + size])
                    rows = into[at : at + size]
                    continue
                rows = spare.data
                if not self._decode_chunk(
                    key, None, address, begin + n_bytes if self._stops_early else size
                ):
                    self._decode_chunk(key, spare[:size])
            into[at : at + n_bytes] = rows[begin : begin + n_bytes]

    def _gather(self, keys: Ids, within: Ids, filled: Array, places: Ids | None) -> None:
        """As `_decode`, of small rows in any order: chunks are decoded, then all rows copied."""
        unique, inverse = np.unique(keys, return_inverse=True)
        length = self.longest_inner
        room = max(1, _SCRATCH_BYTES // (length * self._row_bytes))
        scratch = self._scratch(min(room, unique.size))
        rows = scratch.reshape(-1).view(filled.dtype).reshape(-1, filled.shape[1])
        source = inverse * length + within
        for start in range(0, unique.size, room):
            for part, key in zip(scratch, unique[start : start + room].tolist(), strict=False):
                self._decode_key(key, part)
            if places is None and unique.size <= room:
                rows.take(source, axis=0, out=filled, mode="clip")
                return
            here = ((inverse >= start) & (inverse < start + room)).nonzero()[0]
            target = here if places is None else places[here]
            filled[target] = rows.take(source[here] - start * length, axis=0)

    def _scratch(self, n_chunks: int) -> Bytes:
        """(n or more, bytes of the longest chunk), one for each thread, kept."""
        have: Bytes | None = getattr(self._local, "scratch", None)
        if have is None or len(have) < n_chunks:
            have = np.empty((n_chunks, self.longest_inner * self._row_bytes), np.uint8)
            self._local.scratch = have
        return have

    def _decode_key(self, key: int, part: Bytes) -> None:
        """Decode an inner chunk into room for the longest one."""
        self._decode_chunk(key, part[: self._chunk_bytes[key >> LANE_SHIFT]])

    def _decode_chunk(
        self, key: int, out: Bytes | None, address: int = 0, n_bytes: int = 0
    ) -> bool:
        """Decode the inner chunk that a key of `_locate` names; those of a file in succession.

        Without `out` only its first bytes, to an address, if that can be done; else it is False.
        """
        number = key >> LANE_SHIFT
        shard, inner = divmod(key & ROW_MASK, self._per_shard[number])
        which = number, shard
        try:
            opened = self._shards.get(which) or self._opened(which)
            if out is None:
                return opened.decode_start(inner, address, n_bytes)
            opened.decode(inner, out)
        except FileNotFoundError as error:
            lane, spec = self._lanes[number], self._specs[number]
            path = chunk_path(lane.path, spec, shard)
            raise lane.missing(path, (shard + 1) * spec.chunk_rows) from error
        return True

    def _opened(self, which: tuple[int, int]) -> AnyShard:
        """A shard that is not mapped, or not yet; see `_choose_maps`."""
        number, chunk = which
        lane, spec, codec = self._lanes[number], self._specs[number], self._codecs[number]
        path = chunk_path(lane.path, spec, chunk)
        if self._maps_shards:
            shard = Shard(path, spec, codec)
            lane.check_in_place()
            with self._lock:
                self._shards[which] = shard
            return shard
        known, file = getattr(self._local, "file", _NO_FILE)
        if known != which:
            self._close_file()
            file = OpenShard(path, spec, codec)
            self._local.file = which, file
        out: OpenShard = file
        return out

    def _close_file(self) -> None:
        _, file = getattr(self._local, "file", _NO_FILE)
        if file is not None:
            self._local.file = _NO_FILE
            file.close()


class KeptColumn:
    """A column of shards that keeps decoded what blocks of `n_rows` rows need."""

    def __init__(self, column: ShardColumn, n_rows: int) -> None:
        self.row_shape, self.dtype = column.row_shape, column.dtype
        self._column = column
        n_chunks = int(n_rows * _NEIGHBOURS / column.shortest_inner) + _LEAST_CHUNKS
        items = math.prod(column.row_shape)
        self._kept = DecodedChunks(n_chunks, column.longest_inner, items, column.dtype)

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """As of `ShardColumn`."""
        return self._column.take(ids, out, self._kept)
