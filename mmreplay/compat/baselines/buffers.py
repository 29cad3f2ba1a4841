"""The replay buffers and `LazyFrames` of OpenAI's baselines.

Invariant: a sampled observation equals ``np.asarray`` of the one that was added; each frame of
LazyFrames is stored once. A position means the transition that is there now, as in the original.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer as CorePrioritizedBuffer
from mmreplay.datasets.replay_buffer import ReplayBuffer as CoreBuffer
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.ids import Array
from mmreplay.lazy_frames import LazyFrames as Stack
from mmreplay.sampling.priority_draws import Prioritization
from mmreplay.schema import Field


class LazyFrames:
    """Frames (..., c), oldest first, that read as one array (..., k * c), joined again each time.

    The frames are shared, not copied; SchemaError if there are none, or they differ in shape or
    dtype. `stack` has them as `mmreplay.LazyFrames`, which a writer accepts.
    """

    __slots__ = ("stack",)

    def __init__(self, frames: Iterable[npt.ArrayLike]) -> None:
        self.stack = Stack(frames)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """A new array; ValueError for ``copy=False``."""
        return _joined(self.stack.__array__(dtype, copy)[None])[0]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(np.asarray(self))

    def __getitem__(self, i: Any) -> Any:
        return np.asarray(self)[i]

    def count(self) -> int:
        """Length of the last axis: frames, if each has one channel."""
        return int(np.asarray(self).shape[-1])

    def frame(self, i: int) -> Array:
        """Element i of the last axis: frame i without its channel axis, if each has one."""
        return np.asarray(self)[..., i]


class ReplayBuffer(DeferredStore):
    """The newest `size` transitions, sampled uniformly with replacement; see `DeferredStore`."""

    _kind: type[CoreBuffer] = CoreBuffer
    _settings: Mapping[str, Any] = MappingProxyType({})
    _capacity: int

    def __init__(self, size: int, path: StorePath = None) -> None:
        super().__init__(path, whole_number("size", size))
        self._n_added = 0
        self._last: list[Array] = []  # the frames of the newest observation
        if (stored := self._stored()) is not None:
            self._begin(stored[1])
            newest = self.core.ids[-1:]
            self._n_added = int(self.core.store.extras["number"][newest].sum()) + newest.size

    def _begin(self, kept: dict[str, Any], **fields: Any) -> None:
        """Open the store; `kept` is its metadata, and says how observations are rebuilt."""
        self._kept = kept
        self._open(
            self._kind,
            stack=kept.get("stack"),
            stack_axis=kept.get("stack_axis", 0),
            # As the original, which draws from Python's global generator.
            seed=random.getrandbits(62),
            metadata=kept,
            extras={"number": Field((), "int64")},  # 0 for the first transition that was added
            **self._settings,
            **fields,
        )

    def add(self, obs_t: Any, action: Any, reward: float, obs_tp1: Any, done: Any) -> None:
        """Add a transition; an `obs_t` that is not the last `obs_tp1` begins an episode.

        Observations are arrays or LazyFrames. SchemaError for values that differ in shape or dtype
        from the first ones, for an `obs_tp1` of LazyFrames that is not one step after `obs_t`, and
        for an `obs_t` in mid-episode.
        """
        now, following = _taken(obs_t), _taken(obs_tp1)
        before, after = _frames(now), _frames(following)
        if not _same(before[1:], after[:-1]):
            raise SchemaError("obs_tp1: expected the frames of obs_t, one step later")
        if self._core is None:
            kept: dict[str, Any] = {"done": np.asarray(done).dtype.name}
            if isinstance(now, Stack):
                is_joined = isinstance(obs_t, LazyFrames)
                kept |= {"stack": now.count(), "stack_axis": now.stack_axis, "join": is_joined}
            is_float32 = np.asarray(reward).dtype == np.float32
            self._begin(
                kept,
                frame=Field(before[-1].shape, before[-1].dtype),
                action=Field(np.shape(action), np.asarray(action).dtype),
                reward_dtype="float32" if is_float32 else "float64",
            )
        if len(before) != (self._kept.get("stack") or 1):
            raise SchemaError(f"obs_t: expected {self._kept['stack']} frames, found {len(before)}")
        writer: Any = self.core.writer
        if not (writer.running and _same(before, self._last)):
            writer.reset(now)
            self._last = before
        writer.step(action, reward, following, terminated=done, number=self._n_added)
        self._last = after
        self._n_added += 1

    def sample(self, batch_size: int) -> Any:
        """Draw (B, ...) observations, actions, rewards, next observations and dones, as added."""
        return self._shaped(self.core.sample(batch_size))

    def _shaped(self, batch: Any) -> tuple[Array, Array, Array, Array, Array]:
        seen, following = batch.observation, batch.next_observation
        if self._kept.get("join"):
            seen, following = _joined(seen), _joined(following)
        done = (~batch.non_terminal).astype(self._kept.get("done", "bool"))
        return seen, batch.action, batch.reward, following, done


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that samples by priority ** alpha; an alpha of 0 is uniform.

    Source: Schaul et al. (2016), "Prioritized Experience Replay".
    """

    _kind = CorePrioritizedBuffer

    def __init__(self, size: int, alpha: float, path: StorePath = None) -> None:
        how = Prioritization(alpha, 1.0, epsilon=0.0, stratified=True, normalize="buffer")
        self._settings = dataclasses.asdict(how)
        super().__init__(size, path)

    def sample(  # type: ignore[override]  # as in the original
        self, batch_size: int, beta: float
    ) -> Any:
        """Draw transitions, one from each of B equal shares of the priorities' mass.

        Returns what `ReplayBuffer.sample` returns; then weights ** `beta` (B,) float64, divided by
        the largest of the buffer; then positions, a list of B ints: transition n, counted from 0 in
        the order of `add`, is at n % size. SchemaError for a beta that is not above 0.
        """
        if not beta > 0:
            raise SchemaError(f"beta: expected a number above 0, found {beta!r}")
        batch = self.core.sample(batch_size)
        weights = batch.weight.astype(np.float64) ** beta  # the store draws with beta = 1
        return *self._shaped(batch), weights, (batch.extras["number"] % self._capacity).tolist()

    def update_priorities(self, idxes: Sequence[int], priorities: npt.ArrayLike) -> None:
        """Set the priorities of the transitions that are now at some positions.

        InvalidIdError for a position without a transition; SchemaError for a priority that is not
        above 0, or not one per position.
        """
        places, given = np.asarray(idxes, np.int64), np.asarray(priorities, np.float64)
        if not (given > 0).all():
            raise SchemaError(f"priorities: expected numbers above 0, found {given.min()}")
        ranks = len(self) - 1 - (self._n_added - 1 - places) % self._capacity
        wrong = (places < 0) | (places >= self._capacity) | (ranks < 0)
        if wrong.any():
            raise InvalidIdError(f"idxes: there is no transition at {places[wrong][0]}")
        core: Any = self.core
        ids = core.store.live.look(lambda index: index.at(ranks))
        core.update_priorities(ids, given)


def _taken(observation: Any) -> Stack | Array:
    """LazyFrames as a writer takes them, or a copy of the array."""
    given = observation.stack if isinstance(observation, LazyFrames) else observation
    return given if isinstance(given, Stack) else np.array(given)


def _frames(taken: Stack | Array) -> list[Array]:
    return [taken.frame(i) for i in range(taken.count())] if isinstance(taken, Stack) else [taken]


def _same(some: list[Array], others: list[Array]) -> bool:
    """Whether these are the same frames; by bytes, so that a NaN equals itself."""
    return len(some) == len(others) and all(
        one is other or (one.shape == other.shape and one.tobytes() == other.tobytes())
        for one, other in zip(some, others, strict=True)
    )


def _joined(stacks: Array) -> Array:
    """(B, k, ..., c) as (B, ..., k * c), the oldest frame's channels first."""
    last = np.moveaxis(stacks, 1, -2)
    return last.reshape(*last.shape[:-2], -1)
