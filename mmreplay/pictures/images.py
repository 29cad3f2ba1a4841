"""Frames as images: which arrays are pictures, and their values as bytes for a screen.

Invariant: bytes are shown as they are; all other values are mapped by limits that are the same for
all frames shown together.
"""

from __future__ import annotations

import math
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
_USUAL: tuple[Limits, ...] = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))


def is_picture(shape: Sequence[int]) -> bool:
    """Whether frames of this shape are shown as pictures."""
    return plane(np.broadcast_to(np.uint8(0), tuple(shape))) is not None


def plane(frame: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The picture in a frame, (H, W) or (H, W, 3) in its own dtype; None if there is none.

    Channels may stand first or last. Of a stack of pictures it is the newest, which is the last.
    """
    while frame.ndim > _RGB:
        frame = frame[..., -1] if frame.shape[-2] in _COLOURS else frame[-1]
    if frame.size and frame.ndim == _RGB:
        frame = _without_channels(frame)
    is_picture = frame.size > 0 and frame.ndim > 1 and min(frame.shape[:2]) >= _LEAST_SIDE
    return frame if is_picture else None


def _without_channels(frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of three axes, gray or RGB with the colours last."""
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
    """The values of some frames that become black and white; None for bytes, which stay.

    The usual range that holds them all: 0 to 1, -1 to 1 or 0 to 255; else the least and the
    greatest.
    """
    if all(frame.dtype == np.uint8 for frame in frames):
        return None
    parts = [frame[np.isfinite(frame)] for frame in frames]
    parts = [part for part in parts if part.size]
    if not parts:
        return _USUAL[0]
    low = float(min(part.min() for part in parts))
    high = float(max(part.max() for part in parts))
    for least, most in _USUAL:
        if least <= low and high <= most:
            return least, most
    return low, high


def to_bytes(frame: npt.NDArray[Any], limits: Limits | None) -> Image:
    """A frame as bytes, `limits` becoming 0 and 255; what is no number is black."""
    if limits is None:
        return frame.astype(np.uint8)
    low, high = limits
    with np.errstate(over="ignore", invalid="ignore"):
        share = (frame.astype(np.float64) - low) / ((high - low) or 1.0)
    return np.rint(np.clip(np.nan_to_num(share, nan=0.0), 0, 1) * 255).astype(np.uint8)


def resized(image: Image, factor: int) -> Image:
    """Each pixel `factor` times as large; a negative one takes each -factor-th pixel."""
    if factor < 0:
        return np.ascontiguousarray(image[::-factor, ::-factor])
    return image.repeat(factor, axis=0).repeat(factor, axis=1) if factor > 1 else image


def factor_for(shape: Sequence[int], side: int) -> int:
    """What `resized` takes to make the longer side about as long as `side`, and not longer."""
    longest = max(shape[:2])
    return side // longest if longest <= side else -math.ceil(longest / side)


def strip(images: Sequence[Image], gap: int = 2) -> Image:
    """Images of one shape side by side, on white."""
    height, width = images[0].shape[:2]
    out = np.full((height, len(images) * (width + gap) - gap, *images[0].shape[2:]), 255, np.uint8)
    for number, image in enumerate(images):
        start = number * (width + gap)
        out[:, start : start + width] = image
    return out
