"""Spaces as fields, observations as frames: nothing changes its value on the way."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

import mmreplay
from mmreplay import Field, SchemaError
from mmreplay.writing.env_fields import env_fields


class SpacesEnv(gymnasium.Env):
    """Has the spaces it is given, and samples from them."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def fields_of(observation_space, action_space=None):
    return env_fields(SpacesEnv(observation_space, action_space))


@pytest.mark.parametrize(
    ("space", "field"),
    [
        (spaces.Box(0, 255, (84, 84), np.uint8), Field((84, 84), "uint8")),
        (spaces.Box(-1, 1, (3,), np.float64), Field((3,), "float64")),
        (spaces.Box(-1, 1, (), np.float32), Field((), "float32")),
        (spaces.Discrete(4), Field((), "int64")),
        (spaces.Discrete(4, start=-2), Field((), "int64")),
        (spaces.MultiDiscrete([3, 2]), Field((2,), "int64")),
        (spaces.MultiDiscrete(np.array([[3, 2], [2, 2]])), Field((2, 2), "int64")),
        (spaces.MultiBinary(5), Field((5,), "int8")),
        (spaces.MultiBinary((2, 3)), Field((2, 3), "int8")),
    ],
)
def test_a_numeric_space_is_one_field(space, field):
    fields = fields_of(space, space)
    assert fields.frame == field
    assert fields.action == field
    assert fields.lanes is None
    sample = space.sample()
    frame = fields.to_frame(sample)
    assert frame.dtype == field.dtype
    assert frame.shape == field.shape
    assert np.array_equal(frame, sample)


def test_a_nested_dict_is_flattened_with_the_way_as_its_name():
    space = spaces.Dict(
        {
            "camera": spaces.Dict({"rgb": spaces.Box(0, 255, (4, 4, 3), np.uint8)}),
            "pose": spaces.Box(-1, 1, (7,)),
            "touch": spaces.Tuple([spaces.MultiBinary(2), spaces.Discrete(3)]),
        }
    )
    fields = fields_of(space)
    assert fields.frame == {
        "camera.rgb": Field((4, 4, 3), "uint8"),
        "pose": Field((7,), "float32"),
        "touch.0": Field((2,), "int8"),
        "touch.1": Field((), "int64"),
    }
    sample = space.sample()
    frame = fields.to_frame(sample)
    assert np.array_equal(frame["camera.rgb"], sample["camera"]["rgb"])
    assert frame["touch.1"] == sample["touch"][1]


def test_invalid_characters_in_a_key_are_replaced():
    fields = fields_of(spaces.Dict({"agent pos": spaces.Discrete(3), "a/b": spaces.Discrete(2)}))
    assert set(fields.frame) == {"agent_pos", "a.b"}
    assert fields.to_frame({"agent pos": 1, "a/b": 0}) == {"agent_pos": 1, "a.b": 0}


def test_two_keys_of_one_name_are_refused():
    space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a.b": spaces.Discrete(2)})
    with pytest.raises(SchemaError, match=r"both be stored as 'a\.b'"):
        fields_of(space)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), r"observation_space: Text has no fixed"),
        (spaces.Sequence(spaces.Discrete(2)), r"observation_space: Sequence has no"),
        (spaces.Dict({"a": spaces.Text(5)}), r"observation_space\['a'\]: Text has"),
        (spaces.Dict({}), r"observation_space: it is empty"),
        (spaces.Box(0, 1, (0,)), r"observation_space: shape"),
    ],
)
def test_an_observation_without_a_fixed_shape_is_refused(space, message):
    with pytest.raises(SchemaError, match=message):
        fields_of(space)


def test_an_action_of_several_arrays_is_refused():
    with pytest.raises(SchemaError, match="TransformAction"):
        fields_of(spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)}))


def test_a_vector_environment_has_the_fields_of_one_of_its_environments_and_lanes():
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Dict({"c": spaces.MultiBinary(2)})})
    env = SyncVectorEnv([lambda: SpacesEnv(space)] * 3)
    fields = env_fields(env)
    assert fields.lanes == 3
    assert fields.frame == {"a": Field((), "int64"), "b.c": Field((2,), "int8")}
    observations, _ = env.reset(seed=0)
    frames: Any = fields.to_frame(observations)
    assert frames["b.c"].shape == (3, 2)
    assert np.array_equal(frames["b.c"], observations["b"]["c"])


def test_floats_and_whole_numbers_of_another_width_are_cast_to_the_space():
    fields = fields_of(spaces.Box(-1, 1, (2,), np.float32))
    assert fields.to_frame(np.array([0.5, 0.25])).dtype == np.float32
    assert fields.to_frame([0.5, 0.25]).dtype == np.float32
    assert fields.to_frame(np.array([1, 0])).dtype == np.float32
    fields = fields_of(spaces.Box(0, 255, (2,), np.uint8))
    assert fields.to_frame(np.array([3, 255])).dtype == np.uint8


def test_values_that_a_cast_would_change_are_left_to_the_writer():
    fields = fields_of(spaces.Box(0, 255, (2,), np.uint8))
    assert fields.to_frame(np.array([3, 256])).dtype == np.int64
    assert fields.to_frame(np.array([0.5, 200.7])).dtype == np.float64


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize(
    "make", [mmreplay.create, mmreplay.ReplayBuffer, mmreplay.PrioritizedReplayBuffer]
)
def test_a_warning_points_at_the_line_of_the_caller(tmp_path, make, mode):
    def stacked():
        return FrameStackObservation(SpacesEnv(spaces.Box(0, 1, (2,))), 3)

    env = SyncVectorEnv([stacked] * 2, autoreset_mode=mode)
    with pytest.warns(UserWarning, match="create it with") as told:
        make(tmp_path / "store.zarr", env=env).close()
    assert {one.filename for one in told} == {__file__}
    assert len(told) == 1


def test_an_observation_without_a_part_of_its_space_is_refused():
    fields = fields_of(spaces.Dict({"a": spaces.Discrete(3)}))
    with pytest.raises(SchemaError, match="its space has a part 'a'"):
        fields.to_frame({"b": 1})


def test_vector_environments_of_other_libraries_are_refused(tmp_path):
    class VecEnv:  # what stable-baselines3 calls one; its spaces are those of one environment
        num_envs = 2
        observation_space = spaces.Box(0, 1, (2,))
        action_space = spaces.Discrete(2)

    with pytest.raises(SchemaError, match="of another library; for stable-baselines3"):
        mmreplay.create(tmp_path / "store.zarr", env=VecEnv())
    assert not (tmp_path / "store.zarr").exists()


@pytest.mark.parametrize("n", [None, 2])
def test_nested_observations_given_as_they_are_are_refused_with_what_takes_them_apart(tmp_path, n):
    space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(3)}), "c": spaces.Discrete(3)})
    env = SpacesEnv(space) if n is None else SyncVectorEnv([lambda: SpacesEnv(space)] * n)
    with (
        mmreplay.ReplayBuffer(tmp_path / "store.zarr", env=env) as buffer,
        pytest.raises(SchemaError, match=r"keys \['a.b', 'c'\], found \['a', 'c'\]; RecordExp"),
    ):
        buffer.reset(env.reset()[0])
