"""What is finite, of everything that a writer takes; what is no float is not looked at."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from mmreplay import Field, LazyFrames, SchemaError
from mmreplay.schema import Schema
from mmreplay.writing.finite_values import FiniteValues

INF, NAN = np.inf, np.nan
FLOATS = Schema.make(
    {"pos": Field((2,), "float32"), "image": Field((2, 2), "uint8")},
    Field((), "float64"),
    {"x": Field((2,), "float16"), "n": Field((), "int32")},
)
INTEGERS = Schema.make(Field((2,), "int16"), Field((), "int8"), reward_dtype="float64")


def values(schema=FLOATS, *, many=False):
    return FiniteValues(schema, "store.zarr", many=many)


def step(**changes):
    frames = {"pos": np.zeros(2, "float32"), "image": np.zeros((2, 2), "uint8")}
    given = {"action": 0.5, "reward": 1.0, "frames": frames, "extras": {"x": [0, 0], "n": 1}}
    return given | changes


def test_what_is_finite_passes():
    values().check_step(**step())
    values().check_frames(step()["frames"])


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("reward", lambda odd: {"reward": odd}),
        ("action", lambda odd: {"action": np.float64(odd)}),
        ("x", lambda odd: {"extras": {"x": [0.0, odd], "n": 1}}),
        ("frame['pos']", lambda odd: {"frames": {"pos": np.array([0, odd]), "image": None}}),
        (
            "frame['pos']",
            lambda odd: {"frames": {"pos": LazyFrames([np.zeros(2), np.array([0, odd])])}},
        ),
    ],
)
def test_a_value_that_is_not_is_named(odd, name, change):
    with pytest.raises(SchemaError) as caught:
        values().check_step(**step(**change(odd)))
    assert str(caught.value).startswith(f"store.zarr: {name}: expected finite numbers, found {odd}")


MASKED = [np.ma.masked, np.ma.array(1.0, mask=True), np.ma.array(1, mask=True)]


@pytest.mark.parametrize("odd", MASKED, ids=["masked", "float", "int"])
def test_a_masked_number_is_none(odd):
    for name in ("reward", "action"):
        with pytest.raises(SchemaError, match=f"{name}: expected finite numbers, found nan"):
            values().check_step(**step(**{name: odd}))


def test_an_array_may_have_a_mask_with_nothing_under_it():
    whole = np.ma.array(np.zeros(2, "float32"), mask=[False, False])
    values().check_step(**step(reward=np.ma.array(1.0), extras={"x": whole, "n": 1}))
    with pytest.raises(SchemaError, match=r"x: expected finite numbers, found nan, at \[1\]"):
        values().check_step(
            **step(extras={"x": np.ma.array(whole.data, mask=[False, True]), "n": 1})
        )


def test_only_the_newest_frame_of_a_stack_counts():
    odd = LazyFrames([np.full(2, NAN), np.zeros(2)])
    values().check_frames({"pos": odd})


@pytest.mark.parametrize("reward", [1e39, -1e39, (2 - 2**-24) * 2.0**127, Decimal("1e39")])
def test_a_reward_that_rounds_to_infinity_is_refused(reward):
    with pytest.raises(SchemaError, match="infinite as a float32"):
        values().check_step(**step(reward=reward))
    values(INTEGERS).check_step(0, reward, [1, 2], {})


def test_the_largest_reward_that_rounds_to_a_number_passes():
    largest = np.nextafter((2 - 2**-24) * 2.0**127, 0)
    assert np.isfinite(np.float32(largest))
    values().check_step(**step(reward=largest))


@pytest.mark.parametrize(
    "reward", [True, 3, Fraction(1, 3), np.int8(3), "no number", None, [[1], 2]]
)
def test_what_is_no_float_is_left_to_the_writer(reward):
    values().check_step(**step(reward=reward))
    values(INTEGERS).check_step(np.nan, 1.0, np.array([NAN, 0]), {})  # it does not fit its field


@pytest.mark.parametrize("frames", [None, 3, {"image": 3}])
def test_frames_of_another_kind_are_left_to_the_writer(frames):
    values().check_frames(frames)


def many(**changes):
    frames = {"pos": np.zeros((3, 2)), "image": np.zeros((3, 2, 2), "uint8")}
    extras = {"x": np.zeros((3, 2)), "n": [1, 2, 3]}
    return {
        "action": np.zeros(3),
        "reward": np.zeros(3),
        "frames": frames,
        "extras": extras,
    } | changes


def test_of_many_environments_the_first_that_is_odd_is_named():
    odd = np.zeros((3, 2))
    odd[1, 1] = odd[2, 0] = NAN
    frames = {"pos": odd, "image": None}
    with pytest.raises(
        SchemaError, match=r"frames\['pos'\] of environment 1: .* found nan, at \[1\];"
    ):
        values(many=True).check_step(**many(frames=frames))
    with pytest.raises(SchemaError, match=r"rewards of environment 2: .* found inf;"):
        values(many=True).check_step(**many(reward=[0, 1, INF]))
    with pytest.raises(SchemaError, match=r"x of environment 0: "):
        values(many=True).check_step(**many(extras={"x": [[INF, 0]] * 3, "n": 1}))


def test_what_is_not_of_many_environments_is_left_to_the_writer():
    values(many=True).check_step(**many(reward=NAN, action=None, frames=None))
    values(many=True).check_step(**many(frames={"pos": NAN}))
    values(many=True).check_frames({"pos": np.zeros(2)}, np.array([True, False, True]))


def test_environments_that_are_left_out_may_have_anything():
    chosen = np.array([True, False, True])
    odd = {"reward": np.array([0, NAN, 0]), "action": np.array([0, INF, 0])}
    values(many=True).check_step(**many(**odd), chosen=chosen)
    with pytest.raises(SchemaError, match="of environment 1"):
        values(many=True).check_step(**many(**odd), chosen=~chosen)


def test_stacks_of_many_environments():
    sound = LazyFrames([np.zeros(2), np.zeros(2)])
    odd = LazyFrames([np.zeros(2), np.array([NAN, 0])])
    frames = {"pos": [sound, odd, sound], "image": None}
    with pytest.raises(SchemaError, match="of environment 1"):
        values(many=True).check_frames(frames)
    values(many=True).check_frames(frames, np.array([True, False, True]))
