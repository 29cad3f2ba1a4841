"""The layouts of the stores of histories: so short chunks that a few rows meet every border.

Invariant: whoever makes a store of one of them does so with `SHORT_CHUNKS` in the planner.
"""

import dataclasses

from mmreplay.schema import Field
from tests.support.oracle.layout import Layout

_ACTION = Field((), "int64", chunk=11)
_LZ4 = Field((3,), "uint8", "lz4", 2, 4)
_ONE = [
    Layout(_LZ4, _ACTION),
    Layout(_LZ4, _ACTION, capacity=9),
    Layout(Field((600,), "uint8", "zstd", 2, 4), Field((), "int64", chunk=70), capacity=3),
    Layout(Field((5,), "uint8", "raw", 9), Field((2,), "float32", chunk=8), capacity=5),
    Layout(Field((200,), "uint8", "raw", 8), Field((), "int64", chunk=90)),
    Layout(
        {"a": Field((4,), "uint8", "raw", 13), "b": Field((2,), "uint16", "lz4", 1, 3)},
        _ACTION,
        {"x": Field((), "float64", chunk=7)},
        capacity=20,
    ),
]
# Their frames lie environment by environment.
_LARGE = Layout(Field((4096,), "uint8", "raw", 3), Field((), "int64", chunk=4), capacity=9)


def _of(n):
    """The same of n environments, whose lengths are in steps of all of them."""
    return [
        dataclasses.replace(one, environments=n, capacity=one.capacity and one.capacity * n)
        for one in (*_ONE, _LARGE)
    ]


_DERIVED = {"v": Field((), "float64", chunk=6), "w": Field((70,), "int64", chunk=3)}
CHANGING = [
    dataclasses.replace(one, derived=_DERIVED) for one in (_ONE[0], _ONE[3], *_of(3)[1:4:2])
]
"""With columns that are updated; a value of the second one lies in two sectors of a disk."""

LAYOUTS = {1: [*_ONE, *_of(1)[2:5]], 3: _of(3), 64: _of(64)[:-1]}
"""By environments; those of one are with and without an axis for it."""

MANY = LAYOUTS[3]
ALL = [*_ONE, *MANY]
LONG = [Layout(Field((200,), "uint8", "raw", 60), Field((), "int64", chunk=90))]
"""Of a power cut, many rows that were never committed may be left past the head of a chunk file."""

SHORT_CHUNKS = {
    "_SCALAR_ROWS": 10,
    "_FINAL_NUMBERS": 6,
    "_FINAL_BYTES": 1,
    "_LEAST_FINALS": 3,
    "_ROUND_UP_BYTES": 0,
}
"""Of `mmreplay.format.plan`."""
