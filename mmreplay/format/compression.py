"""Compress frames into inner chunks with a crc32c behind, and check these before decoding them.

Invariant: `decode` writes exactly the bytes that `encode` was given, or raises; whatever the
payload is, the decompressor never sees one whose header could lead it astray.
"""

from __future__ import annotations

import contextlib
import importlib
import struct
import zlib
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import native_decoders

Bytes = npt.NDArray[np.uint8]

CRC_BEHIND = 0x48674BC7
"""The CRC-32C of any bytes that have their own CRC-32C behind them."""

_CRC = struct.Struct("<I")
# The remainders of 1 and of x**8 modulo the polynomial of CRC-32C, bit 31 for x**0.
_POLYNOMIAL, _ONE, _A_BYTE = 0x82F63B78, 1 << 31, 1 << 23
_ALL_BITS = (1 << 32) - 1
_SLICE_BYTES = 256 * 1024
_BLOSC_HEADER = struct.Struct("<BBBBIII")
_BLOSC_MEMCPYED = 0x2
_BLOSC_COMPRESSORS = (1, 4)  # lz4 (lz4hc has the same decoder) and zstd
_BLOSC_PLAIN_LZ4, _BLOSC_UNSPLIT = 0x20, 0x10  # flags: not shuffled, not stored; in one stream
_LZ4_MOST = 1 << 31  # its functions take int
_BLOSC_STREAM = _BLOSC_HEADER.size + 8  # of a single block: behind its place, and its length
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_OPTIONS: dict[str, dict[str, tuple[Any, Any]]] = {
    "gzip": {"level": (range(10), 5)},
    "zstd": {"level": (range(-131_072, 23), 1), "checksum": ((False, True), False)},
    "blosc": {
        "typesize": (range(1, 256), None),
        "cname": (("lz4", "lz4hc", "zstd"), "lz4hc"),
        "clevel": (range(10), 5),
        "shuffle": (("noshuffle", "shuffle", "bitshuffle"), "noshuffle"),
        "blocksize": (range(1 << 31), 0),
    },
}
"""The values that each option of a compressor may have, and its default; None: the item size."""


def crc32c(data: bytes | Bytes, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of contiguous bytes; `value` is that of the bytes before, if any."""
    if len(data) <= _SLICE_BYTES:
        return int(google_crc32c.extend(value, data))
    # In slices: the interpreter lock is held for each, and a writer may be waiting for it.
    for start in range(0, len(data), _SLICE_BYTES):
        value = google_crc32c.extend(value, data[start : start + _SLICE_BYTES])
    return int(value)


def crc32c_of_zeros(length: int, value: int = 0) -> int:
    """The CRC-32C of `length` zero bytes after bytes with CRC `value`, in logarithmic time."""
    shift, power = _ONE, _A_BYTE
    while length:
        if length & 1:
            shift = _product(shift, power)
        power, length = _product(power, power), length >> 1
    return _product(shift, value ^ _ALL_BITS) ^ _ALL_BITS


def _product(left: int, right: int) -> int:
    """The product of two remainders modulo the polynomial of CRC-32C."""
    out = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            out ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return out


def checked_codec(document: dict[str, Any], where: str, itemsize: int) -> dict[str, Any]:
    """A compressor of the standard set, with all of its configuration; raises FormatError."""
    name, given = document.get("name"), document.get("configuration", {})
    if not isinstance(name, str) or name not in _OPTIONS:
        raise FormatError(
            f"{where}: expected a codec of the standard set (blosc, zstd, gzip), found "
            f"{name!r:.200}"
        )
    if not isinstance(given, dict):
        raise FormatError(f"{where}: {name}: expected a configuration, found {given!r:.200}")
    out = {}
    for key, (allowed, default) in _OPTIONS[name].items():
        value = out[key] = given.get(key, itemsize if default is None else default)
        if type(value) is not type(allowed[0]) or value not in allowed:
            words = f"{allowed[0]} to {allowed[-1]}" if isinstance(allowed, range) else allowed
            raise FormatError(f"{where}: {name}: {key}: expected {words}, found {value!r:.200}")
    return {"name": name, "configuration": out}


def encode(codec: ChunkCodec, data: Bytes, *, fast: bool = False) -> bytes:
    """The bytes of an inner chunk: compressed, with a crc32c behind."""
    payload = codec.compress(data, fast=fast)
    return payload + _CRC.pack(crc32c(payload))


def check(codec: ChunkCodec, stored: Bytes, size: int) -> bool:
    """Check checksum and header, which is needed once for a chunk; raises CorruptStoreError.

    Returns whether the codec's `native` decoder may decode it. That can stop at the last byte that
    is needed: damage behind it is found here, by the checksum, or when those bytes are needed.
    """
    if stored.size <= _CRC.size:
        raise CorruptStoreError(f"expected a compressed chunk, found {stored.size} bytes")
    payload = stored[: -_CRC.size]
    if crc32c(stored) != CRC_BEHIND:
        (expected,) = _CRC.unpack_from(stored.data, payload.size)
        raise CorruptStoreError(f"expected crc32c {expected:08x}, found {crc32c(payload):08x}")
    return codec.check(payload, size)


def decode(codec: ChunkCodec, stored: Bytes, out: Bytes, *, native: bool = False) -> None:
    """Fill `out` with a chunk that `check` has passed; raises CorruptStoreError if that fails.

    `native`: what `check` has returned.
    """
    if native and codec.native is not None:
        size = out.size
        if codec.native(stored.ctypes.data, stored.size, out.ctypes.data, size, size):
            return
    try:
        codec.decompress(stored[: -_CRC.size], out)
    except (RuntimeError, ValueError, zlib.error) as error:
        raise CorruptStoreError(f"cannot be decompressed: {error}") from error


def make_codec(document: dict[str, Any]) -> ChunkCodec:
    """The codec for a compressor as it stands, checked, in zarr.json."""
    options = document["configuration"]
    if document["name"] == "blosc":
        return _Blosc(options)
    if document["name"] == "zstd":
        return _Zstd(options)
    return _Gzip(options)


class _Blosc:
    def __init__(self, options: dict[str, Any]) -> None:
        from numcodecs import blosc  # noqa: PLC0415 (a third of the time of importing mmreplay)

        # Its first call would import this: a child that is forked meanwhile, for which that import
        # never ends, would wait for it.
        with contextlib.suppress(ImportError):
            importlib.import_module("multiprocessing.synchronize")

        # As zarr itself does: blosc's own pool costs more than it gives on chunks of 100 KB, and
        # without it numcodecs uses blosc's reentrant calls, which release the interpreter lock.
        blosc.use_threads = False
        self._blosc = blosc
        self.native = native_decoders.lz4()
        self.stops_early = self.native is not None
        self._shuffle = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[options["shuffle"]]
        self._cname = options["cname"].encode()
        self._level = options["clevel"]
        self._block, self._typesize = options["blocksize"], options["typesize"]
        self.decompress = blosc.decompress  # as it is: it is called for each chunk of each batch

    def compress(self, data: Bytes, *, fast: bool) -> bytes:
        # lz4hc and lz4 share header and decoder: a chunk of either is read by the same code.
        cname, level = self._cname, self._level
        if fast and cname == b"lz4hc":
            cname, level = b"lz4", 9  # no slower than a lower level, and a tenth smaller
        compress = self._blosc.compress
        return bytes(compress(data, cname, level, self._shuffle, self._block, self._typesize))

    def check(self, payload: Bytes, size: int) -> bool:
        if payload.size < _BLOSC_HEADER.size:
            raise CorruptStoreError(f"expected a blosc header, found {payload.size} bytes")
        data = payload.data
        header = _BLOSC_HEADER.unpack_from(data)
        version, lz_version, flags, typesize, n_bytes, block, c_bytes = header
        if version != 2 or n_bytes != size or c_bytes != payload.size or typesize < 1:  # noqa: PLR2004
            raise CorruptStoreError(
                f"blosc header: expected version 2, {size} bytes from {payload.size}; found "
                f"version {version}, {n_bytes} from {c_bytes}"
            )
        if flags & _BLOSC_MEMCPYED:
            if c_bytes != size + _BLOSC_HEADER.size:
                raise CorruptStoreError("blosc header: stored, but of another length")
            return False
        if flags >> 5 not in _BLOSC_COMPRESSORS or not 0 < block <= size:
            raise CorruptStoreError(
                f"blosc header: compressor {flags >> 5} or block size {block} is not allowed"
            )
        n_blocks = -(-size // block)
        start = _BLOSC_HEADER.size + 4 * n_blocks
        if start > c_bytes:
            raise CorruptStoreError("blosc header: the table of blocks does not fit")
        # Of a few blocks as a rule, for which an array would take longer.
        table = struct.unpack_from(f"<{n_blocks}i", data, _BLOSC_HEADER.size)
        if min(table) < start or max(table) >= c_bytes:
            raise CorruptStoreError("blosc header: a block lies outside the chunk")
        # One block of lz4, in one stream that fills the chunk and is shorter than what it holds.
        is_plain = flags & ~_BLOSC_UNSPLIT == _BLOSC_PLAIN_LZ4 and lz_version == 1
        is_one = table == (start,) and (typesize == 1 or flags & _BLOSC_UNSPLIT)
        if not is_plain or not is_one or self.native is None:
            return False
        length = int.from_bytes(data[start : start + 4], "little")
        return length == c_bytes - _BLOSC_STREAM and 0 < length < size < _LZ4_MOST


class _Zstd:
    stops_early = False

    def __init__(self, options: dict[str, Any]) -> None:
        from numcodecs import zstd  # noqa: PLC0415 (as blosc above)

        self._zstd = zstd
        self._level, self._checksum = options["level"], options["checksum"]
        self.native = native_decoders.zstd()
        self.decompress = zstd.decompress

    def compress(self, data: Bytes, *, fast: bool) -> bytes:
        level = min(self._level, 1) if fast else self._level
        return bytes(self._zstd.compress(data, level, self._checksum))

    def check(self, payload: Bytes, size: int) -> bool:
        """The frame's declared content size, RFC 8878 section 3.1.1."""
        head = payload[:18].tobytes()
        if head[:4] != _ZSTD_MAGIC or len(head) < 6:  # noqa: PLR2004
            raise CorruptStoreError("expected a zstd frame, found something else")
        flags = head[4]
        single = bool(flags & 0x20)
        position = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
        width = (int(single), 2, 4, 8)[flags >> 6]
        declared = int.from_bytes(head[position : position + width], "little")
        declared += 256 if width == 2 else 0  # noqa: PLR2004
        if not width or position + width > len(head) or declared != size:
            raise CorruptStoreError(f"zstd frame: expected {size} bytes, found {declared} declared")
        return self.native is not None


class _Gzip:
    native, stops_early = None, False

    def __init__(self, options: dict[str, Any]) -> None:
        self._level = options["level"]

    def compress(self, data: Bytes, *, fast: bool) -> bytes:
        return zlib.compress(data.data, min(self._level, 1) if fast else self._level, wbits=31)

    def check(self, payload: Bytes, size: int) -> bool:
        # The length field of gzip is not a bound; decompress() below stops one byte past the size.
        if payload.size < 18 or payload[0] != 0x1F or payload[1] != 0x8B:  # noqa: PLR2004
            raise CorruptStoreError(f"expected a gzip stream for {size} bytes")
        return False

    def decompress(self, payload: Bytes, out: Bytes) -> None:
        data = zlib.decompressobj(wbits=31).decompress(payload.data, out.size + 1)
        if len(data) != out.size:
            raise ValueError(f"expected {out.size} bytes, found {len(data)}")
        out[:] = np.frombuffer(data, np.uint8)


ChunkCodec = _Blosc | _Zstd | _Gzip
"""Compresses chunks, `fast` for a writer that cannot wait. `check` raises CorruptStoreError unless
`decompress` would fill exactly `size` bytes."""
