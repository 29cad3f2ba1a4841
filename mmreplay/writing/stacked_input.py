"""Full stacks given to a writer: the newest frame is taken, the others are compared.

Invariant: a stack that does not go on from the newest row of its lane is refused, so that the
stacks that are rebuilt from the rows are those that were given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import Field

Array = npt.NDArray[Any]


class Overlap:
    """The stacks given for one environment.

    The newest frame is stored, and the one before it must be the newest row: mostly it is the
    array that was given as the newest one in the step before, so no bytes are compared.
    """

    def __init__(self) -> None:
        # The newest frame of the last stack of each column, and the row that it was given for.
        self._given: dict[str, tuple[int, Array]] = {}

    def first(self, stack: LazyFrames, one: Field, path: str, name: str, row: int) -> Array:
        """The newest frame of an episode's first stack, for a row of a column.

        SchemaError: frames of another shape, or a stack from the middle of an episode.
        """
        _check_shape(stack, one, name)
        if not stack.is_first():
            raise SchemaError(
                f"{name}: reset() takes an episode's first observation, whose earlier frames are "
                f"padding, found LazyFrames from the middle of an episode; call env.reset() "
                f"first, or, to begin here, pass the newest frame alone, {_ALONE}"
            )
        return self._keep(stack, path, row)

    def following(
        self,
        stack: LazyFrames,
        one: Field,
        path: str,
        name: str,
        row: int,
        stored: Callable[[str, int], Array],
    ) -> Array:
        """The newest frame of a stack that continues from the newest row.

        `stored(path, row)` gives that. SchemaError: another shape, or it does not continue.
        """
        _check_shape(stack, one, name)
        if stack.count() > 1:
            before = stack.frame(-2)
            last, given = self._given.get(path, (-1, None))
            is_same = before is given and last == row - 1
            # By bytes, so that a NaN equals itself.
            if (
                not is_same
                and one.coerce(before, name).tobytes() != stored(path, row - 1).tobytes()
            ):
                newest = f"the observation of step {row - 1:,}"
                raise SchemaError(
                    f"{name}: LazyFrames that do not go on from {newest}: their second "
                    f"newest frame is another. Call reset() after each "
                    f"env.reset(), give every observation that the frame-stacking wrapper returns, "
                    f"and put wrappers that skip or repeat steps below it; or pass the newest "
                    f"frame alone, {_ALONE}"
                )
        return self._keep(stack, path, row)

    def _keep(self, stack: LazyFrames, path: str, row: int) -> Array:
        newest = stack.frame(-1)
        self._given[path] = (row, newest)
        return newest


_ALONE = "observation.frame(-1)"


def _check_shape(stack: LazyFrames, one: Field, name: str) -> None:
    frame = stack.frame(-1)
    if frame.shape != one.shape:
        raise SchemaError(
            f"{name}: expected shape {one.shape}, found LazyFrames of {stack.count()} frames of "
            f"shape {frame.shape}, of which the newest is stored; declare the field of one frame, "
            f"mmreplay.Field({frame.shape}, {frame.dtype.name!r}), and choose stack= when sampling"
        )
