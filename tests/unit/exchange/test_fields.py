"""Foreign columns as fields: kept, refused, or left out and counted."""

import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.fields import extra_name, flags, key_name


def test_names_are_those_that_a_store_takes():
    for given, expected in {
        "infos/qpos": "infos.qpos",
        "/agent pos/": "agent_pos",
        "reward": "reward_",
        ".x": "x",
        "/": "_",
        "a" * 200: "a" * 100,
        "../zarr.json": "zarr.json_",
    }.items():
        assert extra_name(given) == expected
    assert (key_name("reward"), key_name("pixels/left eye")) == ("reward", "pixels.left_eye")


def test_flags_are_0_or_1():
    assert flags(np.array([[0.0], [1.0], [-0.0]]), "x").tolist() == [False, True, False]
    for rows in ([0, 2], [1, -1], [0.0, np.nan], [0.5, 1.0], [[0], [255]]):
        with pytest.raises(FormatError, match=r"x: expected flags, each 0 or 1, found .*; make"):
            flags(np.array(rows), "x")
