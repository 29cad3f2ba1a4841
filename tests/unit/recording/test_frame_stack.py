"""FrameStack: gymnasium's stacks as LazyFrames, and a store of single frames from them."""

import copy

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    TimeLimit,
    TransformObservation,
)
from gymnasium.wrappers.vector import DtypeObservation

import mmreplay
from mmreplay import Field, FrameStack, LazyFrames, SchemaError
from mmreplay.writing.env_fields import env_fields


class SpacesEnv(gymnasium.Env):
    """Samples from the space it is given; episodes of five steps."""

    def __init__(self, observation_space):
        self.observation_space = copy.deepcopy(observation_space)  # with a generator of its own
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {"t": 0}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, {"t": self.t}


class OneScreen(gymnasium.Env):
    """Draws everything into one array, as emulators do."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.screen = np.zeros(2, "uint8")

    def reset(self, *, seed=None, options=None):
        self.screen[:] = 1
        return self.screen, {}

    def step(self, action):
        self.screen += 1
        return self.screen, 0.0, False, False, {}


NUMERIC = [
    spaces.Box(0, 255, (4, 5), np.uint8),
    spaces.Box(-1, 1, (4, 5, 3), np.float32),
    spaces.Box(np.array([-1, 0], "float32"), np.array([2, np.inf], "float32")),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Discrete(4),
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 2]),
    spaces.MultiBinary((2, 3)),
]
NESTED = spaces.Dict(
    {
        "camera": spaces.Dict({"gray": spaces.Box(0, 255, (4, 5), np.uint8)}),
        "joints": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(5)]),
    }
)


def same(one, other):
    """Whether two observations have the same structure and the same numbers."""
    if isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in other)
    if isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    found = np.asarray(one)
    return (
        isinstance(one, LazyFrames) and found.dtype == other.dtype and np.array_equal(found, other)
    )


def arrays(observation):
    if isinstance(observation, dict):
        return {key: arrays(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(arrays, observation))
    return np.asarray(observation)


def episode(env, seed=3):
    observation, info = env.reset(seed=seed)
    yield observation, info
    over = False
    while not over:
        observation, _, over, _, info = env.step(0)
        yield observation, info


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("space", [*NUMERIC, NESTED], ids=str)
def test_observations_equal_those_of_gymnasiums_wrapper(space, k, padding):
    ours = FrameStack(SpacesEnv(space), k, padding=padding)
    theirs = FrameStackObservation(SpacesEnv(space), k, padding_type=padding)
    if padding == "reset" or not isinstance(space, spaces.Discrete):
        assert ours.observation_space == theirs.observation_space
    for (one, info), (other, expected) in zip(episode(ours), episode(theirs), strict=True):
        if space == spaces.Discrete(4, start=-1) and padding == "zero":
            # Gymnasium pads with the smallest value, a store with zeros.
            shown = min(info["t"] + 1, k)
            assert np.asarray(one)[k - shown :].tolist() == other[k - shown :].tolist()
            assert not np.asarray(one)[: k - shown].any()
        else:
            assert same(one, other)
        assert ours.observation_space.contains(arrays(one))
        assert info == expected


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("space", NUMERIC, ids=str)
def test_with_the_stack_axis_last_the_space_is_that_of_the_observations(space, padding):
    env = FrameStack(SpacesEnv(space), 3, stack_axis=-1, padding=padding)
    front = FrameStack(SpacesEnv(space), 3, padding=padding)
    for (one, _), (other, _) in zip(episode(env), episode(front), strict=True):
        array = np.asarray(one)
        assert env.observation_space.contains(array)
        assert array.shape == env.observation_space.shape
        frames = np.asarray(other)
        expected = np.concatenate(frames, -1) if frames.ndim == 4 else np.moveaxis(frames, 0, -1)
        assert np.array_equal(array, expected)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(3, 9, (2,)),
        spaces.Box(-9, -3, (2,)),
        spaces.Discrete(3, start=2),
        spaces.Discrete(3, start=-7),
        spaces.MultiDiscrete([2, 3], start=[4, -9]),
    ],
    ids=str,
)
def test_zero_padding_lies_in_the_space_also_where_zero_is_no_frame(space):
    env = FrameStack(SpacesEnv(space), 3, padding="zero")
    for observation, info in episode(env):
        array = np.asarray(observation)
        assert env.observation_space.contains(array)
        assert not array[: max(2 - info["t"], 0)].any()
    assert env.frame_space == space


def test_observations_do_not_change_when_the_environment_reuses_its_arrays():
    env = FrameStack(OneScreen(), 2)
    seen = [env.reset()[0], *(env.step(0)[0] for _ in range(3))]
    assert [np.asarray(one)[:, 0].tolist() for one in seen] == [[1, 1], [1, 2], [2, 3], [3, 4]]
    assert seen[2].frame(-1) is seen[3].frame(0)
    with pytest.raises(ValueError, match="read-only"):
        seen[3][0][0] = 9


def test_a_returned_dict_belongs_to_the_caller():
    env = FrameStack(SpacesEnv(NESTED), 2)
    observation, _ = env.reset(seed=0)
    first = observation["camera"].pop("gray")
    observation.clear()
    observation = env.step(0)[0]
    assert observation["camera"]["gray"].frame(0) is first.frame(-1)


def test_settings_and_environments_without_a_stack_are_refused():
    env = OneScreen()
    for settings, message in (
        ({"stack": 0}, "stack: expected"),
        ({"stack_axis": 1}, "stack_axis: expected"),
        ({"padding": "edge"}, "padding: expected"),
    ):
        with pytest.raises(SchemaError, match=message):
            FrameStack(env, **settings)
    with pytest.raises(SchemaError, match=r"found a vector .* keeps the newest frames"):
        FrameStack(SyncVectorEnv([OneScreen]))
    with pytest.raises(SchemaError, match="observation_space: Text has no"):
        FrameStack(SpacesEnv(spaces.Dict({"word": spaces.Text(3)})))
    with pytest.raises(SchemaError, match="before reset"):
        FrameStack(env).step(0)


def test_an_observation_outside_of_its_space_is_refused():
    env = OneScreen()
    stacked = FrameStack(env)
    env.screen = np.zeros(3, "uint8")
    with pytest.raises(SchemaError, match=r"expected \(2,\) uint8, .* found \(3,\)"):
        stacked.reset()
    env.screen = np.full(2, 0.5)
    stacked.env = TransformObservation(env, lambda one: one + 0.5, env.observation_space)
    with pytest.raises(SchemaError, match=r"found .* float64"):
        stacked.reset()


def play(env, writer, steps, seed=0):
    """The observation before each step of a loop that hands all of them to the writer."""
    seen = []
    observation, _ = env.reset(seed=seed)
    writer.reset(observation)
    for _ in range(steps):
        seen.append(observation)
        observation, reward, terminated, truncated, _ = env.step(0)
        writer.step(0, reward, observation, terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset()
            writer.reset(observation)
    return seen


def test_a_store_of_its_observations_holds_single_frames(tmp_path):
    env = TimeLimit(FrameStack(SpacesEnv(NUMERIC[0]), 3, padding="zero"), 4)
    fields = env_fields(env)
    assert fields.frame == Field((4, 5), "uint8")
    assert fields.padding == "zero"
    with mmreplay.create(tmp_path / "s", env=env) as writer:
        seen = play(env, writer, 10)
    with mmreplay.open(tmp_path / "s") as store:
        assert store.padding == "zero"  # so that stacks are those that the environment showed
        assert np.array_equal(store.frames[:], [one[-1] for one in seen])
        found = store.transitions([0, 1, 2], stack=3).observation
        assert np.array_equal(found, [np.asarray(one) for one in seen[:3]])
    # The store's own padding wins when it is opened again, and a given one over the environment's.
    other = FrameStack(SpacesEnv(NUMERIC[0]), padding="reset")
    with mmreplay.create(tmp_path / "s", env=other, append=True) as writer:
        assert writer.metadata["padding"] == "zero"
    with mmreplay.create(tmp_path / "t", env=env, padding="reset") as writer:
        assert writer.metadata["padding"] == "reset"


def test_nested_observations_are_stacked_and_stored_part_by_part(tmp_path):
    result = mmreplay.record(
        lambda: FrameStack(SpacesEnv(NESTED), 3), tmp_path / "s", 20, policy=Constant, seed=1
    )
    assert result.steps == 20
    env = SpacesEnv(NESTED)
    observation, _ = env.reset(seed=1)
    with mmreplay.open(tmp_path / "s") as store:
        assert store.frames["camera.gray"].shape[1:] == (4, 5)
        assert store.frames["joints.1"][0] == observation["joints"][1]
        for t in range(1, 5):
            observation = env.step(0)[0]
            assert np.array_equal(store.frames["camera.gray"][t], observation["camera"]["gray"])


class Constant:
    def __init__(self, observation_space, action_space, seed):
        pass

    def __call__(self, observation):
        return 0


def test_a_batched_policy_sees_joined_arrays(tmp_path):
    shapes = set()

    def policy(observations):
        shapes.add(observations.shape)
        return np.zeros(len(observations), "int64")

    policy.batched = True
    mmreplay.record(FrameStack(OneScreen(), 3), tmp_path / "s", 5, policy=policy)
    assert shapes == {(1, 3, 2)}


def test_observations_changed_by_an_outer_wrapper_are_stored_as_they_are():
    stacked = FrameStack(OneScreen(), 3)
    space = spaces.Box(0, 255, (6,), np.uint8)
    flat = TransformObservation(stacked, lambda one: np.asarray(one).reshape(6), space)
    fields = env_fields(flat)
    assert fields.frame == Field((6,), "uint8")
    assert fields.padding is None


def stacked():
    return TimeLimit(FrameStackObservation(OneScreen(), 3), 9)


def joined():
    """Of which a vector environment makes whole arrays."""
    return TimeLimit(FrameStack(OneScreen(), 3), 9)


@pytest.mark.parametrize(
    "env",
    [
        stacked,
        lambda: FrameStack(stacked(), 2),
        lambda: FlattenObservation(stacked()),
        lambda: DtypeObservation(
            SyncVectorEnv([stacked] * 2, autoreset_mode=AutoresetMode.DISABLED), np.float32
        ),
        lambda: SyncVectorEnv([joined] * 2, autoreset_mode=AutoresetMode.DISABLED),
    ],
    ids=["wrapped", "stacked twice", "flattened", "vector", "ours in a vector"],
)
def test_stacks_stored_whole_give_a_warning(tmp_path, env):
    made = env()
    with pytest.warns(UserWarning, match=r"stacks of 3 frames, .* keep the newest frames itself"):
        mmreplay.ReplayBuffer(tmp_path / "buffer", env=made).close()
    made.close()
    with pytest.warns(UserWarning, match="sample with stack=3"):
        mmreplay.record(env, tmp_path / "recorded", 4)


def test_newest_frames_taken_out_of_stacks_give_no_warning(tmp_path):
    space = OneScreen.observation_space
    env = TransformObservation(stacked(), lambda stack: stack[-1], space)
    mmreplay.record(env, tmp_path / "newest", 4)
    mmreplay.record(FrameStackObservation(OneScreen(), 1), tmp_path / "of one", 4)
    mmreplay.record(FrameStack(OneScreen(), 3), tmp_path / "ours", 4)
    # Whoever names the field of a frame takes the newest one himself.
    mmreplay.create(tmp_path / "own", frame=Field((2,)), env=stacked()).close()


def test_an_outer_wrapper_that_skips_frames_is_noticed(tmp_path):
    class Skip(gymnasium.Wrapper):
        def step(self, action):
            self.env.step(action)
            return self.env.step(action)

    env = Skip(FrameStack(OneScreen(), 3))
    with mmreplay.create(tmp_path / "s", env=env) as writer:
        writer.reset(env.reset()[0])
        with pytest.raises(SchemaError, match="wrappers that skip or repeat steps below it"):
            writer.step(0, 0.0, env.step(0)[0])


def test_the_wrapper_can_be_made_from_its_spec():
    env = FrameStack(gymnasium.make("CartPole-v1"), 3, stack_axis=-1, padding="zero")
    again = gymnasium.make(env.spec)
    assert isinstance(again, FrameStack)
    assert (again.stack, again.stack_axis, again.padding) == (3, -1, "zero")
