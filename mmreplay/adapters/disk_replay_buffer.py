"""stable-baselines3: its replay buffer, with the transitions in a store.

Invariant: for the same steps and random numbers, a batch equals, byte for byte, the batch of
stable-baselines3's own buffers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np

from mmreplay.adapters.frame_stacks import (
    Frames,
    Stacks,
    same_bytes,
    stacks_of,
    stacks_seen,
)
from mmreplay.adapters.torch import to_tensors
from mmreplay.batches.batch import Batch
from mmreplay.datasets.replay_buffer import ReplayBuffer as StoredBuffer
from mmreplay.errors import EmptyBufferError, MissingExtraError, SchemaError, StoreNotFoundError
from mmreplay.ids import Array, Ids
from mmreplay.reading.store import Store, open_store
from mmreplay.schema import FRAME, Field
from mmreplay.system import user_paths
from mmreplay.writing.create import FLUSH_S
from mmreplay.writing.request import Resume

try:
    from gymnasium import spaces
    from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
except ImportError as error:
    raise MissingExtraError(
        "mmreplay.adapters.stable_baselines3 needs stable-baselines3: "
        'pip install "mmreplay[stable-baselines3]"'
    ) from error

__all__ = ["BaseBuffer", "DiskReplayBuffer", "HerReplayBuffer"]

_REWARD = np.dtype("float32")
_ADVICE = (
    "if observations are not stacks, pass replay_buffer_kwargs={..., 'stack': None} and another "
    "path"
)


class DiskReplayBuffer(ReplayBuffer):
    """A ``replay_buffer_class`` for DQN, SAC and the like that stores each frame once, on disk.

    The first step creates the store, or continues an existing one, also after a kill. Until then
    nothing is opened for writing, so a second copy of a model can be loaded beside it. Batches are
    drawn with numpy's global random state, as stable-baselines3 does.

    Args:
        buffer_size: most transitions, of all environments together.
        observation_space: of the environments; a dict of spaces, too.
        action_space: of the environments. Continuous actions are stored scaled to [-1, 1].
        device: where samples are.
        n_envs: environments that step together.
        optimize_memory_usage: must be False: each frame is stored once anyway.
        handle_timeout_termination: an episode that a time limit ended is not terminal.
        path: the store's directory; its parent must exist. A model saves it as given, so pass an
            absolute path if the model may be loaded in another directory.
        n_steps: steps of a return.
        gamma: discount per step, of returns over several steps.
        stack: frames per observation, along its first axis; None stores observations whole.
            Without it, images of other than 1 or 3 channels are examined at the first step.
        codec: of the frames, as for `mmreplay.Field`.
        resume: True needs a store at the path, False a free path, when the first step comes;
            ``auto`` takes either, and logs a line if there is one.
        flush_s: seconds between flushes.

    Raises:
        MmreplayError: as `mmreplay.ReplayBuffer`, at the first step or sample.
        StoreNotFoundError: unpickled, or used after `close`, while its store is gone.
        SchemaError: `optimize_memory_usage`, or an observation that does not fit the store.

    Attributes:
        path: of the store.
        buffer: the `mmreplay.ReplayBuffer`; None before the first step.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: str | os.PathLike[str],
        n_steps: int = 1,
        gamma: float = 0.99,
        stack: int | EllipsisType | None = ...,
        codec: Any = None,
        resume: Resume = "auto",
        flush_s: float = FLUSH_S,
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)  # steps of all environments, as SB3's
        self.handle_timeout_termination = handle_timeout_termination
        self.optimize_memory_usage = optimize_memory_usage
        if optimize_memory_usage:
            raise SchemaError(
                "optimize_memory_usage: expected False: DiskReplayBuffer stores each frame once "
                "anyway; leave it out"
            )
        self.path = user_paths.absolute_path(path)
        self.n_steps, self.gamma = n_steps, gamma
        self._given = {"codec": codec, "resume": resume, "flush_s": flush_s}
        self._is_dict = isinstance(observation_space, spaces.Dict)
        parts = observation_space.spaces if self._is_dict else {FRAME: observation_space}
        self._shapes = dict(self.obs_shape) if self._is_dict else {FRAME: self.obs_shape}
        self._arrays_of = {
            name: ((n_envs, *shape), np.dtype(parts[name].dtype))
            for name, shape in self._shapes.items()
        }
        self._action_dtype = np.dtype(self._maybe_cast_dtype(action_space.dtype))
        self._stack, self._rows = stack, 0
        self._stacks: Stacks | None = None
        if not self._look() and not Path(path).is_absolute():
            warnings.warn(
                f"path: {os.fspath(path)!r}: there is no store at {self.path}; the first step "
                f"creates one. A model keeps a relative path; an absolute path works anywhere",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<DiskReplayBuffer {self.path}>"

    def _look(self) -> bool:
        """Read what the store holds, without opening it for writing; False without a store."""
        store = self._found()
        self.buffer: StoredBuffer | None = None
        self._last: list[bytes] | None = None  # the observations after the newest step
        self._none = np.zeros(self.n_envs, np.bool_)
        self._ended = self._none.tobytes()  # (N,) bool: environments whose episode it ended
        self._has_holes = False
        self._rows = self._first = self.pos = 0
        self.full = False
        if store is None:
            return False
        with store:
            fields = store.schema.frames
            self._stacks = stacks_of(
                self._shapes, {name: field.shape for name, field in fields.items()}, store.padding
            )
            lane = store.lanes[0]
            self._count(lane.rows, lane.first)
        return True

    def _found(self) -> Store | None:
        """The store, opened for reading; None if nothing was stored so far."""
        try:
            return open_store(self.path)
        except StoreNotFoundError as error:
            if not self._rows:
                return None
            raise StoreNotFoundError(
                f"{self.path}: the store of this buffer is gone; move it back, or load the model "
                f"with replay_buffer_kwargs={{..., 'path': its new path}}, without "
                f"load_replay_buffer"
            ) from error

    def _count(self, rows: int, first: int) -> None:
        """Set the number of steps ever stored, the oldest kept one, and SB3's own counters."""
        size = self.buffer_size
        self._rows, self.full = rows, rows - first >= size
        self._first, self.pos = (rows - size, rows % size) if self.full else (first, rows - first)

    def _opened(self) -> StoredBuffer:
        """The buffer, opened for writing; EmptyBufferError before the first step."""
        if self.buffer is not None:
            return self.buffer
        stacks = self._stacks
        if stacks is None:
            raise EmptyBufferError(f"{self.path}: there is no transition yet")
        # Raises if the store is gone, instead of creating another one.
        if (store := self._found()) is not None:
            store.close()
        fields = {
            name: Field(stacks.frame_shape(shape), self._arrays_of[name][1])
            for name, shape in self._shapes.items()
        }
        self.buffer = StoredBuffer(
            self.path,
            self.buffer_size * self.n_envs,
            stacks.n,
            self.n_steps,
            self.gamma,
            lanes=self.n_envs,
            frame=fields if self._is_dict else fields[FRAME],
            action=Field((self.action_dim,), self._action_dtype),
            reward_dtype="float32",
            padding=stacks.padding,
            **self._given,
        )
        self._given["resume"] = True  # from now on, also after `close` or unpickling
        lane = self.buffer.store.lanes[0]
        self._count(lane.rows, lane.first)
        # A store of another size may keep more steps than are sampled here.
        self._has_holes = len(self.buffer) < (lane.rows - lane.first) * self.n_envs
        return self.buffer

    def close(self) -> None:
        """Close the store; the next step continues it."""
        if self.buffer is not None:
            self.buffer.close()
            self.buffer = self._last = None

    def __getstate__(self) -> dict[str, Any]:
        """Flush the store; `save_replay_buffer` writes its path instead of its contents."""
        if self.buffer is not None:
            self.buffer.flush()
        left_out = {"buffer", "_last", "env"}
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look()

    def reset(self) -> None:
        """Not supported: SchemaError."""
        raise SchemaError(f"{self.path}: a store is not emptied; use another path instead")

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Append a step of all environments; see the base class.

        An episode begins after the end of another one, and where `obs` is not the last `next_obs`.
        """
        seen, following, n = self._arrays(obs), self._arrays(next_obs), self.n_envs
        ended = np.asarray(done, np.bool_).reshape(n)
        if self._stacks is None:
            self._stacks = stacks_seen(seen, following, self._stack)
        buffer, stacks = self._opened(), self._stacks
        # Bytes, so that a NaN equals itself.
        if self._ended != bytes(n) or self._last != [array.tobytes() for array in seen.values()]:
            self._begin(buffer, stacks, seen)
        if not stacks.follow(seen, following):
            raise SchemaError(
                f"{self.path}: expected a stack of {stacks.n} frames, those of the observation "
                f"before and a new one; {_ADVICE}"
            )
        cut, terminated = self._none, ended
        if self.handle_timeout_termination:
            cuts = [info.get("TimeLimit.truncated", False) for info in infos]
            if any(cuts):
                cut = np.array(cuts, np.bool_)
                terminated, ended = ended & ~cut, ended | cut
        buffer.step(
            np.asarray(action, self._action_dtype).reshape(n, self.action_dim),
            np.asarray(reward).astype(_REWARD, copy=False).reshape(n),
            self._as_space(stacks.newest(following)),
            terminated,
            cut,
        )
        self._last = [array.tobytes() for array in following.values()]
        self._ended = ended.tobytes()
        self._count(buffer.writer.rows, self._first)

    def _begin(self, buffer: StoredBuffer, stacks: Stacks, seen: Frames) -> None:
        """Begin episodes where others ended, and where other observations are the newest."""
        new = np.frombuffer(self._ended, np.bool_) | (self._last is None)
        for array, last in zip(seen.values(), self._last or (), strict=False):
            new |= ~same_bytes(array, np.frombuffer(last, array.dtype).reshape(array.shape))
        if not stacks.begins(seen)[new].all():
            raise SchemaError(
                f"{self.path}: expected an episode to begin with a stack of {stacks.n} frames, "
                f"padded by '{stacks.padding}'; {_ADVICE}; in the middle of an episode, call "
                f"model.set_env(env), which begins others"
            )
        buffer.reset(self._as_space(stacks.newest(seen)), new)

    def _arrays(self, obs: Any) -> dict[str, Array]:
        """Observations by name, (N, *shape) each, of the dtypes that are stored.

        As numpy broadcasts, more or fewer axes of 1 may be at the front. The (N,) numbers of
        Discrete spaces become (N, 1).
        """
        out = {}
        for name, (shape, dtype) in self._arrays_of.items():
            array = np.asarray(obs[name] if self._is_dict else obs)
            if array.shape == shape and array.dtype == dtype:
                out[name] = array
                continue
            each = self._shapes[name]
            if _core(array.shape) not in (_core(shape), shape[: 1 if each == (1,) else None]):
                advice = "check the order of the environment's wrappers"
                if array.shape[1:] == each:
                    advice = f"go on with {self.n_envs} environments, or choose another path"
                raise SchemaError(
                    f"{self.path}: {name}: expected observations of shape {shape}, as the space "
                    f"says, found {array.shape}; {advice}"
                )
            out[name] = array.reshape(shape).astype(dtype, copy=False)
        return out

    def _as_space(self, frames: Mapping[str, Any]) -> Any:
        """Frames or observations by name, as in the environments' space."""
        return frames if self._is_dict else frames[FRAME]

    def _get_samples(self, batch_inds: Ids, env: Any = None) -> Any:
        """The steps with these numbers in a ring of `buffer_size`, each of a random environment."""
        buffer, rows = self._opened(), np.asarray(batch_inds, np.int64)
        if self._has_holes:
            ranks = np.random.randint(0, len(buffer), size=rows.shape)  # noqa: NPY002  as SB3's
            ids = buffer.store.live.look(lambda index: index.at(ranks))
        else:
            if self.full:
                rows = (rows - self._rows) % self.buffer_size
            envs = np.random.randint(0, high=self.n_envs, size=rows.shape)  # noqa: NPY002
            ids = (rows + self._first) * self.n_envs + envs
        return self._samples(self._read(buffer, ids), env)

    def _read(self, buffer: StoredBuffer, ids: Ids) -> Batch:
        return buffer.store.live.gather(lambda _: ids, buffer.draws.gatherer)  # they are valid

    def _samples(self, batch: Batch, env: Any) -> Any:
        """A batch as stable-baselines3 returns it, normalized by `env` unless that is None."""
        more = {}
        if self.n_steps > 1:
            rewards, discounts = self._returns(batch.id, env)
            more["discounts"] = self.to_torch(discounts, copy=False)
        else:
            rewards = self._normalize_reward(batch.reward.reshape(-1, 1), env)
        if env is None and self.device.type != "cpu":  # frames are sent there once
            tensors: Any = to_tensors(batch, self.device)
            seen = self._named(tensors.observation)
            following = self._named(tensors.next_observation)
        else:
            seen = self._normalized(batch.observation, env)
            following = self._normalized(batch.next_observation, env)
        over = (~batch.non_terminal).astype(np.float32).reshape(-1, 1)
        kind = DictReplayBufferSamples if self._is_dict else ReplayBufferSamples
        return kind(
            observations=self._as_space(seen),
            actions=self.to_torch(batch.action, copy=False),
            next_observations=self._as_space(following),
            dones=self.to_torch(over, copy=False),
            rewards=self.to_torch(rewards, copy=False),
            **more,
        )

    def _named(self, shown: Any) -> dict[str, Any]:
        """Arrays or tensors by name, in the shapes of observations."""
        parts = shown if self._is_dict else {FRAME: shown}
        return {name: parts[name].reshape(-1, *shape) for name, shape in self._shapes.items()}

    def _normalized(self, shown: Any, env: Any) -> dict[str, Any]:
        named = self._named(shown)
        found = self._normalize_obs(self._as_space(named), env)
        return {name: self.to_torch(one, copy=False) for name, one in self._named(found).items()}

    def _returns(self, ids: Ids, env: Any) -> tuple[Array, Array]:
        """Returns over n steps and discounts, (B, 1) each, in float32 as of `NStepReplayBuffer`."""
        lane = self._opened().store.lanes[0]
        rows, envs = ids // self.n_envs, (ids % self.n_envs)[:, None]
        ahead = rows[:, None] + np.arange(self.n_steps)
        newest = self._rows - 1
        within = np.minimum(ahead, newest)
        is_last = (lane.ends[within, envs] != 0) | (ahead >= newest)
        last = np.where(is_last.any(1), is_last.argmax(1), self.n_steps - 1)
        counts = np.arange(self.n_steps) <= last[:, None]
        rewards = self._normalize_reward(lane.rewards[within, envs], env)
        powers = self.gamma ** np.arange(self.n_steps, dtype=np.float32).reshape(1, -1)
        steps = counts.sum(axis=1, keepdims=True).astype(np.float32)
        return (rewards * powers * counts).sum(axis=1, keepdims=True), self.gamma**steps


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    return _core(shape[1:]) if shape[:1] == (1,) else shape
