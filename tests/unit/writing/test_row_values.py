"""Values that fit no field are refused, and leave no trace."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    SchemaError,
)
from tests.support.writers import assert_store_matches

pytestmark = pytest.mark.usefixtures("quick_disk")

FRAME = np.zeros(3, np.uint8)


@pytest.fixture
def running(make, story):
    """A writer in the middle of an episode, with an extra column."""
    writer = make(extras={"x": Field((), "int8")})
    story.play(writer, 3)
    return writer


def test_a_step_that_does_not_fit_is_refused_and_leaves_no_trace(running, story):
    for arguments, match in (
        ((1, 1.0, np.zeros(4, np.uint8)), r"frame: expected shape \(3,\), found \(4,\)"),
        ((1, 1.0, np.zeros(3, np.int16)), "frame: expected dtype uint8, found int16"),
        ((1, 1.0, np.full(3, 1.5)), r"must lie in \[0, 1\]"),
        ((1, 1.0, {"a": FRAME}), "frame"),
        ((1, 1.0, None), "frame"),
        ((1.5, 1.0, FRAME), "action"),
        (("x", 1.0, FRAME), "action"),
        ((None, 1.0, FRAME), "action"),
        ((1 << 63, 1.0, FRAME), "action"),
        ((np.array([1]), 1.0, FRAME), "action"),
        ((1, "x", FRAME), "reward"),
        ((1, None, FRAME), "reward"),
        ((1, [1.0], FRAME), "reward"),
        ((1, np.zeros(2), FRAME), "reward"),
    ):
        with pytest.raises(SchemaError, match=match):
            running.step(*arguments, x=5)
        assert running.rows == 3
    assert_store_matches(story, running)
    story.play(running, 10, reset=False)
    story.reset(running)
    running.close()
    assert_store_matches(story, running)


def test_extras_that_do_not_fit_are_refused_and_leave_no_trace(running, story):
    for extras, match in (
        ({}, r"extras: expected \['x'\], found none"),
        ({"x": 1, "y": 1}, r"extras: expected \['x'\], found \['x', 'y'\]"),
        ({"y": 1}, r"extras: expected \['x'\], found \['y'\]"),
        ({"x": 300}, "x: expected dtype int8"),
        ({"x": 1.5}, "x: expected dtype int8"),
        ({"x": [1]}, r"x: expected shape \(\), found \(1,\)"),
        ({"x": "a"}, "x: "),
        ({"x": None}, "x: "),
    ):
        with pytest.raises(SchemaError, match=match):
            running.step(1, 1.0, FRAME, life_lost=True, **extras)
        assert_store_matches(story, running)
        story.play(running, 2, reset=False)
    assert_store_matches(story, running)


def test_extras_that_were_not_declared_are_refused(make, story):
    writer = make()
    story.play(writer, 1)
    with pytest.raises(SchemaError, match=r"extras: expected none, found \['x'\]"):
        writer.step(1, 1.0, FRAME, x=1)
    assert_store_matches(story, writer)


def test_a_vector_action_that_does_not_fit_is_refused(make, story):
    writer = make(action=Field((2,), "float32"))
    story.play(writer, 1)
    for action in (1.0, [1.0], [[1.0, 2.0]], ["a", "b"], [[1], [1, 2]], None):
        with pytest.raises(SchemaError, match="action"):
            writer.step(action, 0.0, FRAME)
        assert_store_matches(story, writer)
    writer.step([1, 2], 0.0, FRAME)
    writer.step(np.array([0.5, 2.0]), 0.0, FRAME)
    with mmreplay.open(writer.path) as store:
        assert store.actions[1:3].tolist() == [[1, 2], [0.5, 2]]


def test_a_reset_that_does_not_fit_changes_nothing(running, story):
    for frame in (np.zeros(4, "u1"), np.zeros(3, "i2"), None, "abc", {"frame": FRAME}):
        with pytest.raises(SchemaError, match="frame"):
            running.reset(frame)
        assert running.running
        story.play(running, 1, reset=False)
        assert_store_matches(story, running)


def test_a_dict_frame_needs_all_its_keys_and_no_other(make, story):
    writer = make(frame={"a": Field((3,), "uint8", "raw"), "b": Field((), "float32", "raw")})
    story.play(writer, 3)
    good = {"a": FRAME, "b": np.float32(1)}
    for wrong in ({}, {"a": FRAME}, good | {"c": 1}, FRAME, None, [FRAME, 1.0]):
        with pytest.raises(SchemaError, match=r"frame: expected a dict with the keys \['a', 'b'\]"):
            writer.step(1, 1.0, wrong)
        with pytest.raises(SchemaError, match=r"frame: expected a dict with the keys"):
            writer.reset(wrong)
    with pytest.raises(SchemaError, match=r"frame\['b'\]: expected shape \(\), found \(2,\)"):
        writer.step(1, 1.0, good | {"b": [1.0, 2.0]})
    assert_store_matches(story, writer)
    story.play(writer, 1, reset=False)
    assert_store_matches(story, writer)
