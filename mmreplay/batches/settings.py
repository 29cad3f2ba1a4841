"""`Settings`: how transitions are rebuilt."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from mmreplay.arguments import whole_number, whole_number_or_none
from mmreplay.errors import SchemaError
from mmreplay.format.layout import MAX_STACK

MAX_N_STEP = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How transitions are rebuilt.

    Args:
        stack: frames an observation; None for one frame without an axis of its own.
        n_step: most steps of a return, at most 65,536: each takes memory for each transition.
        gamma: discount a step, in [0, 1].
        padding: ``reset`` repeats an episode's first frame in front of it, ``zero`` pads with 0.
        stack_axis: 0 puts the frames in front, -1 last.
        clip_reward: (low, high), to which each reward is clipped before it goes into a return;
            None takes them as they are.

    Raises:
        SchemaError: a value out of its range.
    """

    stack: int | None = None
    n_step: int = 1
    gamma: float = 0.99
    padding: str = "reset"
    stack_axis: int = 0
    clip_reward: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        gamma: Any = self.gamma
        padding, stack_axis = self.padding, self.stack_axis
        object.__setattr__(self, "stack", whole_number_or_none("stack", self.stack))
        object.__setattr__(self, "n_step", whole_number("n_step", self.n_step, 1, MAX_N_STEP))
        if not isinstance(gamma, (int, float, np.number)) or not 0 <= gamma <= 1:
            raise SchemaError(f"gamma: expected a number in [0, 1], found {gamma!r}")
        if padding not in ("reset", "zero"):
            raise SchemaError(f"padding: expected 'reset' or 'zero', found {padding!r}")
        if stack_axis not in (0, -1):
            raise SchemaError(f"stack_axis: expected 0 or -1, found {stack_axis!r}")
        if self.clip_reward is not None:
            object.__setattr__(self, "clip_reward", _checked_bounds(self.clip_reward))

    def check_evicting(self, *, evicts: bool) -> None:
        """Raise SchemaError for a stack longer than the context kept by a capacity."""
        if evicts and self.stack is not None and self.stack > MAX_STACK:
            raise SchemaError(
                f"stack: expected at most {MAX_STACK} where a capacity evicts rows, found "
                f"{self.stack}; older frames are not kept"
            )


def _checked_bounds(given: Any) -> tuple[float, float]:
    bounds = np.array(given) if isinstance(given, (tuple, list)) else np.empty(0)
    if bounds.shape != (2,) or bounds.dtype.kind not in "iuf" or not bounds[0] < bounds[1]:
        raise SchemaError(
            f"clip_reward: expected (low, high), numbers with low < high, or None; found {given!r}"
        )
    return float(bounds[0]), float(bounds[1])
