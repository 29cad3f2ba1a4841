"""Splits observations that are stacks of frames along their first axis.

Invariant: a stack is split only if the stored frames restore it, byte for byte: it shows the frames
of the stack before it and one more, or begins an episode.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.ids import Array

Frames = Mapping[str, Array]  # observations of all environments by name, (N, *shape) each
Shape = tuple[int, ...]
Mask = npt.NDArray[np.bool_]

_COLOURS = (1, 3)  # channels of images that are not stacks, unless `stack` says otherwise


@dataclasses.dataclass(frozen=True, slots=True)
class Stacks:
    """How observations are stored: as `n` frames each, or whole if that is None."""

    n: int | None
    padding: str = "zero"  # before an episode's first frame; or "reset"

    def frame_shape(self, shape: Shape) -> Shape:
        """The shape of a frame, without the axis of a single channel."""
        if self.n is None:
            return shape
        if shape[0] % self.n:
            raise SchemaError(
                f"stack: expected a divisor of the first axis of observations of shape {shape}, "
                f"found {self.n}"
            )
        channels = shape[0] // self.n
        return shape[1:] if channels == 1 and len(shape) > 1 else (channels, *shape[1:])

    def newest(self, stacks: Frames) -> Frames:
        """The newest frame of each stack: (N, *frame)."""
        if self.n is None:
            return stacks
        return {
            name: array[:, -(array.shape[1] // self.n) :].reshape(
                len(array), *self.frame_shape(array.shape[1:])
            )
            for name, array in stacks.items()
        }

    def begins(self, stacks: Frames) -> Mask:
        """Which environments show the first stack of an episode: bool (N,)."""
        out = np.ones(len(next(iter(stacks.values()))), np.bool_)
        if self.n is None:
            return out
        for array in stacks.values():
            channels = array.shape[1] // self.n
            if self.padding == "zero":
                padding = array[:, :-channels]
                out &= ~padding.reshape(len(array), -1).any(1)
            else:
                out &= _equal(array[:, :-channels], array[:, channels:])
        return out

    def follow(self, seen: Frames, following: Frames) -> bool:
        """Whether `following` is `seen` without the oldest frames, and with new ones."""
        n = self.n
        return n is None or all(
            np.array_equal(
                array[:, array.shape[1] // n :], following[name][:, : -(array.shape[1] // n)]
            )
            for name, array in seen.items()
        )


def _equal(one: Array, other: Array) -> Mask:
    """Per environment; the whole arrays first, which are usually equal."""
    if np.array_equal(one, other):
        return np.ones(len(one), np.bool_)
    out: Mask = (one == other).reshape(len(one), -1).all(1)
    return out


def same_bytes(one: Array, other: Array) -> Mask:
    """Where two arrays of the same shape and dtype hold the same bytes, NaN too: bool (N,)."""
    flat = [np.ascontiguousarray(array).reshape(len(array), -1) for array in (one, other)]
    return _equal(flat[0].view(np.uint8), flat[1].view(np.uint8))


def stacks_of(shapes: Mapping[str, Shape], frames: Mapping[str, Shape], padding: str) -> Stacks:
    """The stacks of these shapes in a store with these frames; SchemaError if they do not fit."""
    for n in _divisors(max(shape[0] if shape else 1 for shape in shapes.values())):
        stacks = Stacks(None if n == 1 else n, padding)
        if all(n == 1 or (shape and not shape[0] % n) for shape in shapes.values()) and frames == {
            name: stacks.frame_shape(shape) for name, shape in shapes.items()
        }:
            return stacks
    raise SchemaError(
        f"observations of the shapes {dict(shapes)} are not stacks of the store's frames "
        f"{dict(frames)}; use another path, or the environments of that store"
    )


def stacks_seen(seen: Frames, following: Frames, stack: Any) -> Stacks:
    """How to store observations, from the first step; `stack` is ``...`` if it is unknown."""
    if stack is None:
        return Stacks(None)
    array = next(iter(seen.values()))
    if stack is ...:
        if len(seen) > 1 or array.dtype != np.uint8 or array.ndim != 4:  # noqa: PLR2004  not images
            return Stacks(None)
        n_channels = array.shape[1]
        counts = [] if n_channels in _COLOURS else [n for n in _divisors(n_channels) if n > 1]
    else:
        counts = [stack]
    possible = [Stacks(n, padding) for n in reversed(counts) for padding in ("zero", "reset")]
    for stacks in possible:
        if stacks.begins(seen).all() and stacks.follow(seen, following):
            return stacks
    if stack is not ...:
        return Stacks(stack)
    return next((one for one in possible if one.follow(seen, following)), Stacks(None))


def _divisors(number: int) -> list[int]:
    return [one for one in range(1, number + 1) if number % one == 0]
