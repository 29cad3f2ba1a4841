"""Frames as images: which arrays are images, and their values as bytes for a screen.

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
_USUAL: tuple[Limits, ...] = ((0, 1), (-1, 1), (0, 255))


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
