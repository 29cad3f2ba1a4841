"""Foreign columns as fields: kept, refused, or left out and counted."""

import numpy as np
import pytest

from mmreplay import Field, FormatError
from mmreplay.exchange.fields import add_extra, extra_name, field, flags, key_name, reward_dtype
from mmreplay.exchange.losses import Losses


def test_names_are_those_that_a_store_takes():
    for given, expected in {
        "infos/qpos": "infos.qpos",
        "/agent pos/": "agent_pos",
        "reward": "reward_",
        ".x": "x",
        "/": "_",
        "a" * 200: "a" * 100,
    }.items():
        assert extra_name(given) == expected
    assert (key_name("reward"), key_name("pixels/left eye")) == ("reward", "pixels.left_eye")


def test_extra_columns_that_a_store_cannot_hold_are_losses():
    losses, extras = Losses(), {}
    columns = {"x": ((2,), "bool"), "y": ((), "<U5"), "z": ((0,), "int8"), "x ": ((), "int8")}
    added = [
        add_extra(extras, name, name.strip(), *about, losses) for name, about in columns.items()
    ]
    assert added == [True, False, False, False]
    assert extras == {"x": ("x", Field((2,), "bool"))}
    assert [(one.count, one.what) for one in losses.all()] == [
        (1, "column y: a store cannot hold rows of <U5 ()"),
        (1, "column z: a store cannot hold rows of int8 (0,)"),
        (1, "column x : another column is called x already"),
    ]


def test_dtypes():
    assert field((2, 3), ">f4", "x") == Field((2, 3), "float32")
    for given, expected in {
        "float64": "float64",
        "float16": "float32",
        "int64": "float64",
        "uint8": "float32",
    }.items():
        assert reward_dtype(given, "rewards") == expected
    for dtype in ("complex128", "<U3"):
        with pytest.raises(FormatError, match=r"x: expected numbers of at most 64 bits, found"):
            reward_dtype(dtype, "x")


def test_flags_are_0_or_1():
    assert flags(np.array([[0.0], [1.0], [-0.0]]), "x").tolist() == [False, True, False]
    for rows in ([0, 2], [1, -1], [0.0, np.nan], [0.5, 1.0], [[0], [255]]):
        with pytest.raises(FormatError, match=r"x: expected flags, each 0 or 1, found .*; make"):
            flags(np.array(rows), "x")
