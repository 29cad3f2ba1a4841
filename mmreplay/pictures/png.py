"""PNG files, with the standard library's zlib, and the pictures that notebooks show."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.pictures.images import Image, factor_for, limits_of, plane, resized, to_bytes

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GRAY, _RGB = 0, 2
_AXES_OF_RGB = 3
_MOST_FRAMES = 8
_SIDE, _GAP = 96, 2


def even(n: int) -> npt.NDArray[np.int64]:
    """At most eight numbers below n at even distances, including the first and the last."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, _MOST_FRAMES)).round().astype(np.int64))


def strip_png(frames: npt.NDArray[Any] | dict[str, npt.NDArray[Any]]) -> bytes | None:
    """Eight of the frames, (n, *frame), side by side as a PNG file; None if they are not images.

    Of a dict, those of the first key whose frames are images.
    """
    for values in frames.values() if isinstance(frames, dict) else [frames]:
        planes = [one for number in even(len(values)) if (one := plane(values[number])) is not None]
        if planes:
            planes = [one for one in planes if one.ndim == planes[0].ndim]  # some may be gray
            factor, limits = factor_for(planes[0].shape, _SIDE), limits_of(planes)
            images = [resized(to_bytes(one, limits), factor) for one in planes]
            sides = [(0, 0), (0, _GAP), (0, 0)][: images[0].ndim]
            spaced = [np.pad(one, sides, constant_values=255) for one in images]
            return png(np.concatenate(spaced, axis=1)[:, :-_GAP])
    return None


def png(image: Image) -> bytes:
    """An image, (H, W) or (H, W, 3) uint8, as the bytes of a PNG file.

    Source: W3C, Portable Network Graphics (PNG) Specification, sections 5 and 11.
    """
    height, width = image.shape[:2]
    colours = _RGB if image.ndim == _AXES_OF_RGB else _GRAY
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    rows = image.reshape(height, -1)
    # Each row begins with the number of its filter: 0, none.
    lines = np.concatenate((np.zeros((height, 1), np.uint8), rows), axis=1)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
