"""`LazyFrames`: a stack of frames that shares them with the stacks before and after it.

Invariant: a stack reads like `np.asarray(stack)` and holds only its frames; each joined array is a
new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.errors import SchemaError

Array = npt.NDArray[Any]

_IMAGE = 3
"""Axes of (H, W, C); such frames are joined along their channels."""


class LazyFrames:
    """An observation of k frames, which are joined each time it is converted to an array.

    With `stack_axis` 0 it reads as an array of shape (k, *frame), with -1 as (*frame, k), or for
    frames of (H, W, C) as (H, W, k * C) with the oldest frame's channels first; of the frames'
    dtype. Each frame is shared by the k stacks that have it, also by stacks in one pickle.

    ``np.asarray(stack)`` is a new array each time, and ``copy=False`` a ValueError. ``stack[key]``
    equals ``np.asarray(stack)[key]``; with `stack_axis` 0 an integer reads only that frame, as a
    read-only view. ``==`` compares element by element, as arrays do. Stacks are not hashable.

    Args:
        frames: k arrays of one shape and dtype, oldest first. They are shared, not copied: do not
            write to them afterwards.
        stack_axis: 0 or -1.

    Raises:
        SchemaError: no frames, frames that differ in shape or dtype, another `stack_axis`.
    """

    __slots__ = ("_frames", "_stack_axis")  # without room for a joined array

    def __init__(self, frames: Iterable[npt.ArrayLike], stack_axis: int = 0) -> None:
        arrays = tuple(np.asarray(frame) for frame in frames)
        if not arrays:
            raise SchemaError("frames: expected 1 or more, found none")
        kinds = {(frame.shape, frame.dtype) for frame in arrays}
        if len(kinds) > 1:
            found = sorted((shape, str(dtype)) for shape, dtype in kinds)
            raise SchemaError(f"frames: expected one shape and dtype, found {found}")
        if stack_axis not in (0, -1):
            raise SchemaError(f"stack_axis: expected 0 or -1, found {stack_axis!r}")
        self._frames: tuple[Array, ...] = arrays
        self._stack_axis = stack_axis

    @classmethod
    def first(
        cls, frame: npt.ArrayLike, stack: int = 4, *, stack_axis: int = 0, padding: str = "reset"
    ) -> Self:
        """The stack at the start of an episode.

        Args:
            frame: the episode's first one; copied.
            stack: k, frames per observation.
            stack_axis: 0 or -1.
            padding: ``reset`` repeats the frame in front of itself, ``zero`` pads with 0.

        Raises:
            SchemaError: a `stack`, `stack_axis` or `padding` out of its range.
        """
        k = whole_number("stack", stack)
        if padding not in ("reset", "zero"):
            raise SchemaError(f"padding: expected 'reset' or 'zero', found {padding!r}")
        pad = newest = _frozen(frame)
        if padding == "zero":
            pad = np.broadcast_to(np.zeros((), newest.dtype), newest.shape)  # takes no memory
        return cls((*([pad] * (k - 1)), newest), stack_axis)

    def followed_by(self, frame: npt.ArrayLike) -> Self:
        """The stack one step later: without the oldest frame, and with a copy of this newest one.

        Raises:
            SchemaError: a frame of another shape or dtype.
        """
        return type(self)((*self._frames[1:], _frozen(frame)), self._stack_axis)

    @property
    def stack_axis(self) -> int:
        """Where the frames lie: 0 in front, -1 last."""
        return self._stack_axis

    def count(self) -> int:
        """Frames in the stack, k."""
        return len(self._frames)

    def frame(self, i: int) -> Array:
        """Frame i, read-only and shared: 0 is the oldest, -1 the newest.

        Raises:
            IndexError: there is no such frame.
        """
        return _read_only(self._frames[i])

    def is_first(self) -> bool:
        """Whether all frames before the newest are padding, as at the start of an episode."""
        *before, newest = self._frames
        return (
            all(frame is newest for frame in before)
            or all(frame.tobytes() == newest.tobytes() for frame in before)
            or not any(frame.any() for frame in before)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the joined array."""
        frame_shape, k = self._frames[0].shape, len(self._frames)
        return (k, *frame_shape) if self._stack_axis == 0 else joined_shape(k, frame_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the frames."""
        return self._frames[0].dtype

    @property
    def ndim(self) -> int:
        """Axes of the joined array."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements of the joined array."""
        return len(self._frames) * self._frames[0].size

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """The frames joined, in an array of the caller's own.

        Raises:
            ValueError: ``copy=False``.
        """
        if copy is False:
            raise ValueError(
                "LazyFrames cannot become an array without a copy, as their frames lie apart; "
                "leave copy=False out"
            )
        out = np.empty(self.shape, self.dtype if dtype is None else dtype)
        parts = out
        if self._stack_axis == -1:
            parts = parted(out, len(self._frames), self._frames[0].shape)
        for i, frame in enumerate(self._frames):
            parts[i] = frame
        return out

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self)) if self._stack_axis else map(_read_only, self._frames)

    def __getitem__(self, key: Any) -> Any:
        is_number = isinstance(key, (int, np.integer)) and not isinstance(key, bool)
        if is_number and self._stack_axis == 0:
            return _read_only(self._frames[key])[()]  # a number, of a frame without axes
        return np.asarray(self)[key]

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == other

    def __ne__(self, other: object) -> Any:
        return np.asarray(self) != other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._frames, self._stack_axis)

    def __repr__(self) -> str:
        frame = self._frames[0]
        return (
            f"<mmreplay.LazyFrames of {len(self._frames)} frames {frame.shape} {frame.dtype} "
            f"stack_axis={self._stack_axis}>"
        )


def joined_shape(k: int, frame: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of k frames with the stack axis last; the channels of images are joined."""
    return (*frame[:2], k * frame[2]) if len(frame) == _IMAGE else (*frame, k)


def parted(joined: Array, k: int, frame: tuple[int, ...]) -> Array:
    """A view as (..., k, *frame) of what has `joined_shape` behind any axes, to fill it."""
    n_before = joined.ndim - len(joined_shape(k, frame))
    if len(frame) == _IMAGE:
        joined = joined.reshape(*joined.shape[:-1], k, frame[2])
    return np.moveaxis(joined, -2 if len(frame) == _IMAGE else -1, n_before)


def _frozen(frame: npt.ArrayLike) -> Array:
    """A read-only copy, as an environment may reuse its array."""
    out = np.array(frame)
    out.flags.writeable = False
    return out


def _read_only(frame: Array) -> Array:
    """The frame if it is read-only, else a read-only view."""
    if frame.flags.writeable:
        frame = frame.view()
        frame.flags.writeable = False
    return frame
