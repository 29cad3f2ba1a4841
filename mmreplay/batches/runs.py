"""Runs: consecutive steps of one episode, as they pass from a store or a file to a writer.

Invariant: a run of n steps has n + 1 observations, those before its steps and the one after the
last, so it can be written without its neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array

__all__ = ["BLOCK_BYTES", "BLOCK_STEPS", "Steps", "StoredRows", "block_steps"]

BLOCK_BYTES = 4 << 20
BLOCK_STEPS = 8192
"""Most bytes and steps that are read at a time."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """Rows of a store that are read when they are needed, and decoded where they are needed."""

    read: Callable[..., list[Array]]  # (start, stop, out=) of `LiveLanes.episode_rows`
    start: int
    stop: int

    def __getitem__(self, rows: slice) -> Array:
        return self.take(*rows.indices(self.stop - self.start)[:2])

    def take(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Some of the rows, in `out` if it is given."""
        return self.read(self.start + start, self.start + stop, out=out)[0]


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
        episode: fields of the episode by name, as `reset` takes them, where `begins`.
    """

    observation: Mapping[str, Array | StoredRows]
    action: Array
    reward: Array
    terminal: npt.NDArray[np.bool_]
    extras: dict[str, Array]
    begins: bool
    ends: bool
    episode: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)


def block_steps(row_bytes: int) -> int:
    """The number of steps to read at a time."""
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(row_bytes, 1)))
