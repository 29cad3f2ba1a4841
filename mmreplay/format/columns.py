"""The arrays of a log: of a lane's rows, of a vector lane's ticks, of its episodes' starts.

Invariant: whoever makes, reads or checks a log takes its arrays from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mmreplay.schema import Schema

__all__ = ["Column", "lane_columns", "start_columns", "tick_columns"]


@dataclass(frozen=True, slots=True)
class Column:
    """Shape and dtype of one row; `width` as of `ArraySpec`, if its parts lie apart there."""

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    width: int = 1


def lane_columns(schema: Schema) -> dict[str, Column]:
    """Of a lane of one environment, by path; a row is a frame and what happened after it."""
    return {path: Column(one.shape, one.dtype) for path, one in schema.arrays().items()}


def tick_columns(schema: Schema, width: int) -> dict[str, Column]:
    """Of the log of ticks, by path; a row is what one step gave to `width` environments."""
    out = {
        path: Column((width, *one.shape), one.dtype, width)
        for path, one in schema.columns().items()
    }
    flag = np.dtype("uint8")
    return {
        **out,
        "non_terminals": Column((width,), flag),
        "ends": Column((width,), flag),
        "episode": Column((width,), np.dtype("int64")),
        "count": Column((), np.dtype("int64")),
    }


def start_columns(schema: Schema) -> dict[str, Column]:
    """Of the log of starts, by path; a row is the beginning of one episode."""
    columns = schema.columns()
    number = Column((), np.dtype("int64"))
    return {
        **{
            path: Column(columns[path].shape, columns[path].dtype)
            for path in schema.frame_paths.values()
        },
        "env": number,
        "tick": number,
    }
