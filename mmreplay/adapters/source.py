"""Opens what an adapter was given, and checks that the store is still the same one.

Invariant: ids that were listed of one store never show transitions of another that replaced it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypedDict

from mmreplay.datasets.dataset import Seed
from mmreplay.datasets.load import load
from mmreplay.errors import SchemaError
from mmreplay.reading.live_lanes import LiveLanes

__all__ = ["LoadSettings", "opened", "reading_listed", "uuids_of"]


class LoadSettings(TypedDict, total=False):
    """Keywords of `mmreplay.load` that go with a path; a dataset has its own settings."""

    stack: int | EllipsisType | None
    n_step: int
    gamma: float
    seed: Seed
    padding: str | None
    stack_axis: int
    clip_reward: tuple[float, float] | None


def opened(data: Any, settings: Mapping[str, Any], prefetch: int = 0) -> Any:
    """A dataset as it is, or the stores at a path, a list of paths or a pattern, loaded.

    Args:
        data: one of these.
        settings: keywords of `load`.
        prefetch: of a path, batches to read ahead.

    Raises:
        SchemaError: settings beside a dataset.
        MmreplayError: as `load`, of a path.
    """
    if isinstance(data, (str, os.PathLike, Sequence)):
        return load(data, **settings, prefetch=prefetch)
    if settings:
        raise SchemaError(
            f"{', '.join(settings)}: expected no settings beside a {type(data).__name__}, which "
            f"has its own; give a path, or give them to mmreplay.load"
        )
    return data


def uuids_of(data: Any) -> tuple[str, ...]:
    """Identifies the stores of a dataset for `reading_listed`; call it before listing ids."""
    return _lanes_of(data).uuids


@contextlib.contextmanager
def reading_listed(data: Any, uuids: tuple[str, ...]) -> Iterator[None]:
    """Read what was listed before; SchemaError if the path now holds another store."""
    try:
        yield
    finally:
        _lanes_of(data).check_same(
            uuids, "whose transitions were listed", "list them again: create this object again"
        )


def _lanes_of(data: Any) -> LiveLanes:
    """The lanes of a dataset, also of a wrapped one."""
    while not hasattr(data, "store"):
        data = data.data
    live: LiveLanes = data.store.live
    return live
