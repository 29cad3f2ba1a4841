"""`opened`: what an adapter was given, as something to sample from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from mmreplay.datasets.load import load
from mmreplay.errors import SchemaError

__all__ = ["opened"]

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
