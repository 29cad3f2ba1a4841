"""Functions for `Decorated`: augmentation of images, clipping, normalisation.

Invariant: a transform does not write to its batch; it returns one with new arrays for what it
changes, and the same arrays otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

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
    """Fields minus their mean, divided by their standard deviation, as float32.

    Args:
        mean: of ``observation``, or a dict by the names of `Dataset.statistics`, such as
            ``observation.KEY`` and ``action``; other fields stay as they are. Broadcast against a
            field with its batch axis, so (*frame) fits (B, k, *frame).
        std: the same, above 0.
        epsilon: added to `std`.
        clip: largest distance from the mean, in standard deviations; None for no limit.

    Raises:
        SchemaError: a value out of its range; with `Decorated`, rewards that are returns over more
            than one step; when called, no such field, or one that cannot be broadcast.
    """

    mean: npt.ArrayLike | Mapping[str, npt.ArrayLike]
    std: npt.ArrayLike | Mapping[str, npt.ArrayLike]
    epsilon: float = 1e-8
    clip: float | None = None

    def __post_init__(self) -> None:
        mean, std = _by_name(self.mean), _by_name(self.std)
        if mean.keys() != std.keys():
            raise SchemaError(
                f"Normalize: expected mean and std of the same fields, found {sorted(mean)} and "
                f"{sorted(std)}"
            )
        for name, value in std.items():
            if not (np.asarray(value, np.float64) + self.epsilon > 0).all():
                raise SchemaError(
                    f"Normalize: std: expected numbers above 0, found {value!r} of {name}"
                )

    @classmethod
    def fit(cls, data: Any, fields: Sequence[str] | None = None, mode: str = "mean_std") -> Self:
        """Made from the statistics of a dataset or buffer; uint8 images are left alone.

        Args:
            data: what has `statistics`.
            fields: by their names there; None for observations and actions that are floats.
            mode: ``mean_std``, or what becomes -1 and 1: ``min_max``, or ``quantiles`` 0.01 and
                0.99. An element that is always the same becomes 0.

        Raises:
            EmptyBufferError: there is no transition.
            SchemaError: no such field or mode, nothing to normalise, or stacks on the last axis.
        """
        if mode not in {"mean_std", "min_max", "quantiles"}:
            raise SchemaError(
                f"mode: expected 'mean_std', 'min_max' or 'quantiles', found {mode!r:.80}"
            )
        levels = (0.01, 0.99) if mode == "quantiles" else ()
        found = data.statistics(_fitted(data, fields), levels)
        mean, std = {}, {}
        for name, one in found.items():
            center, spread = one.mean, one.std
            if mode != "mean_std":
                low, high = one.quantiles if mode == "quantiles" else (one.min, one.max)
                center, spread = high / 2 + low / 2, high / 2 - low / 2
            mean[name] = np.where(np.isfinite(center), center, 0)
            std[name] = np.where(spread > 0, spread, 1)
        return cls(mean, std, epsilon=0)

    def check(self, settings: Settings) -> None:
        """Refuse rewards that are returns over several steps."""
        if "reward" in _by_name(self.mean) and settings.n_step > 1:
            raise SchemaError(
                f"Normalize: reward: expected n_step=1, found {settings.n_step}: its mean is of "
                f"single rewards; leave it out of the fields"
            )

    def __call__(self, batch: AnyBatch, generator: np.random.Generator) -> AnyBatch:  # noqa: ARG002  draws nothing
        """Normalise the fields; next observations as observations. Of windows, those there are."""
        wanted, seen = {*_by_name(self.mean)}, set()

        def changed(name: str, values: Any) -> Any:
            if isinstance(values, dict):
                return {key: changed(name + key, one) for key, one in values.items()}
            seen.add(name)
            return self.apply(name, values) if name in wanted else values

        if isinstance(batch, WindowBatch):
            fields = {
                name: changed(f"{name}." if isinstance(values, dict) else name, values)
                for name, values in batch.fields.items()
            }
            of_dicts = {"." in name for name in wanted | seen if is_seen(name)}
            if len(of_dicts) > 1:
                raise self._strange(wanted, seen)
            return dataclasses.replace(batch, fields=fields)
        observation = "observation." if isinstance(batch.observation, dict) else "observation"
        out = dataclasses.replace(
            batch,
            observation=changed(observation, batch.observation),
            next_observation=changed(observation, batch.next_observation),
            action=changed("action", batch.action),
            reward=changed("reward", batch.reward),
            extras=changed("", batch.extras),
        )
        if not wanted <= seen:
            raise self._strange(wanted, seen)
        return out

    def _strange(self, wanted: set[str], seen: set[str]) -> SchemaError:
        return SchemaError(
            f"Normalize: expected some of {sorted(seen)}, found {sorted(wanted - seen)}"
        )

    def apply(self, name: str, x: Any) -> Any:
        """Values of one field as in a normalised batch, such as those that a policy gets.

        Args:
            name: of the field.
            x: (..., *shape), an array or a tensor of PyTorch.

        Returns:
            float32; of a tensor its own dtype if that is a float.

        Raises:
            SchemaError: another field, or values that cannot be broadcast.
        """
        values, mean, std = self._parts(name, x)
        values = (values - mean) / std
        if self.clip is not None:
            values = values.clip(-self.clip, self.clip)
        return values.astype(np.float32) if hasattr(values, "astype") else values

    def inverse(self, name: str, x: Any) -> Any:
        """What `apply` made `x` of, such as the actions of a policy; raises as `apply`.

        `x` keeps its dtype if that is a float.
        """
        values, mean, std = self._parts(name, x)
        values = values * std + mean
        is_float = isinstance(x, np.ndarray) and x.dtype.kind == "f"
        return values.astype(x.dtype) if is_float else values

    def _parts(self, name: str, x: Any) -> tuple[Any, Any, Any]:
        """Values, mean and deviation: float64, or tensors of the dtype of `x`."""
        means, stds = _by_name(self.mean), _by_name(self.std)
        if name not in means:
            raise SchemaError(f"Normalize: expected one of {sorted(means)}, found {name!r:.80}")
        mean, std = np.asarray(means[name], np.float64), np.asarray(stds[name], np.float64)
        shape = tuple(np.shape(x))
        try:
            fits = np.broadcast_shapes(shape, mean.shape, std.shape) == shape
        except ValueError:
            fits = False
        if not fits:
            raise SchemaError(
                f"Normalize: {name}: mean {mean.shape} and std {std.shape} cannot be broadcast "
                f"against {shape}"
            )
        std = std + self.epsilon
        if not hasattr(x, "new_tensor"):
            return np.asarray(x, np.float64), mean, std
        x = x if x.is_floating_point() else x.float()
        return x, x.new_tensor(mean), x.new_tensor(std)


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


def _fitted(data: Any, given: Sequence[str] | None) -> list[str]:
    """The fields to normalise: those given, or all floats; SchemaError if none is left."""
    schema, settings = data.schema, data.settings
    columns = {name: schema.columns()[path] for name, path in schema.field_paths.items()}
    images = {n for n, one in columns.items() if one.dtype == np.uint8 and len(one.shape) > 1}
    seen = {n for n, path in schema.field_paths.items() if path in schema.frame_paths.values()}
    usual = [n for n in columns if n in seen | {"action"} and columns[n].dtype.kind == "f"]
    out = [name for name in (usual if given is None else given) if name not in images]
    is_joined = settings.stack_axis == -1 and settings.stack is not None
    if not out or (is_joined and not seen.isdisjoint(out)):
        raise SchemaError(
            f"fields: expected some that are neither images nor stacked on the last axis, found "
            f"{out} of {[*columns]}; PixelsToFloat is for images"
        )
    return out


def _by_name(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"observation": value}


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
