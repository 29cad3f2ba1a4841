"""Chunks damaged on purpose, with checksums that fit, between pages that no one may touch.

``python -m tests.support.hostile_chunks ROUNDS [SEED]`` decodes so many, by address and as
numcodecs does, and says what it saw; a read or a write out of bounds kills it.
"""

import ctypes
import mmap
import struct
import sys

import google_crc32c
import numpy as np

from mmreplay.errors import CorruptStoreError
from mmreplay.format import compression

_HEADER = struct.Struct("<BBBBIII")
_NAMES = ("version", "lz", "flags", "typesize", "n_bytes", "block", "c_bytes")
_STREAM = _HEADER.size + 8
_SIZES = (130, 3000, 40_000)
_FILL = 171
_BLOSC = {"clevel": 5, "shuffle": "noshuffle", "typesize": 1, "blocksize": 0, "cname": "lz4hc"}
_CODECS = (
    {"name": "blosc", "configuration": _BLOSC},
    {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
)


def sealed(payload):
    """A payload with the right checksum behind, whatever it holds."""
    sum_ = google_crc32c.value(bytes(payload))
    return np.frombuffer(bytes(payload) + struct.pack("<I", sum_), np.uint8)


def header(chunk, **changes):
    """A blosc chunk with other values in its header, and the right checksum."""
    values = dict(zip(_NAMES, _HEADER.unpack(chunk[:16].tobytes()), strict=True))
    return sealed(_HEADER.pack(*(values | changes).values()) + chunk[16:-4].tobytes())


class Guarded:
    """Room between two pages that may not be touched."""

    def __init__(self, n_bytes):
        page = mmap.PAGESIZE
        self.n_bytes = -(-n_bytes // page) * page
        self._map = mmap.mmap(-1, self.n_bytes + 2 * page)
        self.array = np.frombuffer(self._map, np.uint8)[page:-page]
        self.start = self.array.ctypes.data
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        for address in (self.start - page, self.start + self.n_bytes):
            if protect(address, page, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, n_bytes, at_end):
        """Where so many bytes lie that begin behind the first page, or end before the last one."""
        begin = self.n_bytes - n_bytes if at_end else 0
        return begin, self.start + begin


def damaged(payload, random, is_blosc):
    """A payload with a few bytes changed, cut, repeated, or followed by others; of blosc its header
    says what fits, most of the time."""
    out = bytearray(payload)
    begin = _STREAM if is_blosc and random.random() < 0.8 else 0
    for _ in range(random.integers(1, 4)):
        where = int(random.integers(begin, len(out)))
        few = int(random.integers(1, 40))
        how = random.integers(6)
        if how == 0:
            out[where] ^= 1 << random.integers(8)
        elif how == 1:
            out[where] = random.choice([0, 1, 15, 16, 127, 128, 240, 254, 255])
        elif how == 2:
            out[where : where + few] = bytes([random.choice([0, 255])]) * few
        elif how == 3:
            out[where : where + few] = random.integers(0, 256, few, np.uint8).tobytes()
        elif how == 4:
            del out[max(where, _STREAM + 1) :]
        else:
            out[where:where] = out[where : where + few]
    if is_blosc and begin and len(out) > _STREAM:
        out[12:16] = len(out).to_bytes(4, "little")
        out[20:24] = (len(out) - _STREAM).to_bytes(4, "little")
    return bytes(out)


def decode_many(n_rounds, seed):
    """How many chunks were refused, decoded, and decoded up to damage that came later."""
    random = np.random.default_rng(seed)
    source, target = Guarded(2 * max(_SIZES) + 4096), Guarded(max(_SIZES))
    seen = {"refused": 0, "whole": 0, "start": 0, "start of a damaged one": 0, "failed": 0}
    for document in _CODECS:
        codec, is_blosc = compression.make_codec(document), document["name"] == "blosc"
        for size in _SIZES:
            if codec.native is None:
                return {"without a decoder": 1}
            noise = random.integers(0, 256, -(-size // 9), dtype=np.uint8)
            data = np.repeat(noise, random.integers(1, 19, noise.size))[:size].copy()
            data.resize(size)
            for number in range(n_rounds):
                encoded = compression.encode(codec, data, fast=number % 2 == 0)[:-4]
                chunk = sealed(damaged(encoded, random, is_blosc))
                _decode_one(codec, chunk, size, is_blosc, (source, target), random, seen)
    return seen


def _decode_one(codec, chunk, size, is_blosc, rooms, random, seen):
    expected = np.full(size, _FILL, np.uint8)
    try:
        is_native = compression.check(codec, chunk, size)
        try:
            compression.decode(codec, chunk, expected)
            is_whole = True
        except CorruptStoreError:
            is_whole = False
    except CorruptStoreError:
        is_native = False
    if not is_native:
        seen["refused"] += 1
        return
    # LZ4 does not refuse a distance of 0, which no encoder writes; what stands there is arbitrary.
    is_known = is_whole and not (is_blosc and 0 in _distances(chunk[_STREAM:-4].tobytes()))
    source, target = rooms
    lengths = [*random.integers(1, size, 3), size] if is_blosc else [size]
    for n_bytes in map(int, lengths):
        begin, stored = source.place(chunk.size, random.random() < 0.5)
        source.array[begin : begin + chunk.size] = chunk
        at, out = target.place(n_bytes, random.random() < 0.5)
        target.array[:] = _FILL
        is_there = codec.native(stored, chunk.size, out, n_bytes, size)
        found, behind = target.array[at : at + n_bytes], target.array[at + n_bytes :]
        assert (behind == _FILL).all()
        if n_bytes == size:
            assert is_there == is_whole
        assert not is_there or not is_known or np.array_equal(found, expected[:n_bytes])
        kind = ("whole" if n_bytes == size else "start") if is_whole else "start of a damaged one"
        seen[kind if is_there else "failed"] += 1


def _distances(block):
    """Those of the matches in a sound LZ4 block."""
    at = 0
    while True:
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        at += literals
        if at >= len(block):
            return
        yield int.from_bytes(block[at : at + 2], "little")
        _, at = _length(block, at + 2, token & 15)


def _length(block, at, length):
    """A length that begins with four bits of the token, and where it ends."""
    more = 255 if length == 15 else 0
    while more == 255:
        more, at = block[at], at + 1
        length += more
    return length, at


if __name__ == "__main__":
    print("sound:", decode_many(int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0))
