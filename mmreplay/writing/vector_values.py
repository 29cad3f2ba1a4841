"""What is given for many environments at once: one array for each column, checked as a whole.

Invariant: an array that does not fit is refused, with its name, before anything of it is stored.
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
from mmreplay.writing.row_values import completed, wrong_keys


class VectorValues:
    """What is given to a writer of `n` environments."""

    def __init__(self, schema: Schema, n: int) -> None:
        self._schema, self._n = schema, n
        self._paths = schema.frame_paths
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
        declared = self._schema.extras
        if extras.keys() != declared.keys():
            extras = completed(declared, extras, self._n)
        out = {}
        for name, field in declared.items():
            value = as_array(extras[name], name)
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
            out[f"extras/{name}"] = whole
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


@np.errstate(over="ignore")  # in half the time that it takes as a context
def _rounded(numbers: Array, dtype: npt.DTypeLike) -> Array:
    return numbers.astype(dtype)
