"""Values of many environments: what fits comes back as stored, what does not is refused."""

import numpy as np
import pytest

from mmreplay import Field, LazyFrames, SchemaError
from mmreplay.schema import Schema
from mmreplay.writing.vector_values import VectorValues, has_stacks


@pytest.fixture
def values():
    """Of 3 environments."""
    return VectorValues(
        Schema.make(Field((2,)), Field((), "int32"), {"x": Field((2,), "float32")}), 3
    )


def test_flags_are_bools_whatever_they_are_given_as(values):
    odd = np.array([0, 2, 255], np.uint8).view(bool)
    for given in (odd, [0, 1, 2], [0.0, 0.5, -1], np.array([False, True, True])):
        assert values.flags("f", given).view(np.uint8).tolist() == [0, 1, 1]


def test_a_nan_is_refused_as_a_flag_only_where_it_counts(values):
    given, chosen = [0, np.nan, 1], np.array([True, False, True])
    with pytest.raises(SchemaError, match="f: expected bools, found NaN"):
        values.flags("f", given)
    assert values.flags("f", given, chosen)[chosen].tolist() == [False, True]


def test_extras_of_those_left_out_may_be_anything(values):
    chosen = np.array([True, False, True])
    out = values.extras({"x": [[1, 2], [1e300, 0], [3, 4]]}, chosen)
    assert out["extras/x"].tolist() == [[1, 2], [0, 0], [3, 4]]
    with pytest.raises(SchemaError, match="x: expected dtype float32"):
        values.extras({"x": [[1, 2], [1e300, 0], [3, 4]]}, None)
    assert not values.extras({"x": np.full((3, 2), 1e300)}, ~chosen & chosen)["extras/x"].any()


def test_the_shape_that_is_expected_is_said():
    values = VectorValues(Schema.make(Field((2,)), Field((1,), "float32")), 3)
    with pytest.raises(
        SchemaError, match=r"actions: expected .* shape \(3, 1\), found shape \(3,\)"
    ):
        values.actions(np.zeros(3))


def test_stacks_are_left_to_who_asks_for_them(values):
    frames = [np.zeros(2, "u1"), LazyFrames.first(np.ones(2, "u1"), 2), np.zeros(2, "u1")]
    assert has_stacks(frames)
    assert not has_stacks(frames[:1])
    assert values.frames(frames)["frames"] is frames
    asked = values.frames(frames, lambda given, path, field: (given, path, field.shape))
    assert asked["frames"] == (frames, "frames", (2,))
    with pytest.raises(SchemaError, match="frames: expected one for each of 3 environments"):
        values.frames(frames[1:])
