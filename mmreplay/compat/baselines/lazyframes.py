"""`LazyFrames` of OpenAI's baselines: frames joined along their last axis.

Invariant: as with `mmreplay.LazyFrames`, each joined array is a new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.lazy_frames import LazyFrames as Stack

Array = npt.NDArray[Any]


class LazyFrames:
    """Frames (..., c) that read as one array (..., k * c), joined again each time.

    Args:
        frames: k arrays of one shape and dtype, oldest first; shared, not copied.

    Raises:
        SchemaError: no frames, or frames that differ in shape or dtype.

    Attributes:
        stack: the same frames as `mmreplay.LazyFrames`, which a writer takes.
    """

    __slots__ = ("stack",)

    def __init__(self, frames: Iterable[npt.ArrayLike]) -> None:
        self.stack = Stack(frames)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """A fresh array.

        Raises:
            ValueError: ``copy=False``.
        """
        joined: Array = join_last(self.stack.__array__(dtype, copy)[None])[0]
        return joined

    def __len__(self) -> int:
        return len(np.asarray(self))

    def __getitem__(self, i: Any) -> Any:
        return np.asarray(self)[i]

    def count(self) -> int:
        """Length of the last axis: frames, if each has one channel."""
        return int(np.asarray(self).shape[-1])

    def frame(self, i: int) -> Array:
        """Element i of the last axis: frame i without its channel axis, if each has one."""
        return np.asarray(self)[..., i]

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_stack, (self.stack,)


def _from_stack(stack: Stack) -> LazyFrames:
    out = LazyFrames.__new__(LazyFrames)
    out.stack = stack
    return out


def join_last(stacks: Array) -> Array:
    """(B, k, ..., c) as (B, ..., k * c), the oldest frame's channels first."""
    last = np.moveaxis(stacks, 1, -2)
    return last.reshape(*last.shape[:-2], -1)
