"""Whole batches: concatenated, or copied into a given one.

Invariant: a batch that comes out of here shares no memory with one that went in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from mmreplay.batches.batch import Batch, arrays_of
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Schema

AnyBatch = TypeVar("AnyBatch", Batch, SequenceBatch)


def schema_of(source: object) -> Schema:
    """The schema of a source's batches: the store's columns, and the extras that it adds.

    Raises SchemaError if it is no source.
    """
    schema = getattr(source, "schema", None)
    if schema is None:
        schema = getattr(getattr(source, "store", None), "schema", None)
    if not isinstance(schema, Schema) or not callable(getattr(source, "sample", None)):
        raise SchemaError(
            f"data: expected what mmreplay.load returns, a replay buffer, or something around one, "
            f"found {source!r}"
        )
    return schema


def unshared(batch: AnyBatch) -> AnyBatch:
    """The same batch, whose observation and next observation can be changed, each by itself."""
    seen, following = _frames(batch.observation), _frames(batch.next_observation)
    apart = {
        name: array.copy() if np.may_share_memory(array, seen[name]) else array
        for name, array in following.items()
    }
    own = {name: array if array.flags.writeable else array.copy() for name, array in seen.items()}
    return dataclasses.replace(
        batch,
        observation=_observation(batch, own),
        next_observation=_observation(batch, apart),
    )


def concatenated(batches: Sequence[Batch], names: Sequence[str]) -> Batch:
    """The rows of several batches, one batch after the other; `names` of their sources.

    Raises SchemaError if arrays differ by more than their length.
    """
    parts = [arrays_of(batch) for batch in batches]
    kinds = [_kinds(part, from_axis=1) for part in parts]
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            raise SchemaError(
                f"expected batches of one kind, found {_difference(kinds[0], kind)} from "
                f"{names[0]} and {name}; load and decorate them alike"
            )
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    return _rebuilt(batches[0], joined.__getitem__)


def fill(out: object, batch: AnyBatch) -> AnyBatch:
    """Copy a batch into `out`; raises SchemaError if the arrays of that are not like its own."""
    if not isinstance(out, type(batch)):
        raise SchemaError(f"out: expected a {type(batch).__name__}, found {type(out).__name__}")
    arrays, expected = _arrays(out), _arrays(batch)
    kinds = _kinds(expected), _kinds(arrays)
    if kinds[0] != kinds[1] or not all(array.flags.writeable for array in arrays.values()):
        raise SchemaError(
            f"out: expected a batch of {len(batch)} that this object returned with the same "
            f"settings, found {_difference(*kinds)}; call once without out= and pass what came back"
        )
    for key, array in arrays.items():
        np.copyto(array, expected[key])
    return out


def _frames(observation: Array | dict[str, Array]) -> dict[str, Array]:
    """By key; the sole array under an empty one."""
    return observation if isinstance(observation, dict) else {"": observation}


def _arrays(batch: object) -> dict[str, Array]:
    """Those of `arrays_of` that are arrays."""
    return {key: one for key, one in arrays_of(batch).items() if isinstance(one, np.ndarray)}


def _observation(
    batch: Batch | SequenceBatch, frames: dict[str, Array]
) -> Array | dict[str, Array]:
    """The inverse of `_frames`."""
    return frames if isinstance(batch.observation, dict) else frames[""]


def _rebuilt(like: Batch, array: Callable[[str], Array]) -> Batch:
    """A batch of the same fields and keys as another, with other arrays."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(like):
        value = getattr(like, field.name)
        if isinstance(value, dict):
            fields[field.name] = {key: array(f"{field.name}[{key!r}]") for key in value}
        else:
            fields[field.name] = array(field.name)
    return Batch(**fields)


def _kinds(arrays: dict[str, Array], from_axis: int = 0) -> dict[str, str]:
    """Dtype and shape of each array, in words."""
    return {key: f"{array.dtype} {array.shape[from_axis:]}" for key, array in arrays.items()}


def _difference(first: dict[str, str], second: dict[str, str]) -> str:
    """In words: the first array in which two batches differ."""
    for key in [*first, *second]:
        if first.get(key) != second.get(key):
            return f"{key}: {first.get(key, 'none')} and {second.get(key, 'none')}"
    return "arrays that are read-only"
