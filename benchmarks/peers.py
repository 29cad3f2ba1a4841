"""The replay buffer of stable-baselines3, where it is installed, for comparison.

It keeps stacks, each frame four times, in RAM; `optimize_memory_usage` saves it the second copy for
the next observation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.experience import Tape

__all__ = ["StackedBuffer", "is_installed"]

NAME = "stable-baselines3 ReplayBuffer"


def is_installed() -> bool:
    """Whether it can be compared with; says so if not."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        print("stable-baselines3 is not installed: its figures are left out")
        return False
    return True


class StackedBuffer:
    """A buffer for `rows` transitions with stacks of the frames of a tape."""

    def __init__(self, tape: Tape, rows: int, stack: int) -> None:
        """An empty one."""
        import torch
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        torch.set_num_threads(1)
        self._tape, self._stack = tape, stack
        self.rows = min(rows, len(tape) - stack - 1)
        self._buffer: Any = ReplayBuffer(
            self.rows,
            spaces.Box(0, 255, (stack, *tape.frames.shape[1:]), np.uint8),
            spaces.Discrete(18),
            device="cpu",
            optimize_memory_usage=True,
            handle_timeout_termination=False,
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
