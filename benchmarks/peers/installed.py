"""Replay buffers of others where they stand in the same environment, for the other benchmarks.

That of stable-baselines3 keeps stacks, each frame four times, in RAM; `optimize_memory_usage` saves
it the second copy for the next observation. Those of cpprb keep single frames in RAM.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.experience import Tape

__all__ = [
    "StackedBuffer",
    "compressed",
    "fill_vectors",
    "is_cpprb_installed",
    "is_installed",
    "prioritized_stacks",
    "replay_buffer",
    "tree",
]

NAME = "stable-baselines3 ReplayBuffer"
CPPRB = "cpprb"


def is_installed() -> bool:
    """Whether it can be compared with; says so if not."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        print("stable-baselines3 is not installed: its figures are left out")
        return False
    return True


def replay_buffer(size: int, observation: Any, action: Any, n_envs: int = 1) -> Any:
    """stable-baselines3's for `size` transitions; of one environment each observation once."""
    import torch
    from stable_baselines3.common.buffers import ReplayBuffer

    torch.set_num_threads(1)
    return ReplayBuffer(
        size,
        observation,
        action,
        device="cpu",
        n_envs=n_envs,
        optimize_memory_usage=n_envs == 1,
        handle_timeout_termination=False,
    )


class StackedBuffer:
    """A buffer for `rows` transitions with stacks of the frames of a tape."""

    def __init__(self, tape: Tape, rows: int, stack: int) -> None:
        """An empty one."""
        from gymnasium import spaces

        self._tape, self._stack = tape, stack
        self.rows = min(rows, len(tape) - stack - 1)
        self._buffer = replay_buffer(
            self.rows,
            spaces.Box(0, 255, (stack, *tape.frames.shape[1:]), np.uint8),
            spaces.Discrete(18),
        )

    def fill(self, clock: Any) -> npt.NDArray[np.float64]:
        """Add as many transitions as it holds; returns the seconds of each."""
        tape, stack, buffer = self._tape, self._stack, self._buffer
        actions, rewards = tape.actions.reshape(-1, 1), tape.rewards.reshape(-1, 1)
        ended = tape.non_terminals.reshape(-1, 1) == 0
        frames = tape.frames
        seconds = np.zeros(self.rows)
        infos: list[dict[str, Any]] = [{}]
        for row in range(self.rows):
            observation = frames[None, row : row + stack]
            following = frames[None, row + 1 : row + 1 + stack]
            last = row + stack - 1
            action, reward, done = actions[last], rewards[last], ended[last]
            start = clock()
            buffer.add(observation, following, action, reward, done, infos)
            stop = clock()
            seconds[row] = stop - start
        middle = self.rows // 2
        assert np.array_equal(buffer.observations[middle, 0], frames[middle : middle + stack])
        return seconds

    def sample(self, batch_size: int) -> Any:
        """A batch as torch tensors."""
        return self._buffer.sample(batch_size)


def fill_vectors(
    calls: list[tuple[Any, ...]], observation: int, action: int, n_envs: int
) -> npt.NDArray[np.float64]:
    """Add steps of a vector environment to a new buffer that holds them all; seconds of each.

    `calls` are (observations, next observations, actions, rewards, dones) of each step.
    """
    from gymnasium import spaces

    buffer = replay_buffer(
        len(calls) * n_envs,
        spaces.Box(-np.inf, np.inf, (observation,), np.float32),
        spaces.Box(-1, 1, (action,), np.float32),
        n_envs,
    )
    infos: list[dict[str, Any]] = [{} for _ in range(n_envs)]
    seconds = np.zeros(len(calls))
    for number, (seen, following, actions, rewards, over) in enumerate(calls):
        start = perf_counter()
        buffer.add(seen, following, actions, rewards, over, infos)
        seconds[number] = perf_counter() - start
    assert np.array_equal(buffer.observations[0], calls[0][0])
    return seconds


def is_cpprb_installed() -> bool:
    """Whether it can be compared with; says so if not."""
    try:
        import cpprb  # noqa: F401
    except ImportError:
        print("cpprb is not installed: its figures are left out")
        return False
    return True


def tree(n: int, alpha: float) -> Any:
    """cpprb's prioritized buffer of `n` transitions that hold a flag, with random priorities."""
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(n, {"done": {}}, alpha=alpha)
    buffer.add(done=np.zeros(n), priorities=np.random.default_rng(0).random(n))
    assert buffer.get_stored_size() == n
    return buffer


def compressed(size: int, shape: tuple[int, ...], stack: int, **priorities: Any) -> Any:
    """cpprb's buffer of stacks, each frame kept once; a prioritized one if it is given `alpha`."""
    import cpprb

    kind = cpprb.PrioritizedReplayBuffer if priorities else cpprb.ReplayBuffer
    fields = {
        "obs": {"shape": (*shape, stack), "dtype": np.uint8},
        "act": {"dtype": np.int64},
        "rew": {"dtype": np.float32},
        "done": {"dtype": np.uint8},
    }
    return kind(size, fields, next_of="obs", stack_compress="obs", **priorities)


@contextmanager
def prioritized_stacks(tape: Tape, stack: int, alpha: float) -> Iterator[Any]:
    """cpprb's prioritized buffer of the transitions of a tape, each frame kept once."""
    n, *shape = tape.frames.shape
    buffer = compressed(n, tuple(shape), stack, alpha=alpha)
    frames = np.moveaxis(tape.frames, 0, -1)
    for row in range(stack - 1, n - 1):
        buffer.add(
            obs=frames[..., row - stack + 1 : row + 1],
            act=tape.actions[row],
            rew=tape.rewards[row],
            next_obs=frames[..., row - stack + 2 : row + 2],
            done=tape.non_terminals[row] == 0,
        )
    random = np.random.default_rng(0)
    for start in range(0, buffer.get_stored_size(), 1024):
        stop = min(start + 1024, buffer.get_stored_size())
        buffer.update_priorities(np.arange(start, stop), random.random(stop - start))
    yield buffer
