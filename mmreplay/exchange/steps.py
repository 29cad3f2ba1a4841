"""What passes between a store and a foreign format: runs of consecutive steps of one episode.

Invariant: a run of n steps has n + 1 observations, those before its steps and the one after the
last, so that nothing has to look at the run before or after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field

__all__ = ["BLOCK_BYTES", "BLOCK_STEPS", "Frames", "Incoming", "Steps", "block_steps"]

BLOCK_BYTES = 4 << 20
BLOCK_STEPS = 8192
"""Most that is read and kept at a time."""

Frames = dict[str, Array]
"""Observations by key, (n, *frame) each; the sole one under `FRAME`."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Consecutive steps of one episode.

    Attributes:
        observation: (n + 1, *frame) by key: before each step, and after the last.
        action: (n, *action).
        reward: (n,).
        terminal: (n,) bool: the world ended with this step, or a life was lost.
        extras: (n, ...) by name.
        begins: the first of them is the first of its episode.
        ends: the last of them is the last of its episode: terminated if it is terminal, else
            truncated.
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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """An opened foreign dataset.

    Attributes:
        frame: the field of an observation, or a dict of them.
        action: the field of an action.
        reward_dtype: float32 or float64.
        extras: further fields by name.
        metadata: what JSON holds of all else, for the store's metadata.
        steps: all steps, in order; read as they are asked for.
        n_steps: about how many, for a progress bar; 0 if nobody knows before.
    """

    frame: Field | Mapping[str, Field]
    action: Field
    reward_dtype: npt.DTypeLike
    extras: Mapping[str, Field]
    metadata: Mapping[str, Any]
    steps: Iterable[Steps]
    n_steps: int = 0


def block_steps(row_bytes: int) -> int:
    """As many steps as are read at a time."""
    return max(1, min(BLOCK_STEPS, BLOCK_BYTES // max(row_bytes, 1)))


def frame_dict(frames: Field | Mapping[str, Field]) -> dict[str, Field]:
    """Fields of frames by key, the sole one under `FRAME`."""
    return {FRAME: frames} if isinstance(frames, Field) else dict(frames)


def pieces_of(steps: Steps, most: int) -> Iterator[Steps]:
    """The same steps in runs of at most `most`."""
    if len(steps) <= most:
        yield steps
        return
    for start in range(0, len(steps), most):
        stop = min(start + most, len(steps))
        part = slice(start, stop)
        yield Steps(
            {key: rows[start : stop + 1] for key, rows in steps.observation.items()},
            steps.action[part],
            steps.reward[part],
            steps.terminal[part],
            {key: rows[part] for key, rows in steps.extras.items()},
            steps.begins and start == 0,
            steps.ends and stop == len(steps),
        )
