"""What a foreign dataset gives: its fields, and runs of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy.typing as npt

from mmreplay.batches.runs import BLOCK_BYTES, BLOCK_STEPS, Frames, Steps, block_steps
from mmreplay.schema import FRAME, Field

__all__ = ["BLOCK_BYTES", "BLOCK_STEPS", "Frames", "Incoming", "Steps", "block_steps"]


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
