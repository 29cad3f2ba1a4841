"""Batches as wholes: what gives them, laid one after the other, copied into one that was given.

Invariant: a batch that comes out of here shares no memory with one that went in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mmreplay.batches.batch import Batch, arrays_of
from mmreplay.batches.settings import Settings
from mmreplay.errors import SchemaError
from mmreplay.ids import Array
from mmreplay.schema import Schema

__all__ = ["Source", "concatenated", "fill", "schema_of", "unshared"]


class Source(Protocol):
    """What gives batches: a dataset, a buffer, or something around one."""

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt."""

    @property
    def generator(self) -> np.random.Generator:
        """What draws."""

    def sample(self, batch_size: int, out: Batch | None = None) -> Batch:
        """Draw transitions."""

    def __len__(self) -> int:
        """Transitions that can be sampled."""


def schema_of(source: object) -> Schema:
    """What the rows behind a source hold, and what it adds to them.

    Raises:
        SchemaError: it is none that has batches of a store.
    """
    found = getattr(source, "schema", None)
    if found is None:
        found = getattr(getattr(source, "store", None), "schema", None)
    if not isinstance(found, Schema) or not callable(getattr(source, "sample", None)):
        raise SchemaError(
            f"data: expected what mmreplay.load returns, a replay buffer, or something around one, "
            f"found {source!r}"
        )
    return found


def unshared(batch: Batch) -> Batch:
    """The same batch, with observation and next observation in memory of their own."""
    seen, following = _frames(batch.observation), _frames(batch.next_observation)
    apart = {
        name: array.copy() if np.may_share_memory(array, seen[name]) else array
        for name, array in following.items()
    }
    return dataclasses.replace(batch, next_observation=_observation(batch, apart))


def concatenated(batches: Sequence[Batch], names: Sequence[str]) -> Batch:
    """The rows of several batches, one batch after the other.

    Args:
        batches: one or more.
        names: what each came from, for the message.

    Raises:
        SchemaError: arrays that differ by more than their length.
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


def fill(out: object, batch: Batch) -> Batch:
    """Copy a batch into one that was given.

    Raises:
        SchemaError: `out` has not the arrays that `batch` has.
    """
    if not isinstance(out, Batch):
        raise SchemaError(f"out: expected a batch, found {type(out).__name__}")
    found, expected = arrays_of(out), arrays_of(batch)
    kinds = _kinds(expected), _kinds(found)
    if kinds[0] != kinds[1] or not all(array.flags.writeable for array in found.values()):
        raise SchemaError(
            f"out: expected a batch of {len(batch)} that this object returned with the same "
            f"settings, found {_difference(*kinds)}; call once without out= and pass what came back"
        )
    for key, array in found.items():
        np.copyto(array, expected[key])
    return out


def _frames(observation: Array | dict[str, Array]) -> dict[str, Array]:
    return observation if isinstance(observation, dict) else {"": observation}


def _observation(batch: Batch, frames: dict[str, Array]) -> Array | dict[str, Array]:
    return frames if isinstance(batch.observation, dict) else frames[""]


def _rebuilt(like: Batch, array: Callable[[str], Array]) -> Batch:
    """A batch from its arrays, of the same keys as another."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(like):
        value = getattr(like, field.name)
        if isinstance(value, dict):
            fields[field.name] = {key: array(f"{field.name}[{key!r}]") for key in value}
        else:
            fields[field.name] = array(field.name)
    return Batch(**fields)


def _kinds(arrays: dict[str, Array], from_axis: int = 0) -> dict[str, str]:
    return {key: f"{array.dtype} {array.shape[from_axis:]}" for key, array in arrays.items()}


def _difference(one: dict[str, str], other: dict[str, str]) -> str:
    """The first array in which two batches differ, in words."""
    for key in [*one, *other]:
        if one.get(key) != other.get(key):
            return f"{key}: {one.get(key, 'none')} and {other.get(key, 'none')}"
    return "arrays that are read-only"
