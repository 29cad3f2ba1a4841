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
        ([np.longdouble(1), 2.0], [{}, {}]),
        ([np.zeros((1,) * 9), 1], [{}, {}]),
        ([10**400, 1], [{}, {}]),
        ([2.0, 10**400], [2.0, {}]),
    ],
)
def test_an_info_that_is_no_dict_is_stored_if_it_is_numbers_like_the_first(
    experiences, infos, expected
):
    assert experiences.same(appended(infos), expected)


@pytest.mark.parametrize(
    "other",
    [
        "a",
        np.zeros(3),
        {"y": 1},
        np.zeros((2, 2)),
        np.array([1 + 2j]),
        [[1], [1, 2]],
        object(),
        pytest.param(10**400, id="a very large number"),
        np.datetime64("2020-01-01"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_left_out_of_its_step(experiences, other):
    found = appended([{"x": 1, "y": np.ones(2)}, {"x": other, "y": other}, {"x": 2}])
    assert experiences.same(found, [{"x": 1.0, "y": np.ones(2)}, {}, {"x": 2.0}])


def test_a_first_info_with_values_that_no_column_can_hold_is_accepted(experiences):
    info = {"x": 1.0, "large": np.longdouble(1), "deep": {"axes": np.zeros((1,) * 9)}}
    info["itself"] = info
    assert experiences.same(appended([info, {"x": 2.0, "large": 3}]), [{"x": 1.0}, {"x": 2.0}])


def test_long_keys_that_begin_alike_have_columns_of_their_own(experiences):
    info = {"k" * 200 + str(number): float(number) for number in range(12)}
    assert experiences.same(appended([info]), [info])


def test_a_value_that_cannot_be_made_an_array_is_left_out(experiences):
    class Elsewhere:
        def __array__(self, *_, **__):
            raise RuntimeError("it lies on another device")

    found = appended([{"x": 1.0}, {"x": Elsewhere()}, {"TimeLimit.truncated": np.zeros(2)}])
    assert experiences.same(found, [{"x": 1.0}, {}, {}])
