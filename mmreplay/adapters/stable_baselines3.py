"""stable-baselines3: its replay buffer, with the transitions in a store.

Invariant: a batch is, byte for byte, what stable-baselines3's own buffers give for the same steps
and the same random numbers.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import EllipsisType
from typing import Any, cast

import numpy as np

from mmreplay.adapters.frame_stacks import Frames, Stacks, same_bytes, stacks_of, stacks_seen
from mmreplay.adapters.torch import to_tensors
from mmreplay.arguments import true_or_false, whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.relabel import STRATEGIES
from mmreplay.datasets.hindsight import Hindsight
from mmreplay.datasets.replay_buffer import ReplayBuffer as StoredBuffer
from mmreplay.errors import (
    EmptyBufferError,
    MissingExtraError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.ids import Array, Ids
from mmreplay.reading.store import Store, open_store
from mmreplay.schema import FRAME, Field
from mmreplay.system import user_paths
from mmreplay.writing.create import FLUSH_S
from mmreplay.writing.vector_writer import VectorWriter

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

__all__ = ["DiskHerReplayBuffer", "DiskReplayBuffer"]


class DiskReplayBuffer(ReplayBuffer):
    """A ``replay_buffer_class`` of DQN, SAC and the like, which keeps each frame once, on disk.

    The first step creates the store, or goes on in the one that is there, also after a kill; until
    then nothing is opened for writing, so that a second copy of a model can be loaded to look at.
    Batches are drawn by numpy's global random state, as stable-baselines3's are.

    Args:
        buffer_size: most transitions, of all environments together.
        observation_space: of the environments; a dict of spaces, too.
        action_space: likewise. Continuous actions are stored as they come, scaled to [-1, 1].
        device: where samples are to be.
        n_envs: environments that step together.
        optimize_memory_usage: no difference, as each frame is stored once in any case.
        handle_timeout_termination: an episode that a time limit cut off is no terminal one.
        path: the store's directory; its parent must exist. Absolute if the model may be loaded in
            another directory, as it is saved as given. Relative with nothing there: a warning.
        n_steps: most steps of a return.
        gamma: discount a step, of returns over more than one.
        stack: frames of an observation, along its first axis; None for observations that are
            stored whole. Left out, images of other than 1 or 3 channels are looked at when they
            first come.
        codec: of the frames, as for `mmreplay.Field`.
        flush_s: seconds between flushes by the clock.

    Raises:
        MmreplayError: what `mmreplay.ReplayBuffer` raises, with the first step or sample.
        StoreNotFoundError: unpickled, or going on after `close`, while its store is gone.
        SchemaError: also when an observation is no stack where stacks are stored.

    Attributes:
        path: of the store.
        buffer: the `mmreplay.ReplayBuffer`, once there is one; None before.
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
        flush_s: float = FLUSH_S,
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)  # steps of all environments, as SB3's
        self.handle_timeout_termination = handle_timeout_termination
        self.optimize_memory_usage = False
        if optimize_memory_usage:
            warnings.warn(
                "optimize_memory_usage is ignored: DiskReplayBuffer stores each frame once anyway",
                stacklevel=2,
            )
            # `learn` sets a flag in it, to end an episode which ends here by its frames.
            self.dones = np.zeros((self.buffer_size, n_envs), np.bool_)
        self.path = user_paths.absolute_path(path)
        self.n_steps, self.gamma = n_steps, gamma
        self._given = {"codec": codec, "flush_s": flush_s}
        self._is_dict = isinstance(observation_space, spaces.Dict)
        parts = observation_space.spaces if self._is_dict else {FRAME: observation_space}
        self._shapes = dict(self.obs_shape) if self._is_dict else {FRAME: self.obs_shape}
        self._dtypes = {name: np.dtype(space.dtype) for name, space in parts.items()}
        self._action_dtype = np.dtype(self._maybe_cast_dtype(action_space.dtype))
        self._stack, self._rows = stack, 0
        self._stacks: Stacks | None = None
        if not self._look() and not Path(path).is_absolute():
            warnings.warn(
                f"path: {os.fspath(path)!r}: there is no store at {self.path}; the first step "
                f"makes one. A model keeps a relative path; an absolute path is found anywhere",
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"<DiskReplayBuffer {self.path}>"

    # ------------------------------------------------------------ the store

    def _look(self) -> bool:
        """Find out whether there is a store, and what is in it, without opening it for writing."""
        store = self._found()
        self.buffer: StoredBuffer | None = None
        self._last: Frames | None = None  # what was seen after the newest step
        self._ended = np.zeros(self.n_envs, np.bool_)  # of which environments it was the last
        # Whose observations show frames that were never stored: left out until their episode ends.
        self._waiting = np.zeros(self.n_envs, np.bool_)
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
        """The store, opened for reading; None if there is none and nothing was stored so far."""
        try:
            return open_store(self.path)
        except StoreNotFoundError as error:
            if not self._rows:
                return None
            raise StoreNotFoundError(
                f"{self.path}: expected the store of this buffer, found none; move it back, or "
                f"open it where it is now: load the model with "
                f"replay_buffer_kwargs={{..., 'path': its new place}}, without load_replay_buffer"
            ) from error

    def _count(self, rows: int, first: int) -> None:
        """Steps that there ever were, and the oldest that is kept; as SB3 tells them, too."""
        self._rows, self._first = rows, max(first, rows - self.buffer_size)
        self.full = rows - self._first == self.buffer_size
        self.pos = rows % self.buffer_size if self.full else rows - self._first

    def _opened(self) -> StoredBuffer:
        """The buffer, opened for writing; EmptyBufferError if nobody knows its frames yet."""
        if self.buffer is not None:
            return self.buffer
        stacks = self._stacks
        if stacks is None:
            raise EmptyBufferError(f"{self.path}: there is no transition yet")
        # Where the store is gone that there was, a new one would begin without a word.
        if (store := self._found()) is not None:
            store.close()
        fields = {
            name: Field(stacks.frame_shape(shape), self._dtypes[name])
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
        lane = self.buffer.store.lanes[0]
        self._count(lane.rows, lane.first)
        # Of all that the store keeps: with holes that may be more steps than are looked at here.
        self._has_holes = len(self.buffer) < (lane.rows - lane.first) * self.n_envs
        return self.buffer

    def close(self) -> None:
        """Close the store; a next step goes on in it."""
        if self.buffer is not None:
            self.buffer.close()
            self.buffer = self._last = None

    def __getstate__(self) -> dict[str, Any]:
        """What `save_replay_buffer` writes: where the store is, after a flush of it."""
        if self.buffer is not None:
            self.buffer.flush()
        left_out = {"buffer", "_last", "dones", "env"}
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.dones = np.zeros((self.buffer_size, self.n_envs), np.bool_)  # see `__init__`
        self._look()

    def reset(self) -> None:
        """Refuse: nothing is deleted that may be wanted."""
        raise SchemaError(f"{self.path}: a store is not emptied; give another path instead")

    # ------------------------------------------------------------ steps

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

        Episodes begin where one has ended, and where `obs` is not what the step before led to. If
        frames that it shows were never stored, the rest of that episode is left out.
        """
        seen, following = self._arrays(obs), self._arrays(next_obs)
        ended = np.array(done, np.bool_).reshape(self.n_envs)
        if self._stacks is None:
            self._stacks = stacks_seen(seen, following, self._stack)
        buffer, stacks = self._opened(), self._stacks
        if not self._goes_on(seen):
            self._begin(buffer, stacks, seen)
        stepping = ~self._waiting
        if not (stacks.follows(seen, following) | self._waiting).all():
            raise SchemaError(
                f"{self.path}: expected a stack of {stacks.n} frames, those of the observation "
                f"before and a new one, found another; if these are no stacks, give "
                f"replay_buffer_kwargs={{..., 'stack': None}} and another path"
            )
        cut = np.zeros(self.n_envs, np.bool_)
        if self.handle_timeout_termination and ended.any():
            cut[:] = [info.get("TimeLimit.truncated", False) for info in infos]
        frames = stacks.newest(following)
        buffer.step(
            np.asarray(action).reshape(self.n_envs, self.action_dim).astype(self._action_dtype),
            np.asarray(reward, np.float32).reshape(self.n_envs),
            frames if self._is_dict else frames[FRAME],
            ended & ~cut,
            ended & cut,
            **({} if stepping.all() else {"mask": stepping}),
        )
        self._last = {name: array.copy() for name, array in following.items()}
        self._ended = ended
        self._count(_writer(buffer).rows, self._first)

    def _arrays(self, obs: Any) -> dict[str, Array]:
        """Observations by name, (N, *shape) each, of the dtypes that are stored."""
        parts, out = obs if self._is_dict else {FRAME: obs}, {}
        for name, each in self._shapes.items():
            array, shape = np.asarray(parts[name]), (self.n_envs, *each)
            if [n for n in array.shape if n != 1] != [n for n in shape if n != 1]:
                raise SchemaError(
                    f"{self.path}: {name}: expected observations of shape {shape}, as the space "
                    f"says, found {array.shape}; look at the order of the environment's wrappers"
                )
            out[name] = array.reshape(shape).astype(self._dtypes[name], copy=False)
        return out

    def _goes_on(self, seen: Frames) -> bool:
        """Whether all episodes go on with what the step before led to."""
        last = self._last
        return (
            last is not None
            and not self._ended.any()
            and all(same_bytes(seen[name], last[name]).all() for name in seen)
        )

    def _begin(self, buffer: StoredBuffer, stacks: Stacks, seen: Frames) -> None:
        """Begin an episode in each environment whose last one ended or was left."""
        new = np.ones(self.n_envs, np.bool_)
        if self._last is not None:
            new[:] = self._ended
            for name, array in seen.items():
                new |= ~same_bytes(array, self._last[name])
        begins = stacks.begins(seen)
        if self._last is not None and (self._ended & ~begins).any():
            raise SchemaError(
                f"{self.path}: expected an episode to begin with a stack of {stacks.n} padded by "
                f"'{stacks.padding}', found another; give replay_buffer_kwargs={{..., 'stack': "
                f"None}} and another path if these are no stacks"
            )
        self._waiting = (self._waiting | new) & ~(new & begins)
        left = _writer(buffer).running & new & ~begins
        if left.any():
            _writer(buffer).end_episodes(left)
        self._has_holes |= bool(self._waiting.any())
        if (new & begins).any():
            frames = stacks.newest(seen)
            buffer.reset(frames if self._is_dict else frames[FRAME], new & begins)

    # ------------------------------------------------------------ samples

    def _get_samples(self, batch_inds: Ids, env: Any = None) -> Any:
        """The steps with these numbers in a ring of `buffer_size`, each of a random environment."""
        buffer = self._opened()
        if self._has_holes:
            if not len(buffer):  # all steps were left out, as a repair may do
                raise EmptyBufferError(f"{self.path}: there is no transition yet")
            ranks = np.random.randint(0, len(buffer), size=len(batch_inds))  # noqa: NPY002  as SB3's
            ids = buffer.store.live.look(lambda index: index.at(ranks))
            return self._samples(self._read(buffer, ids), env)
        rows = np.asarray(batch_inds, np.int64)
        if self.full:
            rows = (rows - self._rows) % self.buffer_size
        envs = np.random.randint(0, high=self.n_envs, size=rows.shape)  # noqa: NPY002
        ids = (rows + self._first) * self.n_envs + envs
        return self._samples(self._read(buffer, ids), env)

    def _read(self, buffer: StoredBuffer, ids: Ids) -> Batch:
        return buffer.transitions(ids)

    def _samples(self, batch: Batch, env: Any) -> Any:
        """A batch as stable-baselines3 has it, normalized by `env` if that is given."""
        rewards, discounts = batch.reward.reshape(-1, 1), None
        if self.n_steps > 1:
            rewards, discounts = self._returns(batch.id, env)
        else:
            rewards = self._normalize_reward(rewards, env)
        if env is None:  # frames are sent to the device once
            tensors: Any = to_tensors(batch, self.device)
            seen = self._named(tensors.observation)
            following = self._named(tensors.next_observation)
        else:
            seen = self._normalized(batch.observation, env)
            following = self._normalized(batch.next_observation, env)
        over = (~batch.non_terminal).astype(np.float32).reshape(-1, 1)
        kind = DictReplayBufferSamples if self._is_dict else ReplayBufferSamples
        return kind(
            observations=seen if self._is_dict else seen[FRAME],
            actions=self.to_torch(batch.action, copy=False),
            next_observations=following if self._is_dict else following[FRAME],
            dones=self.to_torch(over, copy=False),
            rewards=self.to_torch(rewards, copy=False),
            **({} if discounts is None else {"discounts": self.to_torch(discounts, copy=False)}),
        )

    def _named(self, shown: Any) -> dict[str, Any]:
        """Arrays or tensors of stacks by name, in the shapes of observations."""
        stacks, parts = self._stacks, shown if self._is_dict else {FRAME: shown}
        if stacks is None or stacks.n is None:
            return dict(parts)
        return {name: stacks.whole(parts[name], shape) for name, shape in self._shapes.items()}

    def _normalized(self, shown: Any, env: Any) -> dict[str, Any]:
        named = self._named(shown)
        found = self._normalize_obs(named if self._is_dict else named[FRAME], env)
        return {name: self.to_torch(one, copy=False) for name, one in self._named(found).items()}

    def _returns(self, ids: Ids, env: Any) -> tuple[Array, Array]:
        """Returns over n steps and their discounts, (B, 1) each.

        Rewards are normalized one by one, and summed in float32, as by `NStepReplayBuffer`.
        """
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


class DiskHerReplayBuffer(DiskReplayBuffer, HerReplayBuffer):
    """A `DiskReplayBuffer` whose samples have goals that their episodes reached.

    It takes the place of `HerReplayBuffer`. Of running episodes, too, transitions are sampled, and
    each one gets another goal with the probability n_sampled_goal / (n_sampled_goal + 1).

    Args:
        buffer_size: as of `DiskReplayBuffer`, and so are those that are not named here.
        observation_space: a dict with ``achieved_goal`` and ``desired_goal``.
        action_space: of the environments.
        env: of the model, which hands it over; its ``compute_reward`` is called, with empty infos.
        device, n_envs, optimize_memory_usage, handle_timeout_termination, path: as above.
        n_sampled_goal: samples with another goal, for each as it was.
        goal_selection_strategy: ``future``, ``final`` or ``episode``; see `mmreplay.Hindsight`.
        copy_info_dict: False, as infos are not stored.
        codec, flush_s: as above.

    Raises:
        SchemaError: no such strategy; infos that are asked for; or as `DiskReplayBuffer`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        env: Any,
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: str | os.PathLike[str],
        n_sampled_goal: int = 4,
        goal_selection_strategy: str = "future",
        copy_info_dict: bool = False,
        codec: Any = None,
        flush_s: float = FLUSH_S,
    ) -> None:
        if true_or_false("copy_info_dict", copy_info_dict):
            raise SchemaError(
                "copy_info_dict: expected False, as infos are not stored and compute_reward gets "
                "empty ones; found True; where it needs them, use stable-baselines3's own buffer"
            )
        DiskReplayBuffer.__init__(
            self,
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            path=path,
            stack=None,
            codec=codec,
            flush_s=flush_s,
        )
        self.env = env
        self.n_sampled_goal = whole_number("n_sampled_goal", n_sampled_goal, 0)
        self.her_ratio = 1 - 1 / (self.n_sampled_goal + 1)
        name = getattr(goal_selection_strategy, "name", goal_selection_strategy)
        self.goal_selection_strategy = strategy = str(name).lower()
        if strategy not in STRATEGIES:
            text = f"goal_selection_strategy: expected one of {STRATEGIES}, found {name!r}"
            raise SchemaError(text)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.env = None  # until `set_env`

    def truncate_last_trajectory(self) -> None:
        """Nothing: an episode ends where the next observation is of another one."""

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions, and goals for a share of them."""
        return BaseBuffer.sample(self, batch_size, env)

    def _read(self, buffer: StoredBuffer, ids: Ids) -> Batch:
        strategy, ratio = self.goal_selection_strategy, self.her_ratio
        return Hindsight(buffer, self._reward, strategy, ratio).relabel(ids)

    def _reward(self, achieved: Array, desired: Array, _: Any) -> Array:
        if self.env is None:
            raise SchemaError(f"{self.path}: expected an environment first; call set_env(env)")
        infos: list[dict[str, Any]] = [{} for _ in achieved]
        (rewards,) = self.env.env_method("compute_reward", achieved, desired, infos, indices=[0])
        return np.asarray(rewards, np.float32)


def _writer(buffer: StoredBuffer) -> VectorWriter:
    """The writer of a buffer of `lanes`."""
    return cast("VectorWriter", buffer.writer)
