"""The arrays of each kind of log."""

import numpy as np

from mmreplay import Field
from mmreplay.format.columns import Column, lane_columns, start_columns, tick_columns
from mmreplay.schema import Schema

SCHEMA = Schema.make(
    {"pixels": Field((4, 3), "uint8"), "speed": Field((), "float32")},
    Field((2,), "int16"),
    {"x": Field((5,), "float64")},
)
U1, I8 = np.dtype("uint8"), np.dtype("int64")
FRAMES = {"frames/pixels": ((4, 3), "uint8"), "frames/speed": ((), "float32")}
STEPS = {"actions": ((2,), "int16"), "rewards": ((), "float32"), "extras/x": ((5,), "float64")}


def test_a_row_of_a_lane_is_a_frame_and_what_happened_after_it():
    flags = {"non_terminals": ((), "uint8"), "resets": ((), "uint8")}
    expected = {**FRAMES, **STEPS, **flags}
    assert lane_columns(SCHEMA) == {
        path: Column(shape, np.dtype(dtype)) for path, (shape, dtype) in expected.items()
    }


def test_a_row_of_ticks_has_one_of_each_environment_and_one_count():
    columns = tick_columns(SCHEMA, 7)
    assert {path: columns.pop(path) for path in (*FRAMES, *STEPS)} == {
        path: Column((7, *shape), np.dtype(dtype), 7)
        for path, (shape, dtype) in {**FRAMES, **STEPS}.items()
    }
    assert columns == {
        "non_terminals": Column((7,), U1),
        "ends": Column((7,), U1),
        "episode": Column((7,), I8),
        "count": Column((), I8),
    }


def test_a_row_of_starts_is_the_first_observation_of_an_environment_in_a_tick():
    frames = {path: Column(shape, np.dtype(dtype)) for path, (shape, dtype) in FRAMES.items()}
    assert start_columns(SCHEMA) == {**frames, "env": Column((), I8), "tick": Column((), I8)}
