"""What keras-gym takes from an environment: the shape of actions, and the number of frames.

Invariant: actions are stored as the environment takes them, and encoded when they are handed out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.schema import Field

Array = npt.NDArray[Any]


class Actions:
    """The actions of a space: of a discrete one, handed out one-hot, or of one of arrays.

    `field` is theirs as they are stored.
    """

    def __init__(self, space: Any) -> None:
        """Look at the space without importing whoever made it."""
        self._n = int(space.n) if hasattr(space, "n") and not getattr(space, "shape", ()) else None
        self._start = int(getattr(space, "start", 0)) if self._n else 0
        self.field = Field((), "int64") if self._n else Field(space.shape, space.dtype)

    def taken(self, action: Any) -> Array:
        """The action as it is stored; SchemaError if it is none of the space."""
        found = self.field.coerce_loosely(action, "a")
        if self._n and not 0 <= found - self._start < self._n:
            raise SchemaError(
                f"a: expected an action in [{self._start}, {self._start + self._n}), found {action}"
            )
        return found

    def none(self) -> Array:
        """What is stored where no action follows."""
        return np.full(self.field.shape, self._start, self.field.dtype)

    def given(self, actions: Array) -> Array:
        """One-hot (B, n) float64 of discrete actions; others as they are."""
        return actions if self._n is None else np.eye(self._n)[actions - self._start]


def num_frames(env: Any) -> int:
    """The attribute of this name of the environment, or of one below its wrappers; else 1."""
    while env is not None:
        if (found := getattr(env, "num_frames", None)) is not None:
            return int(found)
        env = getattr(env, "env", None)
    return 1
