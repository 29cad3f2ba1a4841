"""The arrays of a lane: those of its steps, and those of its final observations.

Invariant: whatever makes, reads or checks a lane takes its arrays from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmreplay.schema import Schema

_FLAG, _NUMBER = np.dtype("uint8"), np.dtype("int64")


@dataclass(frozen=True, slots=True)
class Column:
    """Shape and dtype of one row; `width` as of `ArraySpec`."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    width: int = 1


def row_columns(schema: Schema, environments: int | None) -> dict[str, Column]:
    """The arrays of a lane's steps, by path; a row is what one step gave to all environments.

    `environments` is None in a lane of one environment, whose arrays have no axis for them.
    """
    shape = () if environments is None else (environments,)
    width = environments or 1
    out = {
        path: Column((*shape, *one.shape), one.dtype, width)
        for path, one in schema.columns().items()
    }
    flags = dict.fromkeys(("non_terminals", "resets", "ends"), Column(shape, _FLAG, width))
    return {**out, **flags, "step": Column(shape, _NUMBER, width)}


def final_columns(schema: Schema) -> dict[str, Column]:
    """The arrays of the final observations, by path below `finals`; a row is one episode's end."""
    columns = schema.columns()
    frames = {
        path: Column(columns[path].shape, columns[path].dtype)
        for path in schema.frame_paths.values()
    }
    return {**frames, "id": Column((), _NUMBER), "first": Column((), _NUMBER)}
