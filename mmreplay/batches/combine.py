"""Whole batches: concatenated, or copied into a given one.

Invariant: a result shares no memory with the batches it was made of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from mmreplay.batches.batch import Batch, arrays_of
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Schema

AnyBatch = TypeVar("AnyBatch", Batch, SequenceBatch)


def schema_of(source: object) -> Schema:
    """The schema of a source's batches; SchemaError if it is not a source."""
    schema = getattr(source, "schema", None)
    if schema is None:
        schema = getattr(getattr(source, "store", None), "schema", None)
    if not isinstance(schema, Schema) or not callable(getattr(source, "sample", None)):
        raise SchemaError(
            f"data: expected what mmreplay.load returns, a replay buffer, or a wrapper of one, "
            f"found {source!r}"
        )
    return schema


def unshared(batch: AnyBatch) -> AnyBatch:
    """The same batch, with observations that are writeable and do not share memory."""
    seen, following = _frames(batch.observation), _frames(batch.next_observation)
    apart = {
        name: array.copy() if np.may_share_memory(array, seen[name]) else array
        for name, array in following.items()
    }
    own = {name: array if array.flags.writeable else array.copy() for name, array in seen.items()}
    is_dict = isinstance(batch.observation, dict)
    return dataclasses.replace(
        batch,
        observation=own if is_dict else own[""],
        next_observation=apart if is_dict else apart[""],
    )


def concatenated(batches: Sequence[Batch], names: Sequence[str]) -> Batch:
    """The rows of several batches, one batch after the other, from the sources `names`.

    Raises SchemaError if arrays differ by more than their length.
    """
    parts = [arrays_of(batch) for batch in batches]
    kinds = [_kinds(part, from_axis=1) for part in parts]
    for name, kind in zip(names, kinds, strict=True):
        if kind != kinds[0]:
            raise SchemaError(
                f"expected batches with the same arrays, found {_difference(kinds[0], kind)} from "
                f"{names[0]} and {name}; load and decorate them alike"
            )
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(Batch):
        value = getattr(batches[0], field.name)
        if isinstance(value, dict):
            fields[field.name] = {key: joined[f"{field.name}[{key!r}]"] for key in value}
        else:
            fields[field.name] = joined[field.name]
    return Batch(**fields)


def fill(out: object, batch: AnyBatch) -> AnyBatch:
    """Copy a batch into `out`; SchemaError if their arrays differ in shape or dtype."""
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
    """By key; the only array under an empty one."""
    return observation if isinstance(observation, dict) else {"": observation}


def _arrays(batch: object) -> dict[str, Array]:
    """The values of `arrays_of` that are arrays."""
    return {key: one for key, one in arrays_of(batch).items() if isinstance(one, np.ndarray)}


def _kinds(arrays: dict[str, Array], from_axis: int = 0) -> dict[str, str]:
    """Dtype and shape of each array, in words."""
    return {key: f"{array.dtype} {array.shape[from_axis:]}" for key, array in arrays.items()}


def _difference(first: dict[str, str], second: dict[str, str]) -> str:
    """In words: the first array that differs."""
    for key in [*first, *second]:
        if first.get(key) != second.get(key):
            return f"{key}: {first.get(key, 'none')} and {second.get(key, 'none')}"
    return "arrays that are read-only"
