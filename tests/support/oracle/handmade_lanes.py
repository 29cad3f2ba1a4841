"""Lanes of one column whose files are written by hand, from docs/format.md."""

import struct

import google_crc32c
import numcodecs
import numpy as np

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import CODECS, ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage.chunk_files import EvictedError

ABSENT = (1 << 64) - 1
LZ4, ZSTD = CODECS["lz4"], CODECS["zstd"]


def compressed_spec(shard=12, inner=4, shape=(3,), dtype="uint8", codec=LZ4, width=1):
    """Of rows, or of the entries of steps of more than one environment."""
    if width == 1:
        return ArraySpec("frames", shape, np.dtype(dtype), shard, inner, codec)
    row = (width, *shape)
    return ArraySpec("frames", row, np.dtype(dtype), shard, inner, codec, width).entries(width)


def inner_chunk(data, codec):
    """An inner chunk, by numcodecs alone."""
    encoder = numcodecs.Zstd(1) if codec is ZSTD else numcodecs.Blosc("lz4", shuffle=0)
    payload = bytes(encoder.encode(np.ascontiguousarray(data).reshape(-1).view(np.uint8)))
    return payload + struct.pack("<I", google_crc32c.value(payload))


def shard_bytes(chunks, index):
    table = struct.pack(f"<{2 * len(index)}Q", *(n for entry in index for n in entry))
    return b"".join(chunks) + table + struct.pack("<I", google_crc32c.value(table))


def shard_of(rows, spec):
    """A shard file of up to spec.chunk_rows rows, put together by hand."""
    chunks, index, place = [], [], 0
    for start in range(0, spec.chunk_rows, spec.inner_rows * spec.width):
        block = rows[start : start + spec.inner_rows * spec.width]
        for env in range(spec.width):
            part = block[env :: spec.width]
            if not len(part):
                index.append((ABSENT, ABSENT))
                continue
            whole = np.zeros((spec.inner_rows, *spec.row_shape), spec.dtype)
            whole[: len(part)] = part
            chunks.append(inner_chunk(whole, spec.codec))
            index.append((place, len(chunks[-1])))
            place += len(chunks[-1])
    return shard_bytes(chunks, index)


class CompressedLane:
    """A lane of one compressed column: rows below `tail` in shards, the rest in a tail."""

    def __init__(self, path, spec, head, tail=None, base=0):
        self.path, self.spec, self.specs = path, spec, {"frames": spec}
        self.head, self.base, self.is_live, self.gone = head, base, True, 0
        shape = (head, *spec.row_shape)
        values = np.random.default_rng(head).integers(0, 100, shape)
        self.rows = values.astype(spec.dtype)
        (path / "frames").mkdir(parents=True)
        self.tails = {}
        self.start = head if tail is None else tail
        for chunk in range(base // spec.chunk_rows, -(-self.start // spec.chunk_rows)):
            self.seal(chunk)
        if tail is not None:
            buffer = np.zeros((2 * spec.chunk_rows, *spec.row_shape), spec.dtype)
            for row in range(tail, head):
                buffer[row % len(buffer)] = self.rows[row]
            self.tails = {"frames": buffer}

    def seal(self, chunk):
        n = self.spec.chunk_rows
        self.file(chunk).write_bytes(shard_of(self.rows[chunk * n : (chunk + 1) * n], self.spec))

    def file(self, chunk):
        return self.path / "frames" / self.spec.key(chunk)

    def tail_start(self):
        return self.start

    def missing(self, path, stop):
        return EvictedError(str(path)) if stop <= self.gone else CorruptStoreError(f"{path} {stop}")

    def check_in_place(self):
        pass


class RawLane:
    """A lane of one column whose chunk files were written by hand."""

    def __init__(self, path, spec, head, base=0):
        self.path, self.specs = path, {spec.path: spec}
        self.spec, self.head, self.base = spec, head, base
        self.is_live = True
        self.gone = 0  # files wholly below it were evicted
        count = int(np.prod(spec.row_shape))
        rows = -(-max(head, 1) // spec.chunk_rows) * spec.chunk_rows
        values = np.random.default_rng(rows).integers(0, 100, (rows, count))
        self.rows = values.astype(spec.dtype).reshape(rows, *spec.row_shape)
        (path / spec.path).mkdir(parents=True)
        for chunk in range(base // spec.chunk_rows, -(-head // spec.chunk_rows)):
            self.write(chunk)

    def write(self, chunk):
        n = self.spec.chunk_rows
        data = self.rows[chunk * n : (chunk + 1) * n].tobytes()
        (self.path / self.spec.path / self.spec.key(chunk)).write_bytes(data)

    def grow(self, head):
        n = self.spec.chunk_rows
        old = -(-self.head // n)
        extra = -(-head // n) * n - len(self.rows)
        if extra > 0:
            new = np.random.default_rng(head).integers(0, 100, (extra, *self.spec.row_shape))
            self.rows = np.concatenate((self.rows, new.astype(self.spec.dtype)))
        for chunk in range(old, -(-head // n)):
            self.write(chunk)
        self.head = head

    def file(self, chunk):
        return self.path / self.spec.path / self.spec.key(chunk)

    def missing(self, path, stop):
        return EvictedError(str(path)) if stop <= self.gone else CorruptStoreError(f"{path} {stop}")

    def check_in_place(self):
        pass


def ids_of(lanes, count, seed=0):
    """Random rows of random lanes, and what they hold."""
    random = np.random.default_rng(seed)
    numbers = random.integers(0, len(lanes), count)
    rows = np.array([random.integers(lanes[n].base, lanes[n].head) for n in numbers])
    values = np.stack([lanes[n].rows[row] for n, row in zip(numbers, rows, strict=True)])
    return (numbers << LANE_SHIFT) + rows, values
