"""Foreign columns as fields: which arrays a store can hold, and under which names.

Invariant: a column keeps its dtype and its values; one that cannot is refused, or left out and
counted, and never cast silently.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, MissingExtraError
from mmreplay.ids import Array

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_ARGUMENTS = frozenset(
    "self action actions reward rewards next_frame frames".split()
    + "terminated truncated life_lost mask".split()
)
_LONGEST = 100
_MOST_BYTES = 8


def need(module: str, extra: str | None = "exchange", package: str | None = None) -> Any:
    """An optional library, called `package` by pip, of an `extra`; raises MissingExtraError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        install = f'"mmreplay[{extra}]"' if extra else name
        raise MissingExtraError(f"this format needs {name}: pip install {install}") from error


def is_numeric(dtype: Any) -> bool:
    """Whether a store can hold it."""
    kind = np.dtype(dtype)
    return kind.kind in "biuf" and kind.itemsize <= _MOST_BYTES


def key_name(name: str) -> str:
    """A foreign name as the key of an observation: ``pixels/left`` is ``pixels.left``."""
    out = _UNFIT.sub("_", name.strip("/").replace("/", ".")).lstrip(".")[:_LONGEST] or "_"
    return "zarr.json_" if out == "zarr.json" else out


def extra_name(name: str) -> str:
    """The same for an extra column, whose name is also an argument of ``step``."""
    out = key_name(name)
    return f"{out}_" if out in _ARGUMENTS else out


def has_values(rows: Array) -> Array:
    """(n,) bool: which rows are not all 0."""
    return np.asarray(rows.any(axis=tuple(range(1, rows.ndim))))


def flags(values: Array, name: str) -> Array:
    """(n,) bool of flags (n,) or (n, 1); FormatError for one that is neither 0 nor 1."""
    given = np.asarray(values).reshape(len(values))
    out: Array = given != 0
    if (other := given[out & (given != 1)]).size:
        raise FormatError(
            f"{name}: expected flags, each 0 or 1, found {other[0]!s:.40}; make them 0 and 1, or "
            f"leave that column out"
        )
    return out
