"""What a row holds: the fields of a store, their defaults, and the check of every value.

Invariant: a value that `Field.coerce` returns has exactly the field's shape and dtype, and means
the same as what was given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number_or_none
from mmreplay.errors import SchemaError
from mmreplay.texts import Text

FRAME = "frame"
"""Name of the only frame field, unless observations are dicts."""

USUAL_STACK = 4
"""Frames per stacked observation, unless the caller chooses."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}\Z")
_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}
"""Of numbers: casting from a lower to a higher rank keeps the meaning."""
_STEP_ARGUMENTS = {
    *("self", "action", "actions", "reward", "rewards", "next_frame", "frames"),
    *("terminated", "truncated", "life_lost", "mask"),
}
_OF_BATCH = frozenset(
    "observation next_observation action reward discount non_terminal id weight extras terminated "
    "truncated".split()
)
_MAX_NDIM = 8
_MAX_FRAME_BYTES = 1 << 30

Codec = str | Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Field:
    """Shape, dtype and storage of one column.

    Args:
        shape: the shape of one row, for example ``(84, 84)``; ``()`` for a scalar.
        dtype: any bool, integer or floating dtype, stored little-endian.
        codec: ``"raw"``, ``"lz4"``, ``"zstd"``, a name with a level, as ``"zstd:9"``, or a zarr v3
            codec as a dict; None chooses ``raw`` for floats, and for all else ``lz4`` from 1 KiB
            a row and ``raw`` below. Only frames may be compressed.
        chunk: rows a chunk; of compressed frames, rows an inner chunk.
        shard: rows a shard of compressed frames, a multiple of `chunk`; unused by ``raw``.
        fill: of an extra, the number that is stored in each element where a step has no value;
            None refuses such a step.

    Raises:
        SchemaError: a shape, dtype, codec, chunk, shard or fill that cannot be stored.
    """

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype("uint8"))
    codec: Codec = None
    chunk: int | None = None
    shard: int | None = None
    fill: float | None = None

    def __init__(
        self,
        shape: int | tuple[int, ...] = (),
        dtype: npt.DTypeLike = "uint8",
        codec: Codec = None,
        chunk: int | None = None,
        shard: int | None = None,
        fill: float | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "shape", _checked_shape(shape))
        put(self, "dtype", _checked_dtype(dtype))
        put(self, "codec", _checked_codec(codec))
        put(self, "chunk", whole_number_or_none("chunk", chunk))
        put(self, "shard", whole_number_or_none("shard", shard))
        if fill is not None:
            fill = Field((), self.dtype).coerce_loosely(fill, "fill").item()
        put(self, "fill", fill)
        if self.row_bytes > _MAX_FRAME_BYTES:
            raise SchemaError(
                f"a row of shape {self.shape} and dtype {self.dtype} has {self.row_bytes:,} bytes; "
                f"at most {_MAX_FRAME_BYTES:,} can be stored"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, uncompressed."""
        return math.prod(self.shape) * self.dtype.itemsize

    def same_data(self, other: Field) -> bool:
        """Whether both have the same shape and dtype."""
        return self.shape == other.shape and self.dtype == other.dtype

    def coerce(self, value: object, name: str) -> npt.NDArray[Any]:
        """The value as an array of exactly this shape and dtype; SchemaError if it does not fit.

        Floats in [0, 1] for a uint8 field are multiplied by 255 and rounded; floats for a field of
        other floats are rounded; a Python scalar or sequence is converted if the dtype holds it.
        """
        array = as_array(value, name)
        if array.shape != self.shape:
            advice = "pass one row as it was declared"
            if array.shape[1:] == self.shape:
                advice += "; rows of several environments go to a store with lanes="
            raise SchemaError(f"{name}: expected shape {self.shape}, found {array.shape}; {advice}")
        if array.dtype == self.dtype:
            # The bytes of a bool array may be any, as those of a view of uint8; stored are 0 and 1.
            return array.view(np.uint8) != 0 if array.dtype == np.bool_ else array
        if array.dtype.newbyteorder("=") == self.dtype:
            return array.astype(self.dtype)
        if self.dtype == np.uint8 and array.dtype.kind == "f" and isinstance(value, np.ndarray):
            # Rounded, not truncated: 0.1 * 255 = 25.499999 in float32 must come back as it was.
            if not bool(np.all((array >= 0) & (array <= 1))):
                raise SchemaError(
                    f"{name}: floats for a uint8 field must lie in [0, 1], found "
                    f"{np.min(array)} to {np.max(array)}; scale them, or pass uint8"
                )
            return np.rint(array.astype(np.float64) * 255).astype(np.uint8)
        if (
            isinstance(value, np.ndarray)
            and self.shape
            and array.dtype.kind + self.dtype.kind != "ff"
        ):
            raise SchemaError(
                f"{name}: expected dtype {self.dtype}, found {array.dtype}; "
                f"convert it, or declare the field with that dtype"
            )
        return self._cast(array, name)

    def coerce_many(self, values: object, count: int, name: str) -> npt.NDArray[Any]:
        """(count, *shape): many rows at once, by the rules of `coerce`."""
        array = as_array(values, name)
        if array.shape == (count, *self.shape) and array.dtype == self.dtype != np.bool_:
            return array
        if array.shape == self.shape:
            raise SchemaError(
                f"{name}: expected {count} rows of shape {self.shape}, one for each environment, "
                f"found one row; rows of those that do not step may be anything, with mask="
            )
        return Field((count, *self.shape), self.dtype).coerce(values, name)

    def coerce_loosely(self, value: object, name: str) -> npt.NDArray[Any]:
        """As `coerce`, for actions and extras: arrays of another dtype are cast where exact."""
        array = as_array(value, name)
        if array.shape == self.shape and array.dtype != self.dtype:
            return self._cast(array, name)
        return self.coerce(array, name)

    def coerce_rows(self, values: object, lead: tuple[int, ...], name: str) -> npt.NDArray[Any]:
        """(*lead, *shape): rows of any number, by the rules of `coerce_loosely`."""
        array = as_array(values, name)
        if array.shape != (*lead, *self.shape):
            raise SchemaError(
                f"{name}: expected shape {(*lead, *self.shape)}, found {array.shape}; pass a value "
                f"of shape {self.shape} for each id"
            )
        same = array.dtype == self.dtype != np.bool_
        return array if same or not array.size else self._cast(array, name)

    def _cast(self, array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        if _KINDS.get(array.dtype.kind, 3) <= _KINDS[self.dtype.kind]:
            with np.errstate(over="ignore", invalid="ignore"):
                out = array.astype(self.dtype)
            # Floats may lose digits, as they do in any float32 network, but stay finite; integers
            # may lose nothing.
            if self.dtype.kind == "f":
                exact = bool(np.all(np.isfinite(out) | ~np.isfinite(array)))
            else:
                exact = bool(np.all(out == array))
            if exact:
                return out
        raise SchemaError(
            f"{name}: expected dtype {self.dtype}, found {array.dtype} that it does not hold; "
            f"convert it, or declare the field with that dtype"
        )

    def filled(self, *lead: int) -> npt.NDArray[Any]:
        """(*lead, *shape) of the fill."""
        return np.full((*lead, *self.shape), self.fill, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Shape, dtype and fill for the store's attributes; the arrays' own metadata has the rest.

        A fill that is not finite is a string, as in zarr: JSON has no such numbers.
        """
        fill: float | str | None = self.fill
        if isinstance(fill, float) and not math.isfinite(fill):
            fill = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(fill, "NaN")
        kept = {} if fill is None else {"fill": fill}
        return {"shape": list(self.shape), "dtype": self.dtype.name, **kept}


@dataclass(frozen=True, slots=True)
class Schema:
    """All columns of a lane."""

    frame: Field | dict[str, Field]  # a dict for dict observations
    action: Field
    extras: dict[str, Field]
    reward_dtype: np.dtype[Any]  # float32 or float64
    episode: dict[str, Field | Text] = field(default_factory=dict)  # of each episode
    derived: dict[str, Field] = field(default_factory=dict)  # extras that may change later

    @staticmethod
    def make(
        frame: Field | Mapping[str, Field],
        action: Field,
        extras: Mapping[str, Field] | None = None,
        reward_dtype: npt.DTypeLike = "float32",
        codec: Codec = None,
        *,
        episode: Mapping[str, Field | Text] | None = None,
        derived: Mapping[str, Field] | None = None,
    ) -> Schema:
        """Check what the user gave; `codec` is for frame fields without one. SchemaError."""
        codec = _checked_codec(codec)
        if isinstance(frame, Mapping) and not frame:
            raise SchemaError("frame: a dict observation needs at least one key")
        parts = {
            _checked_name(key, "frame"): _checked_field(column, key)
            for key, column in (frame if isinstance(frame, Mapping) else {FRAME: frame}).items()
        }
        for key, column in parts.items():
            if column.codec is None:
                parts[key] = replace(column, codec=codec)
        frames = parts if isinstance(frame, Mapping) else parts[FRAME]
        reward = _checked_dtype(reward_dtype)
        if reward not in (np.dtype("float32"), np.dtype("float64")):
            raise SchemaError(f"reward_dtype: expected float32 or float64, found {reward}")
        columns, later = (
            {_checked_name(key, what): _checked_field(one, key) for key, one in given.items()}
            for what, given in (("extras", extras or {}), ("derived", derived or {}))
        )
        if clash := _STEP_ARGUMENTS & {*columns, *later}:
            raise SchemaError(f"extras: {sorted(clash)} are arguments of step already; rename them")
        if clash := columns.keys() & later.keys():
            raise SchemaError(f"derived: {sorted(clash)} are extras already; rename them")
        raw = {"action": _checked_field(action, "action"), **columns, **later}
        for name, column in raw.items():
            if column.codec not in (None, "raw"):
                raise SchemaError(
                    f"{name}: only frames are compressed, found codec {column.codec!r}"
                )
        for name, column in {**parts, "action": action, **later}.items():
            if column.fill is not None:
                raise SchemaError(f"{name}: only extras have a fill, found {column.fill}")
        return Schema(frames, action, columns, reward, dict(episode or {}), later)

    @property
    def frames(self) -> dict[str, Field]:
        """The frame fields by key; the sole one under ``frame``."""
        return self.frame if isinstance(self.frame, dict) else {FRAME: self.frame}

    @property
    def is_dict(self) -> bool:
        """Whether an observation is a dict of arrays."""
        return isinstance(self.frame, dict)

    def stacks(
        self, stack: int | EllipsisType | None = ...
    ) -> tuple[int | None, tuple[str, ...] | None]:
        """Frames per observation, and the keys that are stacked, None for all.

        As given, of all; by default 4 of gray images, and no stack of anything else.
        """
        if stack is not ...:
            return stack, None
        axes, frames = 2, self.frames  # axes of a gray image
        gray = [
            key for key, one in frames.items() if one.dtype == np.uint8 and len(one.shape) == axes
        ]
        return (USUAL_STACK if gray else None), None if len(gray) in (0, len(frames)) else (*gray,)

    def same_data(self, other: Schema) -> bool:
        """Whether both have the same columns, however they are stored."""
        return not self.differences(other)

    def differences(self, other: Schema) -> str:
        """The columns in which `other` differs, in words; empty without differences."""
        mine, theirs = self.columns(), other.columns()
        pairs = {path: (theirs.get(path), mine.get(path)) for path in {**mine, **theirs}}
        return ", ".join(
            f"{path} {_in_words(found)} and not {_in_words(expected)}"
            for path, (found, expected) in pairs.items()
            if found is None or expected is None or not found.same_data(expected)
        )

    @property
    def frame_paths(self) -> dict[str, str]:
        """The frame columns' paths in the store, by key."""
        if self.is_dict:
            return {key: f"frames/{key}" for key in self.frames}
        return {FRAME: "frames"}

    @property
    def extra_fields(self) -> dict[str, Field]:
        """The extra columns, derived ones included, by name."""
        return {**self.extras, **self.derived}

    @property
    def extra_paths(self) -> dict[str, str]:
        """The paths in the store of the extra columns, derived ones included, by name."""
        paths = {name: f"extras/{name}" for name in self.extras}
        return paths | {name: f"derived/{name}" for name in self.derived}

    def only(self, names: Collection[str] | None) -> Schema:
        """The same without the extra columns that have none of these names; None: all of them."""
        extras, derived = (
            {name: one for name, one in of.items() if names is None or name in names}
            for of in (self.extras, self.derived)
        )
        return replace(self, extras=extras, derived=derived)

    @property
    def field_paths(self) -> dict[str, str]:
        """The columns' paths by the names of their fields, as ``observation.KEY`` or ``action``."""
        prefix = "observation." if self.is_dict else ""
        frames = self.frame_paths if self.is_dict else {"observation": self.frame_paths[FRAME]}
        own = {f"{prefix}{key}": path for key, path in frames.items()}
        own |= {"action": "actions", "reward": "rewards"}
        return own | self.extra_paths | own  # an extra may be called observation

    def columns(self) -> dict[str, Field]:
        """Every declared column by its path in the store."""
        out = {path: self.frames[key] for key, path in self.frame_paths.items()}
        out["actions"] = self.action
        out["rewards"] = Field((), self.reward_dtype)
        fields = self.extra_fields
        return out | {path: fields[name] for name, path in self.extra_paths.items()}

    def to_json(self) -> dict[str, Any]:
        """As the store's attributes have it."""
        frames, extras, derived, episode = (
            {key: column.to_json() for key, column in of.items()}
            for of in (self.frames, self.extras, self.derived, self.episode)
        )
        return {
            "frame": {"dict": frames} if self.is_dict else frames[FRAME],
            "action": self.action.to_json(),
            "reward": self.reward_dtype.name,
            "extras": extras,
            **({"derived": derived} if derived else {}),
            **({"episode": episode} if episode else {}),
        }


def as_array(value: object, name: str) -> npt.NDArray[Any]:
    """`value` as an array; raises SchemaError if it cannot be made one."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise SchemaError(f"{name}: not an array (reset() takes no info): {error}") from error


def _in_words(field: Field | None) -> str:
    return "none" if field is None else f"{field.shape} {field.dtype}"


def _checked_field(value: object, name: str) -> Field:
    if not isinstance(value, Field):
        raise SchemaError(
            f"{name}: expected an mmreplay.Field, found {type(value).__name__}; "
            f"for example Field((84, 84), 'uint8')"
        )
    return value


def _checked_name(key: object, what: str) -> str:
    if not isinstance(key, str) or not _NAME.match(key) or key == "zarr.json":
        raise SchemaError(
            f"{what}: the name {key!r:.120} cannot be a column's; use up to 100 letters, digits, "
            f"'_', '-' and '.', not starting with '.'"
        )
    is_taken = key in _OF_BATCH or key.startswith(("observation.", "episode."))
    if what == "derived" and (is_taken or key.endswith(".tmp")):
        raise SchemaError(
            f"derived: the name {key!r} is reserved, as are the fields of a batch and what begins "
            f"with 'observation.' or 'episode.' or ends with '.tmp'; rename it"
        )
    return key


def _checked_shape(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else shape
    try:
        out = tuple(int(n) for n in sizes)
        exact = out == tuple(sizes)
    except (TypeError, ValueError) as error:
        raise SchemaError(f"shape: expected a tuple of sizes, found {shape!r}") from error
    if not exact or len(out) > _MAX_NDIM or any(n < 1 for n in out):
        raise SchemaError(
            f"shape: expected at most {_MAX_NDIM} sizes of 1 or more, found {shape!r}"
        )
    return out


def _checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    try:
        out = np.dtype(dtype)
    except TypeError as error:
        raise SchemaError(f"dtype: {dtype!r} is not a numpy dtype") from error
    if out.kind not in _KINDS or out.itemsize > 8:  # noqa: PLR2004 (no zarr v3 name past 64 bits)
        raise SchemaError(
            f"dtype: expected bool, an integer or a float of at most 64 bits, found {out}"
        )
    return out.newbyteorder("=")


def _checked_codec(given: Any) -> Codec:
    if given is None or isinstance(given, (str, Mapping)):
        return given
    raise SchemaError(
        f"codec: expected 'raw', 'lz4', 'zstd', a name with a level, as 'zstd:9', or a zarr "
        f"codec as a dict; found {given!r:.80}"
    )
