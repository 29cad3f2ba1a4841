"""The layouts of the stores of histories: so short chunks that a few rows meet every border.

Invariant: whoever makes a store of one of them does so with `SHORT_CHUNKS` in the planner.
"""

from __future__ import annotations

from typing import Any

from mmreplay.schema import Field
from tests.support.oracle.layout import Layout

__all__ = ["LARGE_FRAMES", "LAYOUTS", "MANY", "PRIORITIES", "SHORT_CHUNKS"]

_ACTION, _SHORT = Field((), "int64", chunk=11), Field((), "int64", chunk=4)
_PAIR = Field((2,), "float32", chunk=8)
_LZ4 = Field((3,), "uint8", "lz4", 2, 4)
_DICT: dict[str, Any] = {
    "frame": {"a": Field((4,), "uint8", "raw", 13), "b": Field((2,), "uint16", "lz4", 1, 3)},
    "action": _ACTION,
    "extras": {"x": Field((), "float64", chunk=7)},
    "capacity": 20,
}
LAYOUTS = [
    Layout(_LZ4, _ACTION),
    Layout(_LZ4, _ACTION, capacity=9),
    Layout(Field((600,), "uint8", "zstd", 2, 4), Field((), "int64", chunk=70), capacity=3),
    Layout(Field((5,), "uint8", "raw", 9), _PAIR, capacity=5),
    Layout(Field((200,), "uint8", "raw", 8), Field((), "int64", chunk=90)),
    Layout(**_DICT),
]
"""Of one environment."""

MANY = [
    Layout(_LZ4, _ACTION, environments=3),
    Layout(_LZ4, _ACTION, capacity=9, environments=2),
    Layout(Field((40,), "uint8", "zstd", 2, 4), _SHORT, capacity=5, environments=1),
    Layout(Field((5,), "uint8", "raw", 9), _PAIR, capacity=12, environments=8),
    Layout(Field((200,), "uint8", "raw", 8), Field((), "int64", chunk=40), environments=3),
    Layout(**_DICT, environments=2),
]
"""Of one to eight environments that step together."""

LARGE_FRAMES = Layout(Field((4096,), "uint8", "raw", 3), _SHORT, capacity=9, environments=2)
"""One in which frames lie environment by environment."""

PRIORITIES = [MANY[3], LARGE_FRAMES, LAYOUTS[3]]
"""Those whose steps get priorities, in some histories."""

SHORT_CHUNKS: dict[str, Any] = {
    "_SCALAR_ROWS": 10,
    "_FINAL_BYTES": 1,
    "_LEAST_FINALS": 4,
    "_ROUND_UP_BYTES": 0,
}
"""Of `mmreplay.format.plan`: the rows of a chunk of scalars, and of final observations."""
