"""Functions for `Decorated`: augmentation of images, clipping, normalisation.

Invariant: a transform does not write to its batch; it returns one with new arrays for what it
changes, and the same arrays otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import AnyBatch, WindowBatch, is_seen
from mmreplay.errors import SchemaError
from mmreplay.ids import Array, Ids

__all__ = ["ClipReward", "Normalize", "PixelsToFloat", "RandomCrop", "RandomShift"]

Observation = Array | dict[str, Array]
Axes = tuple[int, int]
Function = Callable[[Array, str], Array]
"""Of an image array (B, ...) and its key, which is empty if the observation is not a dict."""


@dataclasses.dataclass(frozen=True, slots=True)
class RandomShift:
    """Images shifted by up to `pad` pixels in each direction; the border is repeated.

    One shift for all frames of a stack and for all keys; another for the next observation.

    Args:
        pad: most pixels.
        keys: the images of a dict observation; None for all of it.
        axes: height and width in an observation, batch axis included: (-2, -1) for (B, k, H, W),
            (-3, -2) for (B, k, H, W, C) and for what ``stack_axis=-1`` gives.

    Raises:
        SchemaError: a value out of its range; when called, an image no larger than `pad`.

    Source: Yarats et al. 2021, Image Augmentation Is All You Need (DrQ), section 3.1.
    """

    pad: int = 4
    keys: tuple[str, ...] | None = None
    axes: Axes = (-2, -1)

    def __post_init__(self) -> None:
        whole_number("pad", self.pad, 0)

    def __call__(self, batch: AnyBatch, generator: np.random.Generator) -> AnyBatch:
        """Shift both observations."""

        def draw() -> Function:
            corners = generator.integers(0, 2 * self.pad + 1, (2, len(batch))) - self.pad

            def moved(frames: Array, _: str) -> Array:
                size = _size(frames, self.axes, self.pad + 1, self.pad + 1)
                return _windows(frames, size, corners, self.axes)

            return moved

        return _changed(batch, self.keys, draw)


@dataclasses.dataclass(frozen=True, slots=True)
class RandomCrop:
    """A random part of each image.

    The same position for all frames of a stack and, relative to the image size, for all keys;
    another one for the next observation.

    Args:
        size: (height, width) of the part.
        keys, axes: as for `RandomShift`.

    Raises:
        SchemaError: a value out of its range; when called, an image smaller than `size`.

    Source: Laskin et al. 2020, Reinforcement Learning with Augmented Data (RAD), section 3.1.
    """

    size: tuple[int, int]
    keys: tuple[str, ...] | None = None
    axes: Axes = (-2, -1)

    def __post_init__(self) -> None:
        for side in self.size:
            whole_number("size", side)

    def __call__(self, batch: AnyBatch, generator: np.random.Generator) -> AnyBatch:
        """Crop both observations."""

        def draw() -> Function:
            draws = generator.random((2, len(batch)))

            def part(frames: Array, _: str) -> Array:
                room = np.subtract(_size(frames, self.axes, *self.size), self.size) + 1
                corners = (draws * room[:, None]).astype(np.int64)
                return _windows(frames, self.size, corners, self.axes)

            return part

        return _changed(batch, self.keys, draw)


@dataclasses.dataclass(frozen=True, slots=True)
class ClipReward:
    """Rewards clipped to [low, high], only with ``n_step=1``.

    A clipped return is not the return of clipped rewards. For longer returns use
    ``clip_reward=(low, high)`` of `mmreplay.load`, or of the buffer.

    Raises:
        SchemaError: `low` is not below `high`; with `Decorated`, returns over more than one step.

    Source: Mnih et al. 2015, Human-level control through deep reinforcement learning, Methods.
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise SchemaError(f"ClipReward: expected low < high, found {self.low}, {self.high}")

    def check(self, settings: Settings) -> None:
        """Refuse returns over several steps."""
        if settings.n_step > 1:
            raise SchemaError(
                f"ClipReward: expected n_step=1, found {settings.n_step}: a clipped return is not "
                f"the return of clipped rewards; pass clip_reward=({self.low}, {self.high}) to "
                f"mmreplay.load, or to the buffer, instead"
            )

    def __call__(self, batch: AnyBatch, generator: np.random.Generator) -> AnyBatch:  # noqa: ARG002  draws nothing
        """Clip the rewards."""
        if isinstance(batch, WindowBatch):
            fields: dict[str, Any] = dict(batch.fields)
            if "reward" in fields:
                fields["reward"] = fields["reward"].clip(self.low, self.high)
            return dataclasses.replace(batch, fields=fields)
        return dataclasses.replace(batch, reward=batch.reward.clip(self.low, self.high))


@dataclasses.dataclass(frozen=True, slots=True)
class PixelsToFloat:
    """uint8 pixels as float32 in [0, 1]: divided by 255.

    Args:
        keys: the images of a dict observation; None for all of it.

    Raises:
        SchemaError: when called, pixels of another dtype.
    """

    keys: tuple[str, ...] | None = None

    def __call__(self, batch: AnyBatch, generator: np.random.Generator) -> AnyBatch:  # noqa: ARG002  draws nothing
        """Divide both observations."""

        def divided(frames: Array, _: str) -> Array:
            if frames.dtype != np.uint8:
                raise SchemaError(
                    f"PixelsToFloat: expected uint8 pixels, found {frames.dtype} {frames.shape}; "
                    f"use it once, and name the images of a dict with keys="
                )
            return np.divide(frames, np.float32(255), dtype=np.float32)

        return _changed(batch, self.keys, lambda: divided)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Normalize:
    """Observations minus their mean, divided by their standard deviation, as float32.

    Args:
        mean: broadcast against an observation with its batch axis, so (*frame) fits
            (B, k, *frame). A dict for dict observations; other keys stay as they are.
        std: the same, above 0.
        epsilon: added to `std`.
        clip: largest distance from the mean, in standard deviations; None for no limit.

    Raises:
        SchemaError: a value out of its range; when called, one that cannot be broadcast.
    """

    mean: npt.ArrayLike | Mapping[str, npt.ArrayLike]
    std: npt.ArrayLike | Mapping[str, npt.ArrayLike]
    epsilon: float = 1e-8
    clip: float | None = None

    def __post_init__(self) -> None:
        mean, std = _by_key(self.mean), _by_key(self.std)
        if mean.keys() != std.keys():
            raise SchemaError(
                f"Normalize: expected mean and std of the same keys, found {sorted(mean)} and "
                f"{sorted(std)}"
            )
        for key, value in std.items():
            if not (np.asarray(value, np.float64) + self.epsilon > 0).all():
                raise SchemaError(
                    f"Normalize: std: expected numbers above 0, found {value!r} {key}"
                )

    def __call__(self, batch: AnyBatch, generator: np.random.Generator) -> AnyBatch:  # noqa: ARG002  draws nothing
        """Normalise both observations."""
        mean, std = _by_key(self.mean), _by_key(self.std)
        keys = tuple(self.mean) if isinstance(self.mean, Mapping) else None

        def scaled(frames: Array, key: str) -> Array:
            if key not in mean:
                raise SchemaError(
                    "Normalize: expected mean and std as dicts for dict observations, and as "
                    "arrays for others"
                )
            return self._scaled(frames, mean[key], std[key])

        return _changed(batch, keys, lambda: scaled)

    def _scaled(self, frames: Array, mean: npt.ArrayLike, std: npt.ArrayLike) -> Array:
        try:
            out = np.subtract(frames, mean, dtype=np.float64)
            out /= np.asarray(std, np.float64) + self.epsilon
        except ValueError as error:
            raise SchemaError(
                f"Normalize: mean {np.shape(mean)} and std {np.shape(std)} cannot be broadcast "
                f"against {frames.shape}"
            ) from error
        if self.clip is not None:
            np.clip(out, -self.clip, self.clip, out=out)
        return out.astype(np.float32)


def _changed(
    batch: AnyBatch, keys: tuple[str, ...] | None, draw: Callable[[], Function]
) -> AnyBatch:
    """A batch whose images went through a function, which `draw` returns per observation.

    All windows of observations go through one.
    """

    def changed(observation: Observation, function: Function, key: str = "") -> Observation:
        if not isinstance(observation, dict):
            is_named = keys is None or not key or key in keys
            return function(observation, key) if is_named else observation
        if strange := sorted({*(keys or ())} - observation.keys()):
            raise SchemaError(
                f"keys: expected some of {sorted(observation)} of the observation, found {strange}"
            )
        return {
            key: function(frames, key) if keys is None or key in keys else frames
            for key, frames in observation.items()
        }

    if isinstance(batch, WindowBatch):
        function, fields = draw(), dict(batch.fields)
        for name in filter(is_seen, fields):
            fields[name] = changed(fields[name], function, name.partition(".")[2])
        return dataclasses.replace(batch, fields=fields)
    return dataclasses.replace(
        batch,
        observation=changed(batch.observation, draw()),
        next_observation=changed(batch.next_observation, draw()),
    )


def _by_key(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"": value}


def _size(frames: Array, axes: Axes, *least: int) -> tuple[int, int]:
    """Height and width, which are at least these."""
    one, other = (axis % frames.ndim if -frames.ndim <= axis < frames.ndim else 0 for axis in axes)
    if 0 in (one, other) or one == other:  # axis 0 is the batch
        raise SchemaError(
            f"axes: expected height and width of observations {frames.shape}, found {axes}; name "
            f"the images of a dict observation with keys="
        )
    size = frames.shape[one], frames.shape[other]
    if size[0] < least[0] or size[1] < least[1]:
        raise SchemaError(
            f"expected images of {least} or more, found {size} on axes {axes} of {frames.shape}; "
            f"name height and width with axes="
        )
    return size


def _windows(frames: Array, size: tuple[int, int], corners: Ids, axes: Axes) -> Array:
    """A window of `size` (height, width) of each image, beginning at `corners`, (2, B).

    Outside the image its border is repeated.
    """
    vertical, horizontal = (axis % frames.ndim for axis in axes)
    shape = [*frames.shape]
    shape[vertical], shape[horizontal] = size
    out = np.empty(shape, frames.dtype)
    rows, columns = (corners[n][:, None] + np.arange(size[n]) for n in (0, 1))
    # Image by image, so that the intermediate array stays in the processor's cache.
    for image, into, row, column in zip(frames, out, rows, columns, strict=True):
        part = image.take(row, axis=vertical - 1, mode="clip")
        part.take(column, axis=horizontal - 1, mode="clip", out=into)
    return out
