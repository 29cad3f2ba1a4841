"""What keras-gym takes from an environment: the number of frames, and actions."""

import gymnasium
import numpy as np
import pytest

from mmreplay.compat.spaces import Actions, num_frames
from mmreplay.errors import SchemaError
from mmreplay.schema import Field


def test_the_number_of_frames_is_found_below_wrappers():
    class Stacker(gymnasium.Wrapper):
        num_frames = 3

    inner = gymnasium.make("CartPole-v1")
    assert num_frames(inner) == 1
    assert num_frames(gymnasium.wrappers.TransformReward(Stacker(inner), float)) == 3


def test_discrete_actions_are_stored_as_they_are_and_handed_out_one_hot():
    actions = Actions(gymnasium.spaces.Discrete(3, start=-1))
    assert actions.field == Field((), "int64")
    assert [int(actions.taken(action)) for action in (-1, 0, 1)] == [-1, 0, 1]
    assert actions.given(np.array([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert actions.given(actions.none()).tolist() == [1, 0, 0]
    for wrong in (-2, 2, 0.5):
        with pytest.raises(SchemaError):
            actions.taken(wrong)


def test_actions_that_are_arrays_are_handed_out_as_they_are():
    actions = Actions(gymnasium.spaces.Box(-1, 1, (2,), np.float32))
    assert actions.taken([0.5, 1]).dtype == np.float32
    assert actions.given(np.ones((4, 2))).tolist() == [[1, 1]] * 4
    assert actions.none().tolist() == [0, 0]
