"""The values of a row: given in many forms, returned as arrays that fit their fields.

Invariant: a value that does not fit its field is refused, with its name, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.writing.stacked_input import Overlap

_OF_NO_ARRAY = np.dtype("V1")


def checked_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of arrays that may be stored as they are; one that no array has for bools.

    Bytes of a bool array may be anything: ``Field.coerce`` makes them 0 or 1. Compare with ``is``.
    """
    return _OF_NO_ARRAY if dtype == np.bool_ else np.dtype(dtype.type)


def check_flags(*flags: object) -> None:
    """Raise ValueError if a flag that counts as set is neither a bool nor a number but NaN."""
    for flag in flags:
        if flag and not (isinstance(flag, bool) or _is_number(flag)):
            raise ValueError(f"expected a bool, found {flag!r:.80}")


def _is_number(flag: object) -> bool:
    array = np.asarray(flag)
    # NaN is not itself, and ``[False]`` counts as set only as long as it is a list.
    return array.size == 1 and array.dtype.kind in "biuf" and bool(array == array and array)  # noqa: PLR0124


class RowValues:
    """What is given to the writer of one lane; `stored_frame(path, row)` gives its newest frame."""

    def __init__(self, schema: Schema, stored_frame: Callable[[str, int], Array]) -> None:
        self._schema, self._stored_frame = schema, stored_frame
        self._frames = schema.frames
        self._overlap = Overlap()
        # A float that is too large becomes inf without a word, unless the field looks at it.
        dtype = schema.action.dtype
        self._most = float(np.finfo(dtype).max) if dtype.kind == "f" else -1.0
        self._action_dtype = checked_dtype(dtype)

    def newest_frames(self, frame: Any, row: int, *, begins: bool) -> Any:
        """A frame or a dict of frames for `row`, with the newest frame in place of `LazyFrames`.

        SchemaError: LazyFrames do not continue from the newest row, or `begins` and they do not
        start an episode.
        """
        if not self._schema.is_dict:
            return self._newest(frame, self._frames[FRAME], "frames", FRAME, row, begins)
        if not isinstance(frame, Mapping):
            return frame
        return {
            key: self._newest(
                value, self._frames[key], f"frames/{key}", f"frame[{key!r}]", row, begins
            )
            if key in self._frames
            else value
            for key, value in frame.items()
        }

    def _newest(
        self, frame: Any, field: Field, path: str, name: str, row: int, begins: bool
    ) -> Any:
        if not isinstance(frame, LazyFrames):
            return frame
        if begins:
            return self._overlap.first(frame, field, path, name, row)
        return self._overlap.following(frame, field, path, name, row, self._stored_frame)

    def frames(self, frame: object) -> dict[str, Array]:
        """Frames by the path of their column."""
        if not self._schema.is_dict:
            return {"frames": self._frames[FRAME].coerce(frame, FRAME)}
        if not isinstance(frame, Mapping) or frame.keys() != self._frames.keys():
            raise wrong_keys("frame", self._frames, frame)
        return {
            f"frames/{key}": field.coerce(frame[key], f"frame[{key!r}]")
            for key, field in self._frames.items()
        }

    def action(self, action: object) -> Array | float:
        """An action that fits its field."""
        field, most = self._schema.action, self._most
        if type(action) is float and not field.shape and -most <= action <= most:
            return action  # as most policies give it; the array below takes five times as long
        if (
            type(action) is np.ndarray
            and action.shape == field.shape
            and action.dtype == self._action_dtype
        ):
            return action
        return field.coerce_loosely(action, "action")

    def extras(self, extras: Mapping[str, object]) -> dict[str, Array]:
        """Extra values by the path of their column: all that were declared."""
        declared = self._schema.extras
        if extras.keys() != declared.keys():
            raise SchemaError(
                f"extras: expected {sorted(declared) or 'none'}, found {sorted(extras) or 'none'}; "
                f"declare them when the store is created, and give all of them with each step, or "
                f"to `RecordExperience` in the step's info"
            )
        return {
            f"extras/{name}": declared[name].coerce_loosely(value, name)
            for name, value in extras.items()
        }


def wrong_keys(name: str, fields: Mapping[str, Field], found: object) -> SchemaError:
    """The error for what is not a dict with exactly the keys of these fields."""
    keys = sorted(found) if isinstance(found, Mapping) else type(found).__name__
    is_nested = isinstance(found, tuple) or any("." in key for key in fields)
    advice = (
        "; RecordExperience(env, buffer) names the parts of nested observations and of tuples so"
        if is_nested
        else ""
    )
    return SchemaError(
        f"{name}: expected a dict with the keys {sorted(fields)}, found {keys}{advice}"
    )
