"""Stacks and n-step returns: ids and columns in, a `Batch` out.

Invariant: a batch holds copies, and what it holds follows from the ids, the settings and the
stored rows alone. docs/semantics.md says what a stack, a return and a discount are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.columns import Array, Ids
from mmreplay.episodes import Index
from mmreplay.errors import SchemaError
from mmreplay.format import MAX_STACK
from mmreplay.schema import FRAME, Schema

__all__ = ["Batch", "Column", "Gatherer", "Observation", "Places", "Returns", "Settings"]

Observation = Array | dict[str, Array]


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Transitions as arrays, the batch axis first.

    Attributes:
        observation: (B, k, *frame) as stored, or a dict of these; no k axis for ``stack=None``;
            (B, *frame, k) for ``stack_axis=-1``.
        next_observation: the same after m steps. Both may share memory.
        action: (B, *action) as stored.
        reward: (B,) n-step returns in the rewards' dtype.
        discount: (B,) gamma ** m * non_terminal, in the rewards' dtype.
        non_terminal: (B,) bool.
        id: (B,) int64, lane << 40 | row.
        weight: (B,) float32 importance weights; 1 if sampled uniformly.
        extras: the declared extra columns, (B, ...) each.
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    discount: Array
    non_terminal: npt.NDArray[np.bool_]
    id: Ids
    weight: npt.NDArray[np.float32]
    extras: dict[str, Array]

    def __len__(self) -> int:
        """B."""
        return len(self.id)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How transitions are rebuilt.

    Args:
        stack: frames an observation; None for one frame without an axis of its own.
        n_step: most steps of a return.
        gamma: discount a step, in [0, 1].
        padding: ``reset`` repeats an episode's first frame in front of it, ``zero`` pads with 0.
        stack_axis: 0 puts the frames in front, -1 last.
        clip_reward: (low, high), to which each reward is clipped before it goes into a return;
            None takes them as they are.

    Raises:
        SchemaError: a value out of its range.
    """

    stack: int | None = 4
    n_step: int = 1
    gamma: float = 0.99
    padding: str = "reset"
    stack_axis: int = 0
    clip_reward: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Check what the user gave."""
        gamma: Any = self.gamma
        padding, stack_axis = self.padding, self.stack_axis
        for name, value in (("stack", self.stack), ("n_step", self.n_step)):
            if value is None and name == "stack":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise SchemaError(f"{name}: expected a whole number, 1 or more; found {value!r}")
        if not isinstance(gamma, (int, float, np.number)) or not 0 <= gamma <= 1:
            raise SchemaError(f"gamma: expected a number in [0, 1], found {gamma!r}")
        if padding not in ("reset", "zero"):
            raise SchemaError(f"padding: expected 'reset' or 'zero', found {padding!r}")
        if stack_axis not in (0, -1):
            raise SchemaError(f"stack_axis: expected 0 or -1, found {stack_axis!r}")
        if self.clip_reward is not None:
            object.__setattr__(self, "clip_reward", _checked_bounds(self.clip_reward))

    def check_evicting(self, *, evicts: bool) -> None:
        """Raise SchemaError for a stack longer than the context kept by a capacity."""
        if evicts and self.stack is not None and self.stack > MAX_STACK:
            raise SchemaError(
                f"stack: expected at most {MAX_STACK} where a capacity evicts rows, found "
                f"{self.stack}; older frames are not kept"
            )


def _checked_bounds(given: Any) -> tuple[float, float]:
    bounds = np.array(given) if isinstance(given, (tuple, list)) else np.empty(0)
    if bounds.shape != (2,) or bounds.dtype.kind not in "iuf" or not bounds[0] < bounds[1]:
        raise SchemaError(
            f"clip_reward: expected (low, high), numbers with low < high, or None; found {given!r}"
        )
    return float(bounds[0]), float(bounds[1])


class Column(Protocol):
    """Rows by id."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def take(self, ids: Ids, out: Array | None = None) -> Array:
        """Rows by id, copied, into `out` if given."""


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where the parts of a batch lie.

    Attributes:
        ids: (B,) the transitions.
        begin: (B,) first row of the episode; None if no row before the transition is read.
        steps: (B,) most steps that the return may have; None if all have 1.
    """

    ids: Ids
    begin: Ids | None
    steps: Ids | None


class Returns:
    """Returns over n steps, their discounts and flags; sums in float64, first step first.

    Args:
        settings: how many steps, by which discount, and how far rewards are clipped.
    """

    def __init__(self, settings: Settings) -> None:
        """Powers of gamma, once."""
        self._n = n_step = settings.n_step
        self._clip = settings.clip_reward
        self._ahead = np.arange(n_step)
        self._powers = np.array([settings.gamma**j for j in range(n_step + 1)])

    def rewards(self, columns: Mapping[str, Column], ids: Ids, out: Array | None = None) -> Array:
        """The rewards of single steps, clipped if asked for, into `out` if given."""
        found = columns["rewards"].take(ids, out)
        if self._clip is not None:
            with np.errstate(over="ignore"):  # a bound beyond the dtype's own is none
                found.clip(*self._clip, out=found)
        return found

    def fill(
        self,
        columns: Mapping[str, Column],
        ids: Ids,
        steps: Ids,
        reward: Array,
        discount: Array,
        non_terminal: Array,
    ) -> Ids:
        """Fill three arrays (B,).

        Args:
            columns: of the store.
            ids: (B,) the transitions.
            steps: (B,) most steps that each return may have, by the end of its episode.
            reward: (B,) to fill with the returns.
            discount: (B,) to fill.
            non_terminal: (B,) bool to fill.

        Returns:
            (B,) the ids of the rows after the last step.
        """
        n = self._n
        window = ids[:, None] + self._ahead
        np.minimum(window, (ids + (steps - 1))[:, None], out=window)
        live = columns["non_terminals"].take(window) != 0
        if not live.all():
            # The first flag that is down ends the return, with the step it belongs to.
            steps = np.minimum(steps, np.where(live.all(1), n, live.argmin(1) + 1))
        last = np.arange(0, ids.size * n, n) + (steps - 1)
        live.take(last, out=non_terminal, mode="clip")
        with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
            terms = self.rewards(columns, window) * self._powers[:n]
            reward[:] = np.add.accumulate(terms, axis=1).take(last)
        np.multiply(self._powers.take(steps), non_terminal, out=discount)
        return ids + steps


class Gatherer:
    """Rebuilds transitions of one store by one set of settings.

    Args:
        schema: of the store: which columns are frames, and which extras.
        settings: how to rebuild.
    """

    def __init__(self, schema: Schema, settings: Settings) -> None:
        """Lay out what is the same for every batch."""
        self._frame_paths, self._extra_paths = schema.frame_paths, schema.extra_paths
        self._is_dict = schema.is_dict
        self.settings = settings
        self._k = k = settings.stack or 1
        self._one_step = settings.n_step == 1
        # For one step, observation and next observation are views of the same (B, k + 1) frames;
        # for more, of (B, 2k), so that a compressed chunk is decoded once for both.
        self._length = k + 1 if self._one_step else 2 * k
        self._back = np.arange(1 - k, 2 if self._one_step else 1)
        self._returns = Returns(settings)
        self._copies = settings.stack_axis == -1 and settings.stack is not None
        self._known: Batch | None = None  # the last `out` that was found sound

    def locate(self, index: Index, ids: Ids) -> Places:
        """Look up in the index what is needed of it, so that the rest works on a fixed picture."""
        if self._k == 1 and self._one_step:
            return Places(ids, None, None)
        position = index.locate(ids)
        begin = index.begin(position) if self._k > 1 else None
        if self._one_step:
            return Places(ids, begin, None)
        # The last row of an episode, or of a lane, is no transition.
        left = index.end(position, ids) - 1 - ids
        return Places(ids, begin, np.minimum(left, self.settings.n_step))

    def fetch(
        self, columns: Mapping[str, Column], places: Places, out: Batch | None = None
    ) -> Batch:
        """Read the transitions at `places`.

        Args:
            columns: of the store, as they were when the places were looked up.
            places: from `locate`.
            out: a batch that this returned for as many ids; overwritten and returned.

        Raises:
            SchemaError: `out` is none such.
            EvictedError, CorruptStoreError: as the columns.
        """
        ids = places.ids
        if out is None:
            batch = self._allocate(columns, ids.size)
        elif out is self._known and len(out.id) == ids.size:
            batch = out
        else:
            batch = self._known = self._checked(columns, out, ids.size)
        if places.steps is None:
            self._returns.rewards(columns, ids, batch.reward)
            np.not_equal(columns["non_terminals"].take(ids), 0, out=batch.non_terminal)
            np.multiply(batch.non_terminal, self.settings.gamma, out=batch.discount)
            window = ids[:, None] + self._back
        else:
            following = self._returns.fill(
                columns, ids, places.steps, batch.reward, batch.discount, batch.non_terminal
            )
            ends = np.stack((ids, following), axis=1)
            window = (ends[:, :, None] + self._back).reshape(ids.size, self._length)
        self._frames(columns, window, places.begin, batch)
        columns["actions"].take(ids, batch.action)
        batch.id[:] = ids
        batch.weight.fill(1)
        for name, path in self._extra_paths.items():
            columns[path].take(ids, batch.extras[name])
        return batch

    def _frames(
        self, columns: Mapping[str, Column], window: Ids, begin: Ids | None, batch: Batch
    ) -> None:
        """Fill the observations, with one gather of each frame column."""
        padded = None
        if begin is not None:
            first = begin[:, None]
            if self.settings.padding == "zero":
                padded = window < first
            np.maximum(window, first, out=window)
        for name, path in self._frame_paths.items():
            column = columns[path]
            seen, following = self._of(batch, name)
            if self._copies:
                frames = np.empty((*window.shape, *column.row_shape), column.dtype)
            else:
                frames = seen.base  # type: ignore[assignment]
            column.take(window, frames)
            if padded is not None:
                frames[padded] = 0
            if self._copies:
                seen[...] = _to_last(frames[:, : self._k])
                following[...] = _to_last(frames[:, -self._k :])

    # ------------------------------------------------------------ the arrays of a batch

    def _of(self, batch: Batch, name: str) -> tuple[Array, Array]:
        seen, following = batch.observation, batch.next_observation
        if isinstance(seen, dict) and isinstance(following, dict):
            return seen[name], following[name]
        return seen, following  # type: ignore[return-value]

    def _allocate(self, columns: Mapping[str, Column], size: int) -> Batch:
        """Arrays for a batch of `size`, not filled."""
        seen: dict[str, Array] = {}
        following: dict[str, Array] = {}
        for name, path in self._frame_paths.items():
            seen[name], following[name] = self._allocate_frames(size, columns[path])
        actions, rewards = columns["actions"], columns["rewards"].dtype
        is_dict = self._is_dict
        return Batch(
            seen if is_dict else seen[FRAME],
            following if is_dict else following[FRAME],
            np.empty((size, *actions.row_shape), actions.dtype),
            np.empty(size, rewards),
            np.empty(size, rewards),
            np.empty(size, np.bool_),
            np.empty(size, np.int64),
            np.empty(size, np.float32),
            {
                name: np.empty((size, *columns[path].row_shape), columns[path].dtype)
                for name, path in self._extra_paths.items()
            },
        )

    def _allocate_frames(self, size: int, column: Column) -> tuple[Array, Array]:
        shape, k = column.row_shape, self._k
        if self._copies:
            images = 3
            last = (*shape[:2], k * shape[2]) if len(shape) == images else (*shape, k)
            return np.empty((size, *last), column.dtype), np.empty((size, *last), column.dtype)
        frames = np.empty((size, self._length, *shape), column.dtype)
        if self.settings.stack is None:
            return frames[:, 0], frames[:, 1]
        return frames[:, :k], frames[:, -k:]

    def _checked(self, columns: Mapping[str, Column], out: object, size: int) -> Batch:
        """Raise SchemaError unless `out` has the arrays that `_allocate` makes."""
        if not isinstance(out, Batch) or not self._fits(columns, out, size):
            raise SchemaError(
                f"out: expected a batch of {size} that this object returned with the same "
                f"settings; call once without out= and pass what came back"
            )
        return out

    def _fits(self, columns: Mapping[str, Column], out: Batch, size: int) -> bool:
        names, extras = self._frame_paths, self._extra_paths
        if isinstance(out.observation, dict) != self._is_dict or out.extras.keys() != extras.keys():
            return False
        if isinstance(out.observation, dict) and out.observation.keys() != names.keys():
            return False
        like = self._allocate(columns, 0)
        pairs = [(getattr(out, name), getattr(like, name)) for name in _PLAIN]
        pairs += [(out.extras[name], like.extras[name]) for name in extras]
        for name, path in names.items():
            column = columns[path]
            mine, other = self._of(out, name), self._of(like, name)
            pairs += zip(mine, other, strict=True)
            if not self._copies:
                base = mine[0].base
                whole = (size, self._length, *column.row_shape)
                if not isinstance(base, np.ndarray) or base.shape != whole:
                    return False
                if base is not mine[1].base:
                    return False
        return all(
            isinstance(one, np.ndarray)
            and one.flags.writeable
            and one.dtype == other.dtype
            and one.shape == (size, *other.shape[1:])
            for one, other in pairs
        )


_PLAIN = ("action", "reward", "discount", "non_terminal", "id", "weight")


def _to_last(frames: Array) -> Array:
    """(B, k, *frame) with the stack axis last; channels of images joined, oldest frame first."""
    images = 5
    if frames.ndim != images:
        return np.moveaxis(frames, 1, -1)
    size, k, height, width, channels = frames.shape
    return np.moveaxis(frames, 1, 3).reshape(size, height, width, k * channels)
