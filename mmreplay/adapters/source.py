"""Opens the data of an adapter, and reads transitions by number from the same store.

Invariant: ids that were listed of one store never show transitions of another that replaced it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from mmreplay.datasets.dataset import Seed
from mmreplay.datasets.load import load
from mmreplay.datasets.source import Source, Windowed
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
    """Transitions by number: i is the transition with the i-th smallest id at creation.

    With `windows` these around it, padded.
    """

    def __init__(
        self, data: Any, *, windows: Windowed | None = None, **settings: Unpack[LoadSettings]
    ) -> None:
        needs = ("ids", "transitions" if windows is None else "windows")
        self.data = opened(data, settings, needs=needs)
        self._windows = None if windows is None else self.data.field_windows(windows, "pad")
        self._uuids = uuids_of(self.data)
        self.ids = self.data.ids

    def __len__(self) -> int:
        return len(self.ids)

    def _read(self, numbers: npt.ArrayLike) -> Any:
        with reading_listed(self.data, self._uuids):
            ids = self.ids[np.asarray(numbers)]
            if self._windows is not None:
                return self.data.windows(ids, self._windows)
            return self.data.transitions(ids)
