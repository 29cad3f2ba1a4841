"""Gymnasium spaces as the JSON that Minari writes: their arrays, and spaces for a store's fields.

Invariant: no Gymnasium is needed; a space that comes in and goes out again is the same JSON.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.fields import key_name
from mmreplay.exchange.losses import Losses
from mmreplay.schema import FRAME, Field

__all__ = ["Leaf", "compacted", "expanded", "leaves", "space_of", "space_of_actions", "spaces_of"]

_IMAGE_NDIM, _IMAGE_SIDE, _WHITE = (2, 3), 32, 255


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An array of a space.

    Attributes:
        name: of the field that holds it.
        path: keys, and numbers in tuples, that lead to it.
        kind: of space.
        shape: of a value.
        dtype: of a value.
        is_image: whether Minari may keep it as JPEG.
    """

    name: str
    path: tuple[str | int, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_image: bool


def leaves(space: Mapping[str, Any]) -> list[Leaf]:
    """The arrays of a space, the sole one named `FRAME`; raises FormatError for one of texts."""
    out = [_leaf(one, path) for path, one in _walk(space, ())]
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
    kind, image = space["type"], False
    if kind == "Box":
        shape, dtype = tuple(space["shape"]), np.dtype(space["dtype"])
        sides = shape[:2]
        image = len(shape) in _IMAGE_NDIM and dtype == np.uint8 and min(sides) >= _IMAGE_SIDE
        image = image and _constant(space["low"]) == 0 and _constant(space["high"]) == _WHITE
    elif kind == "Discrete":
        shape, dtype = (), np.dtype("int64")
    elif kind == "MultiDiscrete":
        shape, dtype = np.shape(space["nvec"]), np.dtype(space["dtype"])
    elif kind == "MultiBinary":
        n = space["n"]
        shape, dtype = tuple(n) if isinstance(n, list) else (n,), np.dtype("int8")
    else:
        raise FormatError(f"a space of {kind}: no store holds its values")
    return Leaf(leaf_name(path), path, kind, shape, dtype, image)


def leaf_name(path: tuple[str | int, ...]) -> str:
    """The field that holds the array at this path of a space."""
    return key_name("/".join(map(str, path))) if path else FRAME


def _constant(values: Any) -> Any:
    """The number that all of these are; None if they differ."""
    array = np.asarray(values)
    return array.flat[0].item() if array.size and (array == array.flat[0]).all() else None


def compacted(space: Any) -> Any:
    """The same space with a number for bounds that are one: those of images have thousands."""
    if isinstance(space.get("subspaces"), dict):
        return {**space, "subspaces": {k: compacted(one) for k, one in space["subspaces"].items()}}
    if isinstance(space.get("subspaces"), list):
        return {**space, "subspaces": [compacted(one) for one in space["subspaces"]]}
    out = dict(space)
    for key in ("low", "high") if space["type"] == "Box" else ():
        constant = _constant(space[key])
        if constant is not None:
            # Neither infinity nor NaN is JSON.
            out[key] = constant if math.isfinite(constant) else str(constant)
        elif not np.isfinite(np.asarray(space[key])).all():
            out[key] = [str(number) for number in np.asarray(space[key]).ravel().tolist()]
    return out


def expanded(space: Any) -> Any:
    """What `compacted` was given."""
    if isinstance(space.get("subspaces"), dict):
        return {**space, "subspaces": {k: expanded(one) for k, one in space["subspaces"].items()}}
    if isinstance(space.get("subspaces"), list):
        return {**space, "subspaces": [expanded(one) for one in space["subspaces"]]}
    out = dict(space)
    for key in ("low", "high") if space["type"] == "Box" else ():
        given = out[key]
        number = float if np.dtype(space["dtype"]).kind == "f" else int
        if isinstance(given, list) and given and isinstance(given[0], str):
            out[key] = np.reshape([number(one) for one in given], space["shape"]).tolist()
        elif not isinstance(given, list):
            out[key] = np.full(space["shape"], number(given)).tolist()
    return out


def space_of_actions(
    low: int, high: int, dtype: np.dtype[Any], about: Mapping[str, Any], losses: Losses
) -> dict[str, Any]:
    """The Discrete space of actions that occur from `low` to `high`.

    It is that of the environment if its metadata, `about`, say so, or else of what occurs, which is
    a loss. Raises SchemaError for actions of which no such space holds all.
    """
    start, n = about.get("action_start", 0), about.get("n_actions")
    if type(start) is type(n) is int and n > 0:
        first, last = min(low, start), max(high, start + n - 1)
        why = f"the environment has {n:,}, and others occur"
        is_known = (first, last) == (start, start + n - 1)
    else:
        first, last = min(low, 0), high
        why, is_known = "this store does not know it", False
    most = np.iinfo(np.int64).max
    if last > most or last - first >= most:
        raise SchemaError(
            f"minari: actions: expected whole numbers that a Discrete space holds, int64 and less "
            f"than 2**63 of them, found {dtype} from {first} to {last}; export to arrays or "
            f"parquet, which hold these"
        )
    space = {"type": "Discrete", "dtype": "int64", "start": first, "n": last - first + 1}
    if not is_known:
        losses.add(
            f"the number of actions: {why}; the space is of what occurs, n={space['n']:,} from "
            f"{first:,} on"
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
