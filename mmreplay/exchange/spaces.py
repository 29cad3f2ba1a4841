"""Gymnasium spaces as Minari's JSON: their arrays, and spaces for a store's fields.

Invariant: Gymnasium is not needed; importing and exporting a space gives the same JSON.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.fields import key_name
from mmreplay.exchange.losses import Losses
from mmreplay.schema import FRAME, Field

_MOST_BYTES = 64 << 20
_ARRAYS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
_IMAGE_NDIM, _IMAGE_SIDE, _WHITE = (2, 3), 32, 255


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An array of a space: its field, the path to it, and whether Minari may keep it as JPEG."""

    name: str
    path: tuple[str | int, ...]
    kind: str
    dtype: str
    shape: tuple[int, ...]
    is_image: bool


def leaves(space: Mapping[str, Any]) -> list[Leaf]:
    """The arrays of a space, the sole one named `FRAME`; other values, as texts, are left out."""
    out = [_leaf(one, path) for path, one in _walk(space, ()) if one["type"] in _ARRAYS]
    if len({one.name for one in out}) < len(out):
        raise FormatError(f"two parts of a space have one name: {[one.name for one in out]}")
    return out


def _walk(space: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[tuple[Any, Any]]:
    if space["type"] == "Dict":
        for key, one in space["subspaces"].items():
            yield from _walk(one, (*path, key))
    elif space["type"] == "Tuple":
        for number, one in enumerate(space["subspaces"]):
            yield from _walk(one, (*path, number))
    else:
        yield path, space


def _leaf(space: Mapping[str, Any], path: tuple[str | int, ...]) -> Leaf:
    kind, is_image = space["type"], False
    if kind == "Box":
        shape = tuple(space["shape"])
        is_image = len(shape) in _IMAGE_NDIM and space["dtype"] == "uint8"
        is_image = is_image and min(shape[:2]) >= _IMAGE_SIDE
        is_image = is_image and _constant(space["low"]) == 0 and _constant(space["high"]) == _WHITE
    elif kind == "Discrete":
        shape = ()
    elif kind == "MultiDiscrete":
        shape = np.shape(space["nvec"])
    else:
        shape = tuple(space["n"]) if isinstance(space["n"], list) else (space["n"],)
    return Leaf(leaf_name(path), path, kind, space.get("dtype", "int8"), shape, is_image)


def names_of(space: Mapping[str, Any]) -> set[str]:
    """The fields of all parts of a space, texts too."""
    return {leaf_name(path) for path, _ in _walk(space, ())}


def leaf_name(path: tuple[str | int, ...]) -> str:
    """The field of the array at this path of a space."""
    return key_name("/".join(map(str, path))) if path else FRAME


def _constant(values: Any) -> Any:
    """The number that all values equal; None if they differ."""
    array = np.asarray(values)
    return array.flat[0].item() if array.size and (array == array.flat[0]).all() else None


def compacted(space: Mapping[str, Any]) -> str:
    """The same space as a short text: images have thousands of bounds, and JSON no infinity."""
    return base64.b64encode(zlib.compress(json.dumps(space).encode())).decode()


def expanded(text: str) -> dict[str, Any] | None:
    """The space that `compacted` was given; None for another text."""
    try:
        packed = base64.b64decode(text)
        out = json.loads(zlib.decompressobj().decompress(packed, _MOST_BYTES))
    except (ValueError, zlib.error):
        return None
    return out if isinstance(out, dict) else None


def recorded(text: object, fields: Mapping[str, Field]) -> dict[str, Any] | None:
    """The space that was recorded with a store, all bounds filled in; None unless it fits."""
    if not isinstance(text, str):
        return None
    try:
        space: dict[str, Any] = json.loads(text)
        found = {one.name: (one.shape, one.dtype) for one in leaves(space)}
    except (FormatError, LookupError, TypeError, ValueError, RecursionError):  # anyone's own text
        return None
    if found != {key: (one.shape, one.dtype.name) for key, one in fields.items()}:
        return None
    for _, one in _walk(space, ()):
        for name in ("low", "high") if one["type"] == "Box" else ():
            if not isinstance(one[name], list):
                one[name] = np.full(one["shape"], one[name]).tolist()
    return space


def space_of_actions(
    low: int, high: int, dtype: np.dtype[Any], about: Mapping[str, Any], losses: Losses
) -> dict[str, Any]:
    """The Discrete space of the environment's actions, or of those from `low` to `high`."""
    start, n = about.get("action_start", 0), about.get("n_actions")
    if type(start) is type(n) is int and n > 0:
        first, last = min(low, start), max(high, start + n - 1)
        why = f"the environment has {n:,}, but others occur"
        is_known = (first, last) == (start, start + n - 1)
    else:
        first, last = min(low, 0), high
        why, is_known = "not recorded in this store", False
    most = np.iinfo(np.int64).max
    if last > most or last - first >= most:
        raise SchemaError(
            f"minari: actions: expected integers that a Discrete space holds, int64 and fewer "
            f"than 2**63 of them, found {dtype} from {first} to {last}; export to arrays or "
            f"parquet instead"
        )
    space = {"type": "Discrete", "dtype": "int64", "start": first, "n": last - first + 1}
    if not is_known:
        losses.add(
            f"the number of actions: {why}; exported as the actions that occur, "
            f"n={space['n']:,} from {first:,} on"
        )
    return space


def space_of(field: Field) -> dict[str, Any]:
    """A Box of all values of a field."""
    kind = field.dtype.kind
    if kind == "f":
        bounds: tuple[Any, Any] = -math.inf, math.inf
    elif kind == "b":
        bounds = 0, 1
    else:
        bounds = int(np.iinfo(field.dtype).min), int(np.iinfo(field.dtype).max)
    return {
        "type": "Box",
        "dtype": field.dtype.name,
        "shape": list(field.shape),
        "low": np.full(field.shape, bounds[0]).tolist(),
        "high": np.full(field.shape, bounds[1]).tolist(),
    }


def spaces_of(frames: Mapping[str, Field]) -> dict[str, Any]:
    """The space of observations of these fields by key."""
    if list(frames) == [FRAME]:
        return space_of(frames[FRAME])
    return {"type": "Dict", "subspaces": {key: space_of(one) for key, one in frames.items()}}
