"""Opens the data of an adapter, and reads transitions by number from the same store.

Invariant: ids that were listed of one store never show transitions of another that replaced it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.datasets.dataset import Seed
from mmreplay.datasets.load import load
from mmreplay.datasets.source import Source
from mmreplay.errors import SchemaError


class LoadSettings(TypedDict, total=False):
    """Keywords of `mmreplay.load` that go with a path; a dataset has its own settings."""

    stack: int | EllipsisType | None
    n_step: int
    gamma: float
    seed: Seed
    padding: str | None
    stack_axis: int
    clip_reward: tuple[float, float] | None


def opened(
    data: Any, settings: Mapping[str, Any], prefetch: int = 0, *, needs: Sequence[str] = ()
) -> Any:
    """A dataset as it is, or stores loaded with these settings; SchemaError of both.

    UnsupportedError if it, or what it wraps, does not have all that the adapter `needs`.
    """
    if isinstance(data, (str, os.PathLike, Sequence)):
        return load(data, **settings, prefetch=prefetch)
    if not isinstance(data, Source):
        raise SchemaError(
            f"data: expected a path, a list of paths, or what mmreplay.load returns, found {data!r}"
        )
    if settings:
        raise SchemaError(
            f"{', '.join(settings)}: expected no settings, as the {type(data).__name__} has its "
            f"own; give a path, or give them to mmreplay.load"
        )
    data.check_has(*needs)
    return data


def uuids_of(data: Any) -> tuple[str, ...]:
    """Identifies the stores of a dataset for `reading_listed`; call it before listing ids."""
    uuids: tuple[str, ...] = data.store.live.uuids
    return uuids


@contextlib.contextmanager
def reading_listed(data: Any, uuids: tuple[str, ...]) -> Iterator[None]:
    """Read what was listed before; SchemaError if the path now holds another store."""
    try:
        yield
    finally:
        data.store.live.check_same(
            uuids, "whose transitions were listed", "list them again: create this object again"
        )


class Listed:
    """Transitions by number: i is the transition with the i-th smallest id at creation."""

    def __init__(self, data: Any, **settings: Unpack[LoadSettings]) -> None:
        self.data = opened(data, settings, needs=("ids", "transitions"))
        self._uuids = uuids_of(self.data)
        self.ids = self.data.ids

    def __len__(self) -> int:
        return len(self.ids)

    def _read(self, numbers: npt.ArrayLike) -> Batch:
        with reading_listed(self.data, self._uuids):
            batch: Batch = self.data.transitions(self.ids[np.asarray(numbers)])
        return batch


def fields_of(batch: Any) -> dict[str, Any]:
    """The fields of a batch or trajectory by name."""
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value, or those in nested dicts, changed."""
    if isinstance(value, dict):
        return {name: with_each(one, change) for name, one in value.items()}
    return change(value)
