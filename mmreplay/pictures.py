"""Frames as images and PNG files, with numpy and the standard library alone.

Invariant: bytes are shown as they are; all other values are mapped by limits that are the same for
all frames shown together.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
"""(H, W) gray, or (H, W, 3) RGB."""
Limits = tuple[float, float]
"""The values that are black and white."""

_LEAST_SIDE = 5
"""A smaller array is a vector, or a stack of vectors."""
_COLOURS = (1, 3)
_STACKED = 4
_RGB = 3
_USUAL: tuple[Limits, ...] = ((0, 1), (-1, 1), (0, 255))

_PNG = b"\x89PNG\r\n\x1a\n"
_MOST_FRAMES = 8
_SIDE, _GAP = 96, 2


def plane(frame: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """A frame as one image, (H, W) or (H, W, 3) in its own dtype; None if it is not an image.

    Channels may come first or last. A stack of images gives the newest, which is the last.
    """
    while frame.ndim > _RGB:
        frame = frame[..., -1] if frame.shape[-2] in _COLOURS else frame[-1]
    if frame.size and frame.ndim == _RGB:
        frame = _without_channels(frame)
    is_picture = frame.size > 0 and frame.ndim > 1 and min(frame.shape[:2]) >= _LEAST_SIDE
    return frame if is_picture else None


def _without_channels(frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    first, last = frame.shape[0], frame.shape[-1]
    if last in (*_COLOURS, _STACKED) and min(frame.shape[:2]) >= _LEAST_SIDE:
        alpha = frame[..., -1]
        if last == _RGB or (last == _STACKED and bool((alpha == alpha.flat[0]).all())):
            return frame[..., :_RGB]
        return frame[..., -1]
    if first == _RGB:
        return np.moveaxis(frame, 0, -1)
    return frame[-1] if first <= last else frame[..., -1]


def limits_of(frames: Sequence[npt.NDArray[Any]]) -> Limits | None:
    """The values of some frames that become black and white; None for bytes.

    The first of 0 to 1, -1 to 1 and 0 to 255 that holds them all, if they span at least half of it
    or are all equal; else their minimum and maximum, as for depths of a few metres.
    """
    if all(frame.dtype == np.uint8 for frame in frames):
        return None
    values = np.concatenate([frame[np.isfinite(frame)].ravel() for frame in frames])
    low, high = (float(values.min()), float(values.max())) if values.size else _USUAL[0]
    usual = next((one for one in _USUAL if one[0] <= low and high <= one[1]), None)
    if usual and (low == high or 2 * (high - low) >= usual[1] - usual[0]):
        return usual
    return low, high


def to_bytes(frame: npt.NDArray[Any], limits: Limits | None) -> Image:
    """A frame as bytes, with 0 and 255 for `limits` and 0 for NaN."""
    if limits is None:
        return frame.astype(np.uint8)
    low, high = limits
    with np.errstate(over="ignore", invalid="ignore"):
        share = (frame.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.rint(np.clip(np.nan_to_num(share, nan=0.0), 0, 1) * 255).astype(np.uint8)


def resized(image: Image, factor: int) -> Image:
    """Each pixel `factor` times as large; if negative, only each -factor-th pixel."""
    if factor < 0:
        return np.ascontiguousarray(image[::-factor, ::-factor])
    return image.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else image


def factor_for(shape: Sequence[int], side: int) -> int:
    """The factor for `resized` that makes the longer side at most `side`."""
    longest = max(shape[:2])
    return side // longest if longest <= side else -math.ceil(longest / side)


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
    colours = 2 if image.ndim == _RGB else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colours, 0, 0, 0)
    rows = image.reshape(height, -1)
    # Each row begins with the number of its filter: 0, none.
    lines = np.concatenate((np.zeros((height, 1), np.uint8), rows), axis=1)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b"")
    return _PNG + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
