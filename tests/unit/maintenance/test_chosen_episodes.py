"""Which episodes are wanted: by return, number and environment, and all of these together."""

import numpy as np
import pytest

from mmreplay import LANE_SHIFT, EmptyBufferError, SchemaError
from mmreplay.episode_index import EPISODE_DTYPE
from mmreplay.maintenance.chosen_episodes import choose

WIDTHS = [1, 3]  # a lane of one environment, and one of three: environments 0, and 1 to 3


@pytest.fixture
def table():
    out = np.zeros(5, EPISODE_DTYPE)
    out["id"] = [0, 7, 1 << LANE_SHIFT, (1 << LANE_SHIFT) + 2, (1 << LANE_SHIFT) + 4]
    out["length"], out["return"] = 2, [1, 3, np.nan, 2, -1]
    return out


def chosen(table, **how):
    wanted = {"min_return": None, "episodes": None, "envs": None} | how
    return np.flatnonzero(np.isin(table["id"], choose(table, WIDTHS, **wanted)["id"])).tolist()


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"min_return": 2}, [1, 3]),
        ({"min_return": -np.inf}, [0, 1, 3, 4]),  # NaN is never enough
        ({"episodes": [3, 0, -1]}, [0, 3, 4]),
        ({"episodes": np.array([True, False, True, False, False])}, [0, 2]),
        ({"episodes": lambda table: table["return"] < 2}, [0, 4]),
        ({"episodes": lambda table: table["return"].argsort()[:1]}, [4]),
        ({"envs": [0]}, [0, 1]),
        ({"envs": range(1, 3)}, [2, 4]),
        ({"envs": [3, 0], "min_return": 2, "episodes": range(3, 5)}, [3]),
    ],
)
def test_what_is_wanted(table, how, expected):
    assert chosen(table, **how) == expected


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"episodes": [5]}, "episodes: expected episodes 0 to 4, found number 5"),
        ({"episodes": [0.5]}, "episodes: expected whole numbers, or a bool for each of 5 episodes"),
        ({"episodes": [True]}, "episodes: expected whole numbers, or a bool"),
        ({"envs": [4]}, "envs: expected environments 0 to 3, found number 4"),
        ({"envs": 0}, "envs: expected whole numbers, or a bool for each of 4 environments"),
        ({"min_return": "much"}, "min_return: expected a number, found 'much'"),
        ({"min_return": float("nan")}, "min_return: expected a number, found nan"),
    ],
)
def test_what_cannot_be_wanted_is_refused(table, how, text):
    with pytest.raises(SchemaError, match=text):
        chosen(table, **how)


def test_none_is_wanted(table):
    with pytest.raises(
        EmptyBufferError, match=r"none of 5 whole .*; the greatest return is 3: choose others"
    ):
        chosen(table, min_return=4)
    with pytest.raises(
        EmptyBufferError, match="none of 0 whole episodes was chosen: choose others"
    ):
        chosen(table[:0], min_return=0)
