"""`RecordExperience` around EnvPool's environments: the library itself, whose steps are checked.

EnvPool is an environment and no adapter; its tests run where the other frameworks are.
"""

import envpool
import numpy as np
import pytest

import mmreplay
from mmreplay import Field, RecordExperience, SchemaError, verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),
]

SEED, N = 5, 3


def pool(env_id, n=N, seed=SEED, **options):
    return envpool.make_gymnasium(env_id, num_envs=n, seed=seed, **options)


def actions_of(env, steps, n=N):
    """(steps, N, ...) that any number of environments may take."""
    rng = np.random.default_rng(0)
    space = env.single_action_space
    if space.shape:
        return rng.uniform(space.low, space.high, (steps, n, *space.shape)).astype(space.dtype)
    return rng.integers(space.n, size=(steps, n)).astype(space.dtype)


def told(env, actions):
    """Episodes by environment, put together from what the steps returned and nothing else.

    The step after an end is the reset, and its action is ignored: (observations, actions, rewards,
    terminated, truncated) each.
    """
    observations, _ = env.reset()
    out = [[([one.copy()], [], [], [])] for one in observations]
    over = np.zeros(len(observations), bool)
    for given in actions:
        observations, rewards, terminated, truncated, _ = env.step(given)
        for i in range(len(over)):
            if over[i]:
                out[i].append(([observations[i].copy()], [], [], []))
                continue
            shown, acted, gained, ends = out[i][-1]
            shown.append(observations[i].copy())
            acted.append(given[i])
            gained.append(rewards[i])
            ends.append((bool(terminated[i]), bool(truncated[i])))
        over = terminated | truncated
    return out


def stored(path, n=N):
    """The same of a store."""
    with mmreplay.open(path) as store:
        numbers = [
            [int(k) for k in np.flatnonzero(store.episodes["id"] % n == i)] for i in range(n)
        ]
        return [[store.trajectory(k) for k in of_one] for of_one in numbers]


def assert_episodes(found, expected):
    """Byte for byte; an episode that has no step yet is none."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        steps = [one for one in theirs if one[1]]
        assert [len(one) for one in mine] == [len(one[1]) for one in steps]
        for number, (one, (shown, acted, gained, ends)) in enumerate(zip(mine, steps, strict=True)):
            assert one.observation.tobytes() == np.stack(shown).tobytes()
            assert one.action.tobytes() == np.stack(acted).tobytes()
            assert one.reward.tobytes() == np.array(gained, np.float32).tobytes()
            terminated, truncated = ends[-1]
            is_last = number == len(steps) - 1
            assert one.terminated == terminated
            assert one.truncated == ((truncated or is_last) and not terminated)


def record(env, path, actions, **options):
    env = RecordExperience(env, path, flush_s=0, **options)
    said = [env.reset()] + [env.step(one) for one in actions]
    env.close()
    return said


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"max_episode_steps": 7}),
        ("Pendulum-v1", {"max_episode_steps": 9}),
        ("MountainCarContinuous-v0", {"max_episode_steps": 11}),
    ],
)
def test_episodes_are_those_of_environments_alone(env_id, options, tmp_path):
    """Environment i of a pool has the seed of the pool and i."""
    env = pool(env_id, **options)
    actions = actions_of(env, 80)
    record(env, tmp_path / "pool.zarr", actions)
    alone = [told(pool(env_id, 1, SEED + i, **options), actions[:, i : i + 1])[0] for i in range(N)]
    assert min(len(one) for one in alone) > 2
    assert_episodes(stored(tmp_path / "pool.zarr"), alone)
    assert verify(tmp_path / "pool.zarr").sound


def test_atari_frames_are_stored_once_and_lost_lives_known(tmp_path):
    options = {"stack_num": 1, "noop_max": 3, "episodic_life": False}
    env = pool("Breakout-v5", 2, **options)
    actions = actions_of(env, 150, 2)
    expected = told(pool("Breakout-v5", 2, **options), actions)
    path = tmp_path / "pool.zarr"
    record(env, path, actions, life_loss=True, extras={"lives": Field((), "int32")})
    with mmreplay.load(path) as data:
        assert data.store.schema.frames["frame"].shape == (84, 84)
        assert data.sample(4).observation.shape == (4, 4, 84, 84)
    found = stored(path, 2)
    assert sum(not flag for of_one in found for one in of_one for flag in one.non_terminal) > 1
    for mine, theirs in zip(found, expected, strict=True):
        for one, (shown, _, gained, _) in zip(mine, theirs, strict=False):
            assert one.observation.tobytes() == np.stack(shown)[:, 0].tobytes()
            assert one.reward.tobytes() == np.array(gained, np.float32).tobytes()
            lost = np.diff(one.extras["lives"]) < 0
            assert np.array_equal(one.non_terminal[1:-1] == 0, lost[:-1])


def test_stacks_of_the_pool_are_warned_of(tmp_path):
    with pytest.warns(UserWarning, match=r"stacks of 4 frames.*\(stack_num=1\)"):
        record(pool("Pong-v5", 2), tmp_path / "pool.zarr", actions_of(pool("Pong-v5", 2), 2, 2))


def test_a_pool_that_returns_some_of_its_environments_is_refused(tmp_path):
    env = pool("CartPole-v1", batch_size=2)
    with pytest.raises(SchemaError, match=r"only some of its environments.* batch_size equal to"):
        RecordExperience(env, tmp_path / "pool.zarr")
    assert not (tmp_path / "pool.zarr").exists()
