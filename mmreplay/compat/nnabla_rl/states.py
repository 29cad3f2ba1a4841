"""Converts states to frames and back: whole states, and those of Atari games.

Invariant: a state comes back as it was appended; of Atari games as pixels divided by 255.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Field

Frames = Array | dict[str, Array]


class States:
    """Arrays or tuples of arrays, stored as they are."""

    stack: int | None = None

    def frame(self, state: Any) -> Frames:
        """The newest frame of a state, or the parts of a tuple by number."""
        if isinstance(state, tuple):
            return {str(number): np.asarray(part) for number, part in enumerate(state)}
        return np.asarray(state)

    def check(self, state: Any, following: Any, *, begins: bool) -> None:
        """Raise SchemaError if the two cannot be rebuilt from frames; `begins` an episode."""

    def field(self, frame: Frames) -> Any:
        """The field for frames like this one, or fields."""
        if isinstance(frame, dict):
            return {key: Field(part.shape, part.dtype) for key, part in frame.items()}
        return Field(frame.shape, frame.dtype)

    def states(self, observation: Frames) -> list[Any]:
        """(B, ...) observations as B states."""
        if isinstance(observation, dict):
            parts = [observation[str(number)] for number in range(len(observation))]
            return list(zip(*parts, strict=True))
        return list(observation)


_IMAGE = 2


class AtariStates(States):
    """Stacks of `stack` screens, or single ones; floats in [0, 1] or bytes, stored as bytes."""

    def __init__(self, stack: int) -> None:
        self.stack: int | None = stack

    def frame(self, state: Any) -> Frames:
        """See `States`."""
        screens = np.asarray(state)
        if screens.dtype != np.uint8 and screens.dtype.kind != "f":
            raise SchemaError(
                f"state: expected floats in [0, 1] or uint8, found {screens.dtype}; convert it"
            )
        if screens.ndim not in (_IMAGE, _IMAGE + 1) or not screens.size:
            raise SchemaError(
                f"state: expected one screen (84, 84) or a stack of them (4, 84, 84), found "
                f"{screens.shape}"
            )
        newest: Array = screens if screens.ndim == _IMAGE else screens[-1]
        return newest

    def check(self, state: Any, following: Any, *, begins: bool) -> None:
        """See `States`."""
        before, after = np.asarray(state), np.asarray(following)
        if before.ndim == _IMAGE and after.ndim == _IMAGE:
            return
        if before.shape != after.shape or before.dtype != after.dtype:
            raise SchemaError(
                f"state: expected s and s_next of one shape and dtype, found {before.shape} "
                f"{before.dtype} and {after.shape} {after.dtype}"
            )
        if not np.array_equal(before[1:], after[:-1]):
            raise SchemaError(
                "s_next: expected the stack of s without its oldest screen and with a new one, "
                "found other screens"
            )
        shown = before[-(self.stack or 1) :]
        if begins and (shown != shown[:1]).any():
            raise SchemaError(
                "s: a state that is not the previous s_next begins an episode, whose first stack "
                "is one screen repeated; found different screens. Append the steps of an episode "
                "in order"
            )

    def field(self, frame: Frames) -> Any:
        """See `States`."""
        return Field(np.asarray(frame).shape, "uint8")

    def states(self, observation: Frames) -> list[Any]:
        """See `States`: (B, k, H, W) bytes as float32 in [0, 1]."""
        return list(np.divide(np.asarray(observation), np.float32(255), dtype=np.float32))
