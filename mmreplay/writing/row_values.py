"""The values of a row, of one environment or of many: arrays that fit their fields.

Invariant: a value that does not fit its field is refused, with its name, and nothing is written.
A stack that does not continue from the newest row is refused, so that the stacks that are rebuilt
from the rows are those that were given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Field, Schema, as_array

_OF_NO_ARRAY = np.dtype("V1")
_ALONE = "observation.frame(-1)"


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


class Overlap:
    """The stacks given for one environment: the newest frame is stored, the others are compared."""

    def __init__(self, stored_frame: Callable[[str, int], Array]) -> None:
        self._stored_frame = stored_frame  # of (path, row), the newest one
        # The newest frame of the last stack of each column, and the row that it was given for: the
        # next stack mostly has the same array before its newest one, so no bytes are compared.
        self._given: dict[str, tuple[int, Array]] = {}

    def frame(
        self, stack: Any, field: Field, path: str, name: str, row: int, *, begins: bool
    ) -> Array:
        """(*frame) to store in a row of a column: the newest one of `LazyFrames`."""
        if not isinstance(stack, LazyFrames):
            return field.coerce(stack, name)
        newest = stack.frame(-1)
        if newest.shape != field.shape:
            raise SchemaError(
                f"{name}: expected shape {field.shape}, found LazyFrames of {stack.count()} frames "
                f"of shape {newest.shape}; only the newest one is stored: declare the field as one "
                f"frame, mmreplay.Field({newest.shape}, {newest.dtype.name!r}), and choose stack= "
                f"when sampling"
            )
        if begins and not stack.is_first():
            raise SchemaError(
                f"{name}: reset() takes an episode's first observation, whose earlier frames are "
                f"padding, found LazyFrames from the middle of an episode; call env.reset() "
                f"first, or, to begin here, pass the newest frame alone, {_ALONE}"
            )
        if not begins and stack.count() > 1:
            before = stack.frame(-2)
            last, given = self._given.get(path, (-1, None))
            # By bytes, so that a NaN equals itself.
            if (before is not given or last != row - 1) and (
                field.coerce(before, name).tobytes() != self._stored_frame(path, row - 1).tobytes()
            ):
                raise SchemaError(
                    f"{name}: LazyFrames that do not go on from the observation of step "
                    f"{row - 1:,}: their second newest frame differs. Call reset() after each "
                    f"env.reset(), give every observation that the frame-stacking wrapper returns, "
                    f"and put wrappers that skip or repeat steps below it; or pass the newest "
                    f"frame alone, {_ALONE}"
                )
        self._given[path] = (row, newest)
        return field.coerce(newest, name)


class RowValues:
    """What is given to the writer of one lane; `stored_frame(path, row)` gives its newest frame."""

    def __init__(self, schema: Schema, stored_frame: Callable[[str, int], Array]) -> None:
        self._schema, self._frames = schema, schema.frames
        self._extra_fields, self._extra_paths = schema.extra_fields, schema.extra_paths
        self._overlap = Overlap(stored_frame)
        # A float that is too large becomes inf without a word, unless the field looks at it.
        dtype = schema.action.dtype
        self._most = float(np.finfo(dtype).max) if dtype.kind == "f" else -1.0
        self._action_dtype = checked_dtype(dtype)

    def frames(self, frame: Any, row: int, *, begins: bool) -> dict[str, Array]:
        """Frames for a row by the path of their column; of `LazyFrames` the newest one."""
        newest, fields = self._overlap.frame, self._frames
        if not self._schema.is_dict:
            return {"frames": newest(frame, fields[FRAME], "frames", FRAME, row, begins=begins)}
        if not isinstance(frame, Mapping) or frame.keys() != fields.keys():
            raise wrong_keys("frame", fields, frame)
        return {
            path: newest(frame[key], fields[key], path, f"frame[{key!r}]", row, begins=begins)
            for key, path in self._schema.frame_paths.items()
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
        """Extra values by the path of their column: all extras, and the derived ones given."""
        if extras.keys() != self._schema.extras.keys():
            extras = completed(self._schema, extras)
        return {
            self._extra_paths[name]: self._extra_fields[name].coerce_loosely(value, name)
            for name, value in extras.items()
        }


class VectorValues:
    """What is given to a writer of `n` environments."""

    def __init__(self, schema: Schema, n: int) -> None:
        self._schema, self._n = schema, n
        self._paths = schema.frame_paths
        self._extra_fields, self._extra_paths = schema.extra_fields, schema.extra_paths
        self._action = Field((n, *schema.action.shape), schema.action.dtype)

    def frames(self, frames: Any, newest: Callable[[Any, str, Field], Any]) -> dict[str, Any]:
        """(n, *frame) by path; `newest` is called where `LazyFrames` are given."""
        fields = self._schema.frames
        if not self._schema.is_dict:
            return {"frames": self._of_all(frames, fields[FRAME], "frames", "frames", newest)}
        if not isinstance(frames, Mapping) or frames.keys() != fields.keys():
            raise wrong_keys("frames", fields, frames)
        return {
            path: self._of_all(frames[key], fields[key], key, path, newest)
            for key, path in self._paths.items()
        }

    def _of_all(
        self,
        frames: Any,
        field: Field,
        name: str,
        path: str,
        newest: Callable[[Any, str, Field], Any],
    ) -> Any:
        if not isinstance(frames, (list, tuple)) or not any(
            isinstance(frame, LazyFrames) for frame in frames
        ):
            return field.coerce_many(frames, self._n, name)
        if len(frames) != self._n:
            raise self._unfit(name, (len(frames),))
        return newest(frames, path, field)

    def actions(self, actions: Any) -> Array:
        """(n, *action)."""
        whole = as_array(actions, "actions")
        if whole.shape != self._action.shape:
            raise self._unfit("actions", whole.shape, self._schema.action.shape)
        return self._action.coerce_loosely(whole, "actions")

    def rewards(self, rewards: npt.ArrayLike) -> Array:
        """(n,) of the rewards' dtype; one that is too large for it becomes infinite."""
        # As Python's floats, which are of 64 bits, are stored one at a time: also rounded twice.
        numbers = self.numbers("rewards", rewards).astype(np.float64, copy=False)
        return _rounded(numbers, self._schema.reward_dtype)

    def extras(
        self, extras: Mapping[str, Any], chosen: npt.NDArray[np.bool_] | None
    ) -> dict[str, Array]:
        """(n, ...) by the path of the column; those that are not `chosen` may be anything."""
        if extras.keys() != self._schema.extras.keys():
            extras = completed(self._schema, extras, self._n)
        out = {}
        for name, given in extras.items():
            field, value = self._extra_fields[name], as_array(given, name)
            if value.shape[:1] != (self._n,):
                raise self._unfit(name, value.shape, field.shape)
            n = self._n if chosen is None else int(np.count_nonzero(chosen))
            if n == self._n:
                whole = Field((n, *field.shape), field.dtype).coerce_loosely(value, name)
            else:
                whole = np.zeros((self._n, *field.shape), field.dtype)
                if n:
                    part = Field((n, *field.shape), field.dtype)
                    whole[chosen] = part.coerce_loosely(value[chosen], name)
            out[self._extra_paths[name]] = whole
        return out

    def numbers(self, name: str, value: npt.ArrayLike) -> Array:
        """(n,) numbers or bools."""
        out = as_array(value, name)
        if out.dtype.kind not in "biuf":
            raise SchemaError(f"{name}: expected numbers or bools, found {out.dtype}")
        if out.shape != (self._n,):
            raise self._unfit(name, out.shape)
        return out

    def flags(
        self, name: str, value: npt.ArrayLike, chosen: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """(n,) bools; only among the `chosen` is a NaN refused, which would count as True."""
        numbers = self.numbers(name, value)
        if numbers.dtype.kind == "f":
            odd = np.isnan(numbers)
            if (odd if chosen is None else odd & chosen).any():
                raise SchemaError(f"{name}: expected bools, found NaN")
        # The bytes of a bool array may be any, as those of a view of uint8; stored are 0 and 1.
        out: npt.NDArray[np.bool_]
        out = (numbers.view(np.uint8) if numbers.dtype == np.bool_ else numbers) != 0
        return out

    def _unfit(self, name: str, found: object, each: tuple[int, ...] = ()) -> SchemaError:
        return SchemaError(
            f"{name}: expected one for each of {self._n} environments, shape {(self._n, *each)}, "
            f"found shape {found}"
        )


def completed(schema: Schema, extras: Mapping[str, Any], *lead: int) -> dict[str, Any]:
    """All extras: those that are missing are (*lead, ...) of their fill; and derived ones given."""
    out = {
        name: field.filled(*lead)
        for name, field in schema.extras.items()
        if field.fill is not None and name not in extras
    } | dict(extras)
    if out.keys() - schema.derived.keys() != schema.extras.keys():
        may = f" and, if known, {sorted(schema.derived)}" if schema.derived else ""
        raise SchemaError(
            f"extras: expected {sorted(schema.extras) or 'none'}{may}, found "
            f"{sorted(extras) or 'none'}; declare them at creation (with fill=0 they may be "
            f"missing), and give them with each step or in its info; an episode ends by "
            f"terminated= or truncated="
        )
    return out


def wrong_keys(name: str, fields: Mapping[str, Field], found: object) -> SchemaError:
    """The error for what is not a dict with exactly the keys of these fields."""
    keys = sorted(found) if isinstance(found, Mapping) else type(found).__name__
    advice = ""
    if isinstance(found, tuple) or any("." in key for key in fields):
        advice = "; RecordExperience(env, buffer) names the parts of nested observations and tuples"
    return SchemaError(
        f"{name}: expected a dict with the keys {sorted(fields)}, found {keys}{advice}"
    )


@np.errstate(over="ignore")  # in half the time that it takes as a context
def _rounded(numbers: Array, dtype: npt.DTypeLike) -> Array:
    return numbers.astype(dtype)
