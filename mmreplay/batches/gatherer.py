"""`BatchGatherer`: the common part of the gatherers of transitions and of sequences.

Returns over n steps are sums in float64, first step first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from mmreplay.batches.batch import Column, Observation, arrays_of
from mmreplay.batches.settings import Settings
from mmreplay.errors import SchemaError
from mmreplay.format.layout import episode_path
from mmreplay.ids import Array, Ids
from mmreplay.schema import FRAME, Schema

Made = TypeVar("Made")

_EPISODE = "episode."


class BatchGatherer(Generic[Made]):
    """Fills batches, new ones or the caller's `out`."""

    def __init__(self, schema: Schema, settings: Settings) -> None:
        self._frame_paths = schema.frame_paths
        of_episodes = {f"{_EPISODE}{name}": episode_path(name) for name in settings.episode}
        self._extra_paths = schema.extra_paths | of_episodes
        self._is_dict = schema.is_dict
        self.settings = settings
        self._k = settings.stack or 1
        self._steps_ahead = np.arange(settings.n_step)[:, None]
        self._powers = np.array([settings.gamma**j for j in range(settings.n_step + 1)])
        stacked = settings.stacked
        self._stacks = {
            name: settings.stack if stacked is None or name in stacked else None
            for name in self._frame_paths
        }
        joined = settings.stack_axis == -1
        self._copies = {
            name for name, stack in self._stacks.items() if joined and stack is not None
        }
        self._known: Made | None = None  # the last `out` that was checked

    def _allocate_frames(self, size: int, column: Column, name: str) -> tuple[Array, Array]:
        """Observation and next observation of one frame column, not filled."""
        raise NotImplementedError

    def _observations(
        self, columns: Mapping[str, Column], size: int
    ) -> tuple[Observation, Observation]:
        """Observation and next observation, not filled."""
        paths = self._frame_paths
        if not self._is_dict:
            return self._allocate_frames(size, columns[paths[FRAME]], FRAME)
        pairs = {name: self._allocate_frames(size, columns[paths[name]], name) for name in paths}
        return (
            {name: seen for name, (seen, _) in pairs.items()},
            {name: following for name, (_, following) in pairs.items()},
        )

    def _rewards(self, columns: Mapping[str, Column], ids: Ids, out: Array | None = None) -> Array:
        """The rewards of single steps, clipped if asked for, into `out` if given."""
        rewards = columns["rewards"].take(ids, out)
        if self.settings.clip_reward is not None:
            with np.errstate(over="ignore"):  # a bound beyond the dtype's own does not clip
                rewards.clip(*self.settings.clip_reward, out=rewards)
        return rewards

    def _returns(
        self,
        columns: Mapping[str, Column],
        ahead: Ids,
        left: int | Ids,
        reward: Array,
        discount: Array,
        non_terminal: Array,
    ) -> int | Ids:
        """Fill `reward`, `discount` and `non_terminal`, (B,) each, with those of n steps.

        `ahead` (n, B) are the ids of the steps. `left` is how many of them lie in the episode of
        the first: (B,), or the number n if all do. Returns m in the same form.
        """
        n, size = ahead.shape
        flags = columns["non_terminals"].take(ahead)
        m = left
        step, ended = (flags == 0).nonzero()
        if step.size:
            # The first step with a False flag ends the return: it is set last.
            first: Ids = np.empty(size, np.int64)
            first.fill(n + 1)
            first[ended[::-1]] = step[::-1] + 1
            m = np.minimum(left, first)
            np.greater(first, left, out=non_terminal)
        else:
            non_terminal.fill(True)
        with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
            parts = self._rewards(columns, ahead) * self._powers[:n, None]
            if type(m) is int and size > 1:  # of a single column, `reduce` adds in pairs
                reward[:] = np.add.reduce(parts, initial=-0.0)  # to which -0.0 adds as to none
                discount.fill(self._powers[m])
            else:
                sums = np.add.accumulate(parts)
                reward[:] = sums.take((m - 1) * size + np.arange(size))
                np.multiply(self._powers.take(m), non_terminal, out=discount)
        return m

    def _extras(self, columns: Mapping[str, Column], *shape: int) -> dict[str, Array]:
        """Extras of this shape, not filled."""
        return {
            name: np.empty((*shape, *columns[path].row_shape), columns[path].dtype)
            for name, path in self._extra_paths.items()
        }

    def _allocate(self, columns: Mapping[str, Column], size: int) -> Made:
        """Arrays for a batch of `size`, not filled."""
        raise NotImplementedError

    def _fitting(self, columns: Mapping[str, Column], out: Made, size: int) -> Made:
        """`out`, to be filled; SchemaError if it has other arrays than a batch of this size."""
        if out is not self._known or len(out.id) != size:  # type: ignore[attr-defined]
            self._check(out, self._allocate(columns, size), size)
        return out

    def copy(self, batch: Any, out: Made) -> Made:
        """Fill `out` with a batch that this object made; SchemaError if it has other arrays."""
        size = len(batch.id)
        if out is not self._known or len(out.id) != size:  # type: ignore[attr-defined]
            self._check(out, batch, size)
        for source, target in zip(_memory(batch), _memory(out), strict=True):
            np.copyto(target, source)
        return out

    def _check(self, out: Made, like: object, size: int) -> None:
        if type(out) is not type(like) or _layout(out) != _layout(like):
            raise SchemaError(
                f"out: expected a batch of {size} that this object returned with the same "
                f"settings; call once without out= and pass what came back"
            )
        self._known = out

    def _of(self, batch: Any, name: str) -> tuple[Array, Array]:
        """Observation and next observation of one frame column."""
        seen, following = batch.observation, batch.next_observation
        return (seen[name], following[name]) if self._is_dict else (seen, following)


def _base(array: Array) -> Array:
    """The array that owns the memory of another one."""
    return array.base if isinstance(array.base, np.ndarray) else array


def _memory(batch: Any) -> list[Array]:
    """The arrays that own the memory of a batch, each once."""
    arrays = [one for one in arrays_of(batch).values() if isinstance(one, np.ndarray)]
    return [*{id(base): base for base in map(_base, arrays)}.values()]


def _layout(batch: Any) -> dict[str, object]:
    """Dtype and shape of each array of a batch, and which memory it shares with others."""
    out: dict[str, object] = {}
    bases: dict[int, int] = {}
    for key, array in arrays_of(batch).items():
        out[key] = array
        if isinstance(array, np.ndarray):
            base = _base(array)
            number = bases.setdefault(id(base), len(bases))
            kinds = [(part.dtype, part.shape, part.flags.writeable) for part in (array, base)]
            out[key] = number, array.ctypes.data - base.ctypes.data, array.strides, *kinds
    return out
