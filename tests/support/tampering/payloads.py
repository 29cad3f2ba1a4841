"""Shards and compressed chunks with other contents: bytes in, bytes out.

Invariant: what is written behind bytes to check them fits, whatever was done to them.
"""

import struct
from dataclasses import dataclass

import numpy as np

from mmreplay.format.compression import crc32c
from tests.support.tampering.fixtures import chance

_ABSENT = (1 << 64) - 1


@dataclass(slots=True)
class Parts:
    chunks: list[bytes]  # payloads, without their crc32c
    index: list[list[int]]

    @staticmethod
    def of(data, n_chunks):
        end = len(data) - 16 * n_chunks - 4
        table = np.frombuffer(data[end:-4], "<u8").reshape(n_chunks, 2).tolist()
        chunks = [data[at : at + size - 4] for at, size in table if at != _ABSENT]
        return Parts(chunks, table)

    def joined(self, *, digest, moved):
        """The file again, all crc32c's but the digest made to fit."""
        stored = [one + crc32c(one).to_bytes(4, "little") for one in self.chunks]
        if moved:
            at = 0
            for number, one in enumerate(stored):
                self.index[number] = [at, len(one)]
                at += len(one)
        table = b"".join(struct.pack("<QQ", *(n % (1 << 64) for n in pair)) for pair in self.index)
        known = crc32c(b"".join(one[-4:] for one in stored)) if digest else 0x12345678
        parts = [*stored, known.to_bytes(4, "little"), table, crc32c(table).to_bytes(4, "little")]
        return b"".join(parts)


def spoil_payload(codec, payload, random_):
    """Change what a codec has compressed; returns it, and what was done."""
    return _SPOILERS.get(codec, _spoil_stream)(payload, random_)


def spoil_index(index, size, random_):
    """Change an entry of the index of a shard of so many bytes; returns what was done."""
    number, which = random_.randrange(len(index)), random_.randrange(2)
    old = index[number][which]
    other = random_.choice(index)
    new = random_.choice(
        (0, 1, size, size - 4, size + 1, old + 1, old - 1, old + 16, _ABSENT, _ABSENT - 1, 1 << 63,
         (1 << 63) - 1, 1 << 32, 1 << 40, (1 << 64) - old, other[0], other[1], sum(other), 4, 5)
    )  # fmt: skip
    index[number][which] = new
    if chance(random_, 0.2):
        index[number][1 - which] = random_.choice((0, _ABSENT, 1 << 63, other[1]))
    return f"index {number}.{which}: {old} -> {new}"


def _fields(payload, places, random_):
    """Another value in one of the fields at (offset, struct format)."""
    out = bytearray(payload)
    at, form = random_.choice(places)
    width = struct.calcsize(form)
    if at + width > len(out):
        return _spoil_stream(payload, random_)
    old = struct.unpack_from(form, out, at)[0]
    most = 256**width - 1
    new = random_.choice(
        (0, 1, 2, 3, 4, 15, 16, 17, 20, old + 1, old - 1, old * 2, old // 2, old ^ 1 << 4, most,
         most // 2, most // 2 + 1, len(payload), len(payload) - 1, random_.randrange(most + 1))
    )  # fmt: skip
    struct.pack_into(form, out, at, new & most)
    return bytes(out), f"byte {at}: {old} -> {new & most}"


def _spoil_blosc(payload, random_):
    """Version, codec version, flags, typesize, sizes, block table, sizes of streams."""
    if chance(random_, 0.35):
        return _spoil_stream(payload, random_)
    places = ((0, "B"), (1, "B"), (2, "B"), (3, "B"), (4, "<I"), (8, "<I"), (12, "<I"), (16, "<I"),
              (20, "<I"), (24, "<I"), (28, "<I"))  # fmt: skip
    out, words = _fields(payload, places, random_)
    if chance(random_, 0.3):
        more, other = _fields(out, places, random_)
        return more, f"{words}, {other}"
    return out, words


def _spoil_zstd(payload, random_):
    """Frame header, content size, window, block headers; frames that hold more than they say."""
    how = random_.random()
    if how < 0.3:
        return _spoil_stream(payload, random_)
    if how < 0.5:
        return _zstd_bomb(payload, random_)
    places = ((4, "B"), (5, "B"), (5, "<H"), (5, "<I"), (6, "B"), (6, "<H"), (6, "<I"), (8, "B"),
              (9, "B"), (10, "<I"), (0, "<I"))  # fmt: skip
    return _fields(payload, places, random_)


def _zstd_bomb(payload, random_):
    """A frame of our own making (RFC 8878): blocks of one repeated byte, windows without end."""
    size = random_.choice((6, 24, 8 * 24 * 32, 8 * 8, 1 << 20))
    declared = random_.choice((size, 6144, 24, 16, 1 << 30, (1 << 64) - 1, 0))
    window = random_.choice((0x00, 0x50, 0xF8, 0xFF))
    head = b"\x28\xb5\x2f\xfd" + bytes([0xC0 | random_.choice((0, 4, 8))]) + bytes([window])
    head += declared.to_bytes(8, "little")
    blocks = b""
    n_blocks = random_.choice((1, 2, 8, 2000))
    for number in range(n_blocks):
        length = random_.choice((128 << 10, size % (1 << 21), (1 << 21) - 1))
        last = number == n_blocks - 1 and chance(random_, 0.8)
        blocks += (int(last) | 1 << 1 | length << 3).to_bytes(3, "little") + b"x"
    skip = b"\x50\x2a\x4d\x18" + (1 << 31).to_bytes(4, "little")
    frame = random_.choice((head + blocks, skip + payload, payload + payload, payload + skip))
    return frame, f"a zstd frame made up, {declared} declared, {n_blocks} blocks"


def _spoil_stream(payload, random_):
    out = bytearray(payload)
    how = random_.randrange(5)
    if how == 0:
        return bytes(out[: random_.randrange(len(out) + 1)]), "cut"
    if how == 1:
        more = random_.randbytes(random_.choice((1, 9, 200)))
        return bytes(out) + more, "longer"
    for _ in range(random_.choice((1, 1, 2, 6))):
        if out:
            out[random_.randrange(len(out))] = random_.randrange(256)
    return bytes(out), "bytes changed"


_SPOILERS = {
    "blosc": _spoil_blosc,
    "zstd": _spoil_zstd,
}
