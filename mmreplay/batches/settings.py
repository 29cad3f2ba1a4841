"""`Settings`: how transitions are rebuilt."""

from __future__ import annotations

import dataclasses

from mmreplay.arguments import check_number, low_and_high, whole_number, whole_number_or_none
from mmreplay.errors import SchemaError
from mmreplay.format.layout import MAX_STACK

MAX_N_STEP = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How transitions are rebuilt: the settings of `load`; SchemaError for one out of its range.

    Args:
        stacked: the keys of dict observations that are stacked; None for all.
        episode: the fields of episodes that are among the extras, as ``episode.NAME``.
    """

    stack: int | None = None
    n_step: int = 1
    gamma: float = 0.99
    padding: str = "reset"
    stack_axis: int = 0
    clip_reward: tuple[float, float] | None = None
    stacked: tuple[str, ...] | None = None
    episode: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        padding, stack_axis = self.padding, self.stack_axis
        object.__setattr__(self, "stack", whole_number_or_none("stack", self.stack))
        object.__setattr__(self, "n_step", whole_number("n_step", self.n_step, 1, MAX_N_STEP))
        check_number("gamma", self.gamma, 1)
        if padding not in ("reset", "zero"):
            raise SchemaError(f"padding: expected 'reset' or 'zero', found {padding!r}")
        if stack_axis not in (0, -1):
            raise SchemaError(f"stack_axis: expected 0 or -1, found {stack_axis!r}")
        if self.clip_reward is not None:
            bounds = low_and_high("clip_reward", self.clip_reward)
            object.__setattr__(self, "clip_reward", bounds)

    def check_evicting(self, *, evicts: bool) -> None:
        """Raise SchemaError for a stack longer than the context that a capacity keeps."""
        if evicts and self.stack is not None and self.stack > MAX_STACK:
            raise SchemaError(
                f"stack: expected at most {MAX_STACK} if a capacity evicts rows, found "
                f"{self.stack}; older frames are not kept"
            )
