"""Runs: consecutive rows, as they pass from a store or a file to a lane that is made of them.

Invariant: a run of n steps has n + 1 observations, those before its steps and the one after the
last, so it can be written without its neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mmreplay.ids import Array, Ids

__all__ = ["BLOCK_BYTES", "BLOCK_STEPS", "Run", "block_steps"]

BLOCK_BYTES = 4 << 20
BLOCK_STEPS = 8192
"""Most bytes and steps that are read at a time."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Consecutive steps of one episode, or of several that follow one another.

    Attributes:
        frames: (n + 1, *frame) by path: before each step, and after the last. For a lane that is
            made of `StoredFrames` their ids, (n + 1,).
        columns: (n, ...) by path: actions, rewards, non_terminals and extras.
        begins: the first step is the first of its episode.
        fields: of the k episodes that begin, (k, ...) by name, as `reset` takes one of them.
        lasts: (m,) the steps that end an episode: truncated unless non_terminals is 0.
        finals: (m, *frame) by path: the observations after these; or ids, (m,).
    """

    frames: Mapping[str, Array]
    columns: Mapping[str, Array]
    begins: bool
    fields: Mapping[str, Any]
    lasts: Ids
    finals: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["rewards"])


def block_steps(row_bytes: int) -> int:
    """The number of steps to read at a time."""
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(row_bytes, 1)))
