"""PNG files, with the standard library's zlib."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from mmreplay.pictures.images import Image

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY, _RGB = 0, 2
_AXES_OF_RGB = 3


def png(image: Image) -> bytes:
    """An image, (H, W) or (H, W, 3) uint8, as the bytes of a PNG file.

    Source: W3C, Portable Network Graphics (PNG) Specification, sections 5 and 11.
    """
    height, width = image.shape[:2]
    colours = _RGB if image.ndim == _AXES_OF_RGB else _GRAY
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    rows = image.reshape(height, -1)
    # Before each row stands the number of its filter: none.
    lines = np.concatenate((np.zeros((height, 1), np.uint8), rows), axis=1)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
