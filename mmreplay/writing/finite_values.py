"""Whether what is given to a writer is finite: the check of a store made with ``finite=True``.

Invariant: nothing is changed, and what does not fit its field for another reason is left to whoever
stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Schema

__all__ = ["FiniteValues"]

_LIMITS = {"float32": (2 - 2**-24) * 2.0**127, "float64": np.inf}
"""From here on a number becomes infinite when it is rounded to a reward."""

Mask = npt.NDArray[np.bool_]


class FiniteValues:
    """Looks at the float fields of what is given to a writer.

    Args:
        schema: what a row holds.
        path: of the store, for messages.
        many: whether values are given for many environments at once, which lie along their first
            axis.
    """

    def __init__(self, schema: Schema, path: object, *, many: bool) -> None:
        self._path, self._many = Path(str(path)), many
        self._limit = _LIMITS[schema.reward_dtype.name]
        self._is_dict = schema.is_dict
        self._frames = [key for key, one in schema.frames.items() if one.dtype.kind == "f"]
        self._has_float_action = schema.action.dtype.kind == "f"
        self._extras = [name for name, one in schema.extras.items() if one.dtype.kind == "f"]

    def check_frames(self, frames: Any, chosen: Mask | None = None) -> None:
        """Raise SchemaError of a frame, or one of the `chosen` environments, that is not finite."""
        plural = "s" * self._many
        for key in self._frames:
            if not self._is_dict:
                self._check(f"{FRAME}{plural}", frames, chosen)
            elif isinstance(frames, Mapping) and key in frames:
                self._check(f"{FRAME}{plural}[{key!r}]", frames[key], chosen)

    def check_step(
        self,
        action: Any,
        reward: Any,
        frames: Any,
        extras: Mapping[str, Any],
        chosen: Mask | None = None,
    ) -> None:
        """The same of all that a step gives."""
        plural = "s" * self._many
        self._check(f"reward{plural}", reward, chosen, self._limit)
        self.check_frames(frames, chosen)
        if self._has_float_action:
            self._check(f"action{plural}", action, chosen)
        for name in self._extras:
            self._check(name, extras.get(name, 0.0), chosen)

    def _check(
        self, name: str, given: Any, chosen: Mask | None, limit: float | None = None
    ) -> None:
        values = _numbers(given)
        if values is None or (self._many and not values.ndim):
            return
        odd = ~(np.isfinite(values) if limit is None else np.abs(values.astype("f8")) < limit)
        if chosen is not None and odd.ndim and len(odd) == len(chosen):
            odd[~chosen] = False
        if not odd.any():
            return
        place = tuple(np.argwhere(odd)[0].tolist())
        value, where = values[place], ""
        if self._many:
            where, place = f" of environment {place[0]}", place[1:]
        at = f", at {list(place)}" if place else ""
        beyond = ", infinite as a float32" if np.isfinite(value) else ""
        raise SchemaError(
            f"{self._path}: {name}{where}: expected finite numbers, found {value}{beyond}{at}; the "
            f"store was made with finite=True, and nothing of this call is stored: mend what gives "
            f"it, or choose another path without finite=True"
        )


def _numbers(given: Any) -> npt.NDArray[Any] | None:
    """What was given, as floats; None if there is none among them, or nobody can tell."""
    if isinstance(given, LazyFrames):
        given = given.frame(-1)
    elif isinstance(given, (list, tuple)) and any(isinstance(one, LazyFrames) for one in given):
        given = [one.frame(-1) if isinstance(one, LazyFrames) else one for one in given]
    try:
        if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
            # Python makes NaN of a masked number, and an array has anything under its mask.
            given = np.ma.filled(given.astype(np.float64), np.nan)
        values = np.asarray(given)
        if values.dtype.kind == "O":  # such as a Decimal, of which a reward may be made
            values = np.array([float(one) for one in values.flat]).reshape(values.shape)
    except (ValueError, TypeError, OverflowError):
        return None
    return values if values.dtype.kind == "f" else None
