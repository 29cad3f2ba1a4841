"""Replay buffers that keep numpy arrays in memory: four libraries, and how each keeps least."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers import installed
from benchmarks.peers.peer import Setup
from benchmarks.peers.steps import ACTION, STACK, Plain, Promise, Step

__all__ = ["Cpprb", "D3rlpy", "StableBaselines3", "Tianshou"]

_NUMBERS = 1 << 24


class StableBaselines3:
    """`optimize_memory_usage` leaves out the second copy of each stack."""

    promise = Promise(has_final=False, has_cut=False)

    def __init__(self, setup: Setup) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.save_util import load_from_pkl

        self._path = setup.folder / "buffer.pkl"
        if self._path.exists():
            self._buffer = load_from_pkl(self._path)
            return
        self._buffer = installed.replay_buffer(
            setup.capacity,
            spaces.Box(0, 255, (STACK, *setup.shape), np.uint8)
            if setup.is_frames
            else spaces.Box(-np.inf, np.inf, setup.shape, np.float32),
            spaces.Discrete(_NUMBERS)
            if setup.is_frames
            else spaces.Box(-np.inf, np.inf, (ACTION,), np.float32),
            n_envs=setup.n_envs or 1,
        )

    def append(self, step: Step) -> None:
        self._buffer.add(
            step.stack[None],
            step.next_stack[None],
            np.array([step.action]),
            np.array([step.reward]),
            np.array([step.terminated or step.truncated]),
            [{}],
        )

    def extend(self, tick: tuple[Any, ...]) -> None:
        observations, following, actions, rewards, never = tick
        self._buffer.add(observations, following, actions, rewards, never, [{}] * len(rewards))

    def sample(self, n: int) -> Any:
        return self._buffer.sample(n)

    def plain(self, batch: Any) -> Plain:
        return Plain(
            batch.observations.numpy(),
            batch.next_observations.numpy(),
            batch.actions[:, 0].numpy(),
            batch.rewards[:, 0].numpy(),
            batch.dones[:, 0].numpy() != 0,
        )

    def save(self) -> None:
        from stable_baselines3.common.save_util import save_to_pkl

        save_to_pkl(self._path, self._buffer)

    def __len__(self) -> int:
        buffer = self._buffer
        size: int = buffer.size() * buffer.n_envs
        return size


class Tianshou:
    """`save_only_last_obs`, `ignore_obs_next`; stacks by `stack_num`. Vectors keep both."""

    promise = Promise(has_final=False, has_cut=False, has_newest=False)

    def __init__(self, setup: Setup) -> None:
        from tianshou.data import Batch, ReplayBuffer, VectorReplayBuffer

        self._batch = Batch
        self._path = setup.folder / "buffer.hdf5"
        kind = ReplayBuffer if setup.is_frames else VectorReplayBuffer
        if self._path.exists():
            self._buffer = kind.load_hdf5(str(self._path))
        elif setup.is_frames:
            self._buffer = kind(
                setup.capacity, stack_num=STACK, ignore_obs_next=True, save_only_last_obs=True
            )
        else:
            self._buffer = kind(setup.capacity, setup.n_envs)

    def append(self, step: Step) -> None:
        self._buffer.add(
            self._batch(
                obs=step.stack,
                act=step.action,
                rew=step.reward,
                terminated=step.terminated,
                truncated=step.truncated,
            )
        )

    def extend(self, tick: tuple[Any, ...]) -> None:
        observations, following, actions, rewards, never = tick
        self._buffer.add(
            self._batch(
                obs=observations,
                act=actions,
                rew=rewards,
                terminated=never,
                truncated=never,
                obs_next=following,
            )
        )

    def sample(self, n: int) -> Any:
        return self._buffer.sample(n)[0]

    def plain(self, batch: Any) -> Plain:
        action = batch.act if batch.act.ndim == 1 else batch.act[:, 0]
        return Plain(
            batch.obs, batch.obs_next, action, batch.rew.astype(np.float32), batch.terminated
        )

    def save(self) -> None:
        self._buffer.save_hdf5(str(self._path))

    def __len__(self) -> int:
        return len(self._buffer)


class Cpprb:
    """`next_of` and `stack_compress`; of many environments neither can be used."""

    promise = Promise()

    def __init__(self, setup: Setup) -> None:
        self._is_frames = setup.is_frames
        self._buffer = (
            installed.compressed(setup.capacity, setup.shape, STACK)
            if (setup.is_frames)
            else _plain_cpprb(setup)
        )
        self._path = setup.folder / "buffer.npz"
        if self._path.exists():
            self._buffer.load_transitions(str(self._path))

    def append(self, step: Step) -> None:
        self._buffer.add(
            obs=np.moveaxis(step.stack, 0, -1),
            act=step.action,
            rew=step.reward,
            next_obs=np.moveaxis(step.next_stack, 0, -1),
            done=step.terminated,
        )
        if step.terminated or step.truncated:
            self._buffer.on_episode_end()

    def extend(self, tick: tuple[Any, ...]) -> None:
        observations, following, actions, rewards, never = tick
        self._buffer.add(obs=observations, act=actions, rew=rewards, next_obs=following, done=never)

    def sample(self, n: int) -> Any:
        return self._buffer.sample(n)

    def plain(self, batch: Any) -> Plain:
        observation, following = batch["obs"], batch["next_obs"]
        if self._is_frames:
            observation, following = (np.moveaxis(one, -1, 1) for one in (observation, following))
        return Plain(
            observation, following, batch["act"][:, 0], batch["rew"][:, 0], batch["done"][:, 0] != 0
        )

    def save(self) -> None:
        self._buffer.save_transitions(str(self._path), safe=False)

    def __len__(self) -> int:
        size: int = self._buffer.get_stored_size()
        return size


def _plain_cpprb(setup: Setup) -> Any:
    from cpprb import ReplayBuffer

    return ReplayBuffer(
        setup.capacity,
        {
            "obs": {"shape": setup.shape},
            "act": {"shape": ACTION},
            "rew": {},
            "next_obs": {"shape": setup.shape},
            "done": {"dtype": np.uint8},
        },
    )


class D3rlpy:
    """A FIFO buffer of episodes of single frames, with a picker that stacks them."""

    promise = Promise(dtype="float32", pads_with_zeros=True, has_final=False)

    def __init__(self, setup: Setup) -> None:
        import structlog
        from d3rlpy.constants import ActionSpace
        from d3rlpy.dataset import (
            FIFOBuffer,
            FrameStackTransitionPicker,
            LastFrameWriterPreprocess,
            ReplayBuffer,
            Signature,
        )

        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
        self._path = setup.folder / "buffer.h5"
        self._buffer: Any
        self._many: list[tuple[Any, ...]] = []
        self._n_envs = setup.n_envs
        picker = FrameStackTransitionPicker(STACK) if setup.is_frames else None
        if self._path.exists():
            with self._path.open("rb") as file:
                self._buffer = ReplayBuffer.load(
                    file, FIFOBuffer(setup.capacity), transition_picker=picker
                )
            return
        shape = (STACK, *setup.shape) if setup.is_frames else setup.shape
        frames = np.dtype(np.uint8 if setup.is_frames else np.float32)
        action = np.dtype(np.int64 if setup.is_frames else np.float32)
        self._buffer = ReplayBuffer(
            FIFOBuffer(setup.capacity),
            transition_picker=picker,
            writer_preprocessor=LastFrameWriterPreprocess() if setup.is_frames else None,
            observation_signature=Signature([frames], [shape]),
            action_signature=Signature([action], [(1,) if setup.is_frames else (ACTION,)]),
            reward_signature=Signature([np.dtype(np.float32)], [(1,)]),
            action_space=ActionSpace.DISCRETE if setup.is_frames else ActionSpace.CONTINUOUS,
            action_size=_NUMBERS if setup.is_frames else ACTION,
        )

    def append(self, step: Step) -> None:
        self._buffer.append(step.stack, step.action, step.reward)
        if step.terminated or step.truncated:
            self._buffer.clip_episode(step.terminated)

    def extend(self, tick: tuple[Any, ...]) -> None:
        self._many.append(tick)

    def finish(self) -> None:
        """Append an episode for each environment: it takes steps of one environment alone."""
        from d3rlpy.dataset import Episode

        for env in range(self._n_envs):
            columns = [np.stack([tick[i][env] for tick in self._many]) for i in (0, 2, 3)]
            observations, actions, rewards = columns
            self._buffer.append_episode(
                Episode(observations, actions, rewards[:, None], terminated=False)
            )
        self._many = []

    def sample(self, n: int) -> Any:
        return self._buffer.sample_transition_batch(n)

    def plain(self, batch: Any) -> Plain:
        return Plain(
            batch.observations,
            batch.next_observations,
            batch.actions[:, 0],
            batch.rewards[:, 0],
            batch.terminals[:, 0] != 0,
        )

    def save(self) -> None:
        with self._path.open("w+b") as file:
            self._buffer.dump(file)

    def __len__(self) -> int:
        size: int = self._buffer.transition_count
        return size
