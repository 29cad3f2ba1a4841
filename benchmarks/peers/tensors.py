"""Replay buffers of tensors: TorchRL, in memory and on disk, and flashbax, compiled by JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.peer import Setup
from benchmarks.peers.steps import ACTION, STACK, Plain, Promise, Step

__all__ = ["Flashbax", "TorchRL"]


class TorchRL:
    """Single frames in a storage, of which a `SliceSampler` draws slices that make two stacks."""

    promise = Promise()

    def __init__(self, setup: Setup, storage: str) -> None:
        import torch
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
        from torchrl.data.replay_buffers import RandomSampler, SliceSampler

        torch.set_num_threads(1)
        self._is_frames = setup.is_frames
        self._saved = setup.folder / "saved"
        # In the storage's own folder a dump is no copy.
        scratch = self._saved / "storage"
        # A step more than transitions for each episode: its final frame.
        rows = setup.capacity + setup.capacity // 20 if setup.is_frames else setup.capacity
        kept: Any = (
            LazyTensorStorage(rows)
            if storage == "tensor"
            else LazyMemmapStorage(rows, scratch_dir=scratch, existsok=True)
        )
        self._buffer: Any = ReplayBuffer(
            storage=kept,
            # Marks of where a slice begins and ends are not needed, and cost two reads more.
            sampler=SliceSampler(
                slice_len=STACK + 1,
                traj_key="episode",
                cache_values=True,
                truncated_key=None,
                init_key=None,
            )
            if setup.is_frames
            else RandomSampler(),
            transform=_stacks if setup.is_frames else None,
        )
        self._episode, self._ends = -1, 0
        if (self._saved / "buffer_metadata.json").exists():
            self._buffer.loads(self._saved)
            if setup.is_frames:
                self._episode = int(self._buffer.storage[:]["episode"].max())
                self._ends = self._episode

    def append(self, step: Step) -> None:
        if step.is_first or self._episode < 0:
            self._episode += 1
        self._add(step.frame, step.action, step.reward, step.terminated)
        if step.terminated or step.truncated:
            self._ends += 1
            self._add(step.next_frame, 0, 0, False)

    def _add(self, frame: Any, action: int, reward: float, terminated: bool) -> None:
        import torch
        from tensordict import TensorDict

        row = {
            "pixels": torch.from_numpy(frame),
            "action": torch.tensor(action),
            "reward": torch.tensor(reward, dtype=torch.float32),
            "terminated": torch.tensor(terminated),
            "episode": torch.tensor(self._episode),
        }
        self._buffer.add(TensorDict(row))

    def extend(self, tick: tuple[Any, ...]) -> None:
        import torch
        from tensordict import TensorDict

        observations, following, actions, rewards, never = map(torch.from_numpy, tick)
        rows = {
            "observation": observations,
            "next": {"observation": following, "reward": rewards, "terminated": never},
            "action": actions,
        }
        self._buffer.extend(TensorDict(rows, batch_size=[len(rewards)]))

    def sample(self, n: int) -> Any:
        return self._buffer.sample(n * (STACK + 1) if self._is_frames else n)

    def plain(self, batch: Any) -> Plain:
        action = batch["action"]
        return Plain(
            batch["observation"].numpy(),
            batch["next", "observation"].numpy(),
            (action if action.ndim == 1 else action[:, 0]).numpy(),
            batch["next", "reward"].numpy(),
            batch["next", "terminated"].numpy(),
        )

    def save(self) -> None:
        self._buffer.dumps(self._saved)

    def __len__(self) -> int:
        return len(self._buffer) - self._ends


def _stacks(slices: Any) -> Any:
    """The two stacks of each slice of five frames, and the step between them."""
    from tensordict import TensorDict

    slices = slices.reshape(-1, STACK + 1)
    pixels, step = slices["pixels"], slices[:, STACK - 1]
    return TensorDict(
        {
            "observation": pixels[:, :-1],
            "action": step["action"],
            "next": {
                "observation": pixels[:, 1:],
                "reward": step["reward"],
                "terminated": step["terminated"],
            },
        },
        batch_size=[len(slices)],
    )


class Flashbax:
    """A trajectory buffer of single frames; compiled functions sample sequences and stack them."""

    promise = Promise(has_final=False, has_cut=False)

    def __init__(self, setup: Setup) -> None:
        import flashbax
        import jax

        self._setup, self._jax = setup, jax
        self._key = jax.random.key(0)
        n = setup.n_envs or 1
        self._length = (STACK if setup.is_frames else 1) + 1
        self._vault: Any = None
        # As the names of the arguments say; n transitions take one frame more for each.
        self._make = lambda batch: flashbax.make_trajectory_buffer(
            add_batch_size=n,
            sample_batch_size=batch,
            sample_sequence_length=self._length,
            period=1,
            min_length_time_axis=self._length,
            max_length_time_axis=setup.capacity // n + 1,
        )
        one = {
            "observation": np.zeros(setup.shape, np.uint8 if setup.is_frames else np.float32),
            "action": np.zeros(() if setup.is_frames else ACTION, np.int32)
            if setup.is_frames
            else np.zeros(ACTION, np.float32),
            "reward": np.zeros((), np.float32),
            "terminated": np.zeros((), np.bool_),
            "first": np.zeros((), np.bool_),
        }
        buffer = self._make(1)
        self._state: Any = buffer.init(jax.tree.map(jax.numpy.asarray, one))
        # Donated: without it each step copies the whole buffer.
        self._add = jax.jit(buffer.add, donate_argnums=0)
        self._samplers: dict[int, Any] = {}
        if (setup.folder / "vaults").exists():
            self._state = self._open().read()

    def _open(self) -> Any:
        from flashbax.vault import Vault

        if self._vault is None:
            self._vault = Vault(
                "buffer", self._state.experience, str(self._setup.folder / "vaults"), "0"
            )
        return self._vault

    def append(self, step: Step) -> None:
        row = {
            "observation": step.frame,
            "action": np.int32(step.action),
            "reward": np.float32(step.reward),
            "terminated": np.bool_(step.terminated),
            "first": np.bool_(step.is_first),
        }
        self._state = self._add(self._state, {name: one[None, None] for name, one in row.items()})

    def extend(self, tick: tuple[Any, ...]) -> None:
        observations, _, actions, rewards, never = tick
        rows = {
            "observation": observations,
            "action": actions,
            "reward": rewards,
            "terminated": never,
            "first": never,
        }
        self._state = self._add(self._state, {name: one[:, None] for name, one in rows.items()})

    def sample(self, n: int) -> Any:
        sample = self._samplers.get(n)
        if sample is None:
            sample = self._samplers[n] = self._jax.jit(self._sampler(n))
        self._key, key = self._jax.random.split(self._key)
        return self._jax.block_until_ready(sample(self._state, key))

    def _sampler(self, n: int) -> Any:
        jnp = self._jax.numpy
        draw, newest = self._make(n).sample, self._length - 2

        def sample(state: Any, key: Any) -> Any:
            rows = draw(state, key).experience
            step = {name: one[:, newest] for name, one in rows.items()}
            frames = rows["observation"]
            if not self._setup.is_frames:
                return {**step, "observation": frames[:, 0], "next_observation": frames[:, 1]}
            at = jnp.arange(STACK + 1)
            # Frames of an episode before are replaced by the first one of the step's own.
            begins = jnp.where(rows["first"][:, :STACK], at[:STACK], 0).max(1)
            at = jnp.maximum(at[None], begins[:, None])
            stacks = jnp.take_along_axis(frames, at[:, :, None, None], axis=1)
            return {**step, "observation": stacks[:, :-1], "next_observation": stacks[:, 1:]}

        return sample

    def plain(self, batch: Any) -> Plain:
        arrays = {name: np.asarray(one) for name, one in batch.items()}
        action = arrays["action"]
        return Plain(
            arrays["observation"],
            arrays["next_observation"],
            action if action.ndim == 1 else action[:, 0],
            arrays["reward"],
            arrays["terminated"],
        )

    def save(self) -> None:
        self._open().write(self._state)

    def __len__(self) -> int:
        state = self._state
        n, length = state.experience["reward"].shape[:2]
        return n * (length - 1 if state.is_full else max(int(state.current_index) - 1, 0))
