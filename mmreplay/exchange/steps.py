"""What a foreign dataset gives: its fields, and runs of steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt

from mmreplay.batches.runs import BLOCK_BYTES, Frames, Steps, block_steps
from mmreplay.schema import FRAME, Field

__all__ = ["BLOCK_BYTES", "Frames", "Incoming", "Steps", "block_steps"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Incoming:
    """An opened foreign dataset.

    Attributes:
        frames: the fields of an observation by key, the sole one under `FRAME`.
        action: the field of an action.
        reward_dtype: float32 or float64.
        extras: further fields by name.
        steps: all steps, in order; read as they are asked for.
        metadata: all else, as JSON values, for the store's metadata.
        n_steps: about how many, for a progress bar; 0 if unknown.
    """

    frames: Mapping[str, Field]
    action: Field
    reward_dtype: npt.DTypeLike
    extras: Mapping[str, Field]
    steps: Iterable[Steps]
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    n_steps: int = 0

    @property
    def frame(self) -> Field | Mapping[str, Field]:
        """As `create` takes it."""
        return self.frames[FRAME] if list(self.frames) == [FRAME] else self.frames
