"""The layouts of the stores of histories: so short chunks that a few rows meet every border.

Invariant: whoever makes a store of one of them does so with `SHORT_CHUNKS` in the planner.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mmreplay.schema import Field
from tests.support.oracle.layout import Layout

__all__ = [
    "LARGE_FRAMES",
    "LAYOUTS",
    "SHORT_CHUNKS",
    "VECTOR_LAYOUTS",
    "AnyLayout",
    "VectorLayout",
]


class VectorLayout(NamedTuple):
    """A vector lane of so many environments; in some histories its steps get priorities."""

    layout: Layout
    width: int
    has_priorities: bool = False


AnyLayout = Layout | VectorLayout

_ACTION, _SHORT = Field((), "int64", chunk=11), Field((), "int64", chunk=4)
_PAIR = Field((2,), "float32", chunk=8)
LAYOUTS = [
    Layout(Field((3,), "uint8", "lz4", 2, 4), _ACTION, {}),
    Layout(Field((3,), "uint8", "lz4", 2, 4), _ACTION, {}, capacity=9),
    Layout(Field((600,), "uint8", "zstd", 2, 4), Field((), "int64", chunk=70), {}, capacity=3),
    Layout(Field((5,), "uint8", "raw", 9), Field((2,), "float32", chunk=8), {}, capacity=5),
    Layout(Field((200,), "uint8", "raw", 8), Field((), "int64", chunk=90), {}),
    Layout(
        {"a": Field((4,), "uint8", "raw", 13), "b": Field((2,), "uint16", "lz4", 1, 3)},
        _ACTION,
        {"x": Field((), "float64", chunk=7)},
        capacity=20,
    ),
]
"""Of lanes of one environment."""

VECTOR_LAYOUTS = [
    VectorLayout(Layout(Field((3,), "uint8", "lz4", 2, 4), _ACTION, {}), 3),
    VectorLayout(Layout(Field((3,), "uint8", "lz4", 2, 4), _ACTION, {}, capacity=9), 2),
    VectorLayout(Layout(Field((40,), "uint8", "zstd", 2, 4), _SHORT, {}, capacity=5), 1),
    VectorLayout(
        Layout(Field((5,), "uint8", "raw", 9), _PAIR, {}, capacity=12), 8, has_priorities=True
    ),
    VectorLayout(Layout(Field((200,), "uint8", "raw", 8), Field((), "int64", chunk=40), {}), 3),
    VectorLayout(
        Layout(
            {"a": Field((4,), "uint8", "raw", 13), "b": Field((2,), "uint16", "lz4", 1, 3)},
            _ACTION,
            {"x": Field((), "float64", chunk=7)},
            capacity=20,
        ),
        2,
    ),
]
"""Of lanes of one to eight environments, whose lengths are in ticks."""

LARGE_FRAMES = VectorLayout(
    Layout(Field((4096,), "uint8", "raw", 3), _SHORT, {}, capacity=9), 2, has_priorities=True
)
"""One in which frames lie environment by environment."""

SHORT_CHUNKS: dict[str, Any] = {"_SCALAR_ROWS": 10, "_NUMBER_ROWS": 6, "_START_ROWS": 4}
"""Of `mmreplay.format.plan`: the rows of a chunk of `count`, `env` and `tick`, and of starts."""
