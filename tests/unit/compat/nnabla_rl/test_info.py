"""Which parts of an info are stored, and how they come back."""

import numpy as np
import pytest

from mmreplay.compat import nnabla_rl


def test_the_first_info_decides_which_entries_have_columns(experiences):
    with nnabla_rl.ReplayBuffer() as buffer:
        infos = [
            {"n": 1, "f": np.float32(2), "deep": {"a": np.arange(3), "b": {"c": True}}, "s": "x"},
            {"n": 1.5, "deep": {"a": np.arange(3) + 1}, "new": 7},
            {"n": None, "deep": 5, "f": np.float32(1)},
        ]
        for t, info in enumerate(infos):
            buffer.append((np.array([t]), 0, 0.0, 1.0, np.array([t + 1]), info))
        assert experiences.same(
            buffer[0][5],
            {"n": 1.0, "f": np.float32(2), "deep": {"a": np.arange(3), "b": {"c": True}}},
        )
        assert experiences.same(buffer[1][5], {"n": 1.5, "deep": {"a": np.arange(3) + 1}})
        assert experiences.same(buffer[2][5], {"f": np.float32(1)})
        assert type(buffer[0][5]["deep"]["b"]["c"]) is bool


def appended(infos):
    """What comes back of these infos."""
    with nnabla_rl.ReplayBuffer() as buffer:
        for t, info in enumerate(infos):
            buffer.append((np.array([t]), 0, 0.0, 1.0, np.array([t + 1]), info))
        return [one[5] for one in buffer]


@pytest.mark.parametrize(
    ("infos", "expected"),
    [
        ([np.arange(3.0), np.ones(3)], [np.arange(3.0), np.ones(3)]),
        ([3, 4.5, np.float32(2)], [3.0, 4.5, 2.0]),
        ([np.arange(3), {"a": 1}, None, "text", np.arange(2)], [np.arange(3), {}, {}, {}, {}]),
        ([{}, np.arange(3)], [{}, {}]),
        ([None, {"a": 1}], [{}, {}]),
        ([{"a": 1.0}, 7, None], [{"a": 1.0}, {}, {}]),
        ([np.array(["text"]), [1, 2]], [{}, {}]),
    ],
)
def test_an_info_that_is_no_dict_is_stored_if_it_is_numbers_like_the_first(
    experiences, infos, expected
):
    assert experiences.same(appended(infos), expected)


def test_entries_after_the_info_are_left_out(experiences):
    with nnabla_rl.ReplayBuffer() as buffer:
        buffer.append((np.zeros(1), 0, 0.0, 1.0, np.ones(1), {"a": 1.0}, "reset"))
        buffer.append((np.ones(1), 0, 0.0, 1.0, np.zeros(1)))
        assert experiences.same(buffer[0][5:], ({"a": 1.0},))
        assert buffer[1][5:] == ({},)
