"""keras-gym's experience replay.

Invariant: a transition, its return and its next state are from one episode. Actions are stored as
the environment takes them, and encoded when they are sampled.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.sampling.draws import uniform_ids
from mmreplay.schema import Field
from mmreplay.system import durable_writes

__all__ = ["ExperienceReplayBuffer"]


class ExperienceReplayBuffer(DeferredStore):
    """Experience of an environment whose states are stacks of frames, the newest last.

    `env` has an `action_space`, and `num_frames` unless that is 1. A return has `bootstrap_n`
    steps, fewer at the end of an episode. Without `random_seed`, draws differ each time; without
    `path`, the store is temporary.
    """

    def __init__(
        self,
        env: Any,
        capacity: int,
        batch_size: int = 32,
        bootstrap_n: int = 1,
        gamma: float = 0.99,
        random_seed: int | None = None,
        path: StorePath = None,
    ) -> None:
        super().__init__(path, whole_number("capacity", int(capacity)))
        self.env, self.capacity, self.batch_size = env, int(capacity), int(batch_size)
        self.num_frames, self._actions = _num_frames(env), _Actions(env.action_space)
        self.bootstrap_n, self.gamma = int(bootstrap_n), float(gamma)
        self.random_seed = self._seed = random_seed
        self._waiting: tuple[Array, float, int] | None = None  # action, reward, episode
        if (stored := self._stored(dicts=False)) is not None:
            self._begin(stored[0])

    @classmethod
    def from_value_function(
        cls, value_function: Any, capacity: int, batch_size: int = 32, path: StorePath = None
    ) -> Self:
        """A buffer with the `env`, `gamma` and `bootstrap_n` of a value function."""
        q = value_function
        return cls(q.env, capacity, batch_size, q.bootstrap_n, q.gamma, path=path)

    def _begin(self, frame: Field) -> None:
        self._open(
            ReplayBuffer,
            stack=None if self.num_frames == 1 else self.num_frames,
            n_step=self.bootstrap_n,
            gamma=self.gamma,
            seed=self._seed,
            frame=frame,
            action=self._actions.field,
            extras={"next_action": self._actions.field},
            reward_dtype="float64",
        )
        self._gatherer = self.core.store.live.gatherer(self.core.settings)

    def add(self, s: Any, a: Any, r: float, done: bool, episode_id: int) -> None:
        """Add a step; it can be sampled once its next state is known.

        The last frame of `s` (*frame, num_frames) is stored, or `s` (*frame,) if `num_frames` is 1.
        `done` ends the episode, and a different `episode_id` begins another one. SchemaError for a
        value that does not fit what was added before.
        """
        frame = np.asarray(s)
        if self.num_frames > 1:
            if frame.shape[-1:] != (self.num_frames,):
                raise SchemaError(f"s: expected (..., {self.num_frames}), found {frame.shape}")
            frame = frame[..., -1]
        if self._core is None:
            self._begin(Field(frame.shape, frame.dtype))
        core, action = self.core, self._actions.taken(a)
        if self._waiting is not None and self._waiting[2] == episode_id:
            core.step(*self._waiting[:2], frame, next_action=action)
        else:
            core.reset(frame)
        self._waiting = None if done else (action, float(r), episode_id)
        if done:
            # The next state is never read; the last frame replaces it.
            none = np.full_like(action, self._actions.start)
            core.step(action, r, frame, terminated=True, next_action=none)

    def sample(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Draw `batch_size` transitions with replacement; EmptyBufferError if there are fewer.

        Returns S (B, *frame, num_frames), without the last axis if that is 1; A (B, *action),
        one-hot for a discrete space; Rn (B,) float64, returns over m steps, `bootstrap_n` or fewer;
        In (B,) float64, gamma ** m, 0 where the episode ended; S_next and A_next, m steps later.
        """
        if len(self) < self.batch_size:
            raise EmptyBufferError(f"{self!r}: has {len(self)} of {self.batch_size} transitions")
        draws, lasts = self.core.generator.random(self.batch_size), np.empty(0, np.int64)

        def draw(index: Index) -> Ids:
            nonlocal lasts
            ids = uniform_ids(index, draws)
            lasts = ids + index.steps(ids, self.bootstrap_n, back=False).left - 1
            return ids

        one: Any = self.core.store.live.gather(draw, self._gatherer)
        follows = self._actions.given(self.core.store.extras["next_action"][lasts])
        follows[~one.non_terminal] = 0
        seen, following = one.observation, one.next_observation
        if self.num_frames > 1:
            seen, following = np.moveaxis(seen, 1, -1), np.moveaxis(following, 1, -1)
        return seen, self._actions.given(one.action), one.reward, one.discount, following, follows

    def clear(self) -> None:
        """Delete everything, including a store at a path."""
        if self._core is not None:
            self._seed = int(self._core.generator.integers(1 << 62))  # not the same draws again
            self._core.close()
            durable_writes.remove_tree(self._core.store.path)
            self._remove()
        self._core = self._temporary = self._waiting = None


class _Actions:
    """The actions of a space of Gym or Gymnasium: one-hot for a discrete space, else arrays."""

    def __init__(self, space: Any) -> None:
        self._n = int(space.n) if hasattr(space, "n") and not getattr(space, "shape", ()) else None
        self.start = int(getattr(space, "start", 0)) if self._n else 0
        self.field = Field((), "int64") if self._n else Field(space.shape, space.dtype)

    def taken(self, action: Any) -> Array:
        """The action as stored; raises SchemaError if it is not in the action space."""
        found = self.field.coerce_loosely(action, "a")
        if self._n and not 0 <= found - self.start < self._n:
            raise SchemaError(
                f"a: expected an action in [{self.start}, {self.start + self._n}), found {action}"
            )
        return found

    def given(self, actions: Array) -> Array:
        """One-hot (B, n) float64 of discrete actions; others as they are."""
        return actions if self._n is None else np.eye(self._n)[actions - self.start]


def _num_frames(env: Any) -> int:
    """The `num_frames` of the environment or of a wrapped one; else 1."""
    while env is not None:
        if (found := getattr(env, "num_frames", None)) is not None:
            return int(found)
        env = getattr(env, "env", None)
    return 1
