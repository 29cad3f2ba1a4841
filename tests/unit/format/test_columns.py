"""The arrays of a lane."""

import numpy as np

from mmreplay import Field
from mmreplay.format.columns import Column, final_columns, row_columns
from mmreplay.schema import Schema

SCHEMA = Schema.make(
    {"pixels": Field((4, 3), "uint8"), "speed": Field((), "float32")},
    Field((2,), "int16"),
    {"x": Field((5,), "float64")},
)
FRAMES = {"frames/pixels": ((4, 3), "uint8"), "frames/speed": ((), "float32")}
STEPS = {
    **FRAMES,
    "actions": ((2,), "int16"),
    "rewards": ((), "float32"),
    "extras/x": ((5,), "float64"),
    "non_terminals": ((), "uint8"),
    "resets": ((), "uint8"),
    "ends": ((), "uint8"),
    "step": ((), "int64"),
}


def test_a_row_of_one_environment_has_no_axis_of_environments():
    expected = {path: Column(shape, np.dtype(dtype)) for path, (shape, dtype) in STEPS.items()}
    assert row_columns(SCHEMA, None) == expected


def test_a_row_of_many_has_a_part_of_each():
    for n in (1, 7):
        assert row_columns(SCHEMA, n) == {
            path: Column((n, *shape), np.dtype(dtype), n) for path, (shape, dtype) in STEPS.items()
        }


def test_a_row_of_final_observations_is_the_end_of_one_episode():
    frames = {path: Column(shape, np.dtype(dtype)) for path, (shape, dtype) in FRAMES.items()}
    number = Column((), np.dtype("int64"))
    assert final_columns(SCHEMA) == {**frames, "id": number, "first": number}
