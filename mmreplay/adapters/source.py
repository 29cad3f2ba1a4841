"""What an adapter was given, as something to sample from, and whether it is still of that store.

Invariant: numbers that were listed of one store never show transitions of another that replaced it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from mmreplay.datasets.load import load
from mmreplay.errors import SchemaError
from mmreplay.reading.live_lanes import LiveLanes

__all__ = ["opened", "reading_listed", "uuids_of"]

_NONE_MEANS_SOMETHING = {"stack", "seed"}


def opened(data: Any, settings: dict[str, Any], prefetch: int = 0) -> Any:
    """A dataset as it is, or the stores at a path, a list of paths or a pattern, loaded.

    Args:
        data: one of these.
        settings: arguments of `load`; those that are ``...`` were not given, nor, where None says
            nothing of its own, those that are None.
        prefetch: of a path, batches to read ahead.

    Raises:
        SchemaError: a dataset, and settings beside it: it has its own.
        MmreplayError: as `load`, of a path.
    """
    given = {
        name: value
        for name, value in settings.items()
        if value is not ... and (value is not None or name in _NONE_MEANS_SOMETHING)
    }
    if isinstance(data, (str, os.PathLike, Sequence)):
        return load(data, **given, prefetch=prefetch)
    if given:
        raise SchemaError(
            f"{', '.join(given)}: expected none of these beside a {type(data).__name__}, which has "
            f"its own settings; give a path, or give them to mmreplay.load"
        )
    return data


def uuids_of(data: Any) -> tuple[str, ...]:
    """By which `reading_listed` knows the store again; asked for before anything is listed."""
    return _lanes_of(data).uuids


@contextlib.contextmanager
def reading_listed(data: Any, uuids: tuple[str, ...]) -> Iterator[None]:
    """Read what was listed of a dataset before.

    Raises SchemaError if another store stands at its path by then, whatever else was raised.
    """
    try:
        yield
    finally:
        _lanes_of(data).check_same(
            uuids, "whose transitions were listed", "list them again: make this object anew"
        )


def _lanes_of(data: Any) -> LiveLanes:
    """Those of a dataset, also of one that others are around."""
    while not hasattr(data, "store"):
        data = data.data
    live: LiveLanes = data.store.live
    return live
