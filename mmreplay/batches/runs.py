"""Runs: consecutive steps of one episode, as they pass from a store or a file to a writer.

Invariant: a run of n steps has n + 1 observations, those before its steps and the one after the
last, so it can be written without its neighbours.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array

__all__ = ["BLOCK_BYTES", "BLOCK_STEPS", "Frames", "Steps", "block_steps"]

BLOCK_BYTES = 4 << 20
BLOCK_STEPS = 8192
"""Most bytes and steps that are read at a time."""

Frames = dict[str, Array]
"""Observations by key, (n, *frame) each; a single one under `FRAME`."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Consecutive steps of one episode.

    Attributes:
        observation: (n + 1, *frame) by key: before each step, and after the last.
        action: (n, *action).
        reward: (n,).
        terminal: (n,) bool: the episode terminated, or a life was lost.
        extras: (n, ...) by name.
        begins: the first step is the first of its episode.
        ends: the last step is the last of its episode: terminated if terminal, else truncated.
    """

    observation: Frames
    action: Array
    reward: Array
    terminal: npt.NDArray[np.bool_]
    extras: dict[str, Array]
    begins: bool
    ends: bool

    def __len__(self) -> int:
        return len(self.reward)


def block_steps(row_bytes: int) -> int:
    """The number of steps to read at a time."""
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(row_bytes, 1)))
