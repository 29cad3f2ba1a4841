"""Buffers of Stable-Baselines3 by their attributes; real ones are in tests/exchange."""

from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay import SchemaError, import_dataset
from tests.support.played_episodes import observed


def buffer(size=6, n_envs=2, steps=5, **more):
    """A buffer in which environment e saw e * 100 + t at step t; episodes of three steps."""
    rows = {
        name: np.zeros((size, n_envs, *shape), dtype)
        for name, shape, dtype in (
            ("observations", (1,), "f4"),
            ("next_observations", (1,), "f4"),
            ("actions", (1,), "i8"),
            ("rewards", (), "f4"),
            ("dones", (), "f4"),
            ("timeouts", (), "f4"),
        )
    }
    for t in range(steps):
        value = np.arange(n_envs) * 100 + t
        at = t % size
        rows["observations"][at, :, 0] = value
        rows["next_observations"][at, :, 0] = value + (0.5 if t % 3 == 2 else 1)
        rows["actions"][at, :, 0] = t
        rows["rewards"][at] = 1
        rows["dones"][at] = t % 3 == 2
        rows["timeouts"][at] = t % 6 == 2
    about = {"pos": steps % size, "full": steps >= size, "buffer_size": size, "n_envs": n_envs}
    return SimpleNamespace(**(rows | about | more))


def test_the_steps_of_each_environment_follow_one_another(tmp_path, quick_disk):
    made = import_dataset("stable_baselines3", buffer(), tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated, made.losses) == (10, 0, 4, ())
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert observed(store) == [
            *(0, 1, 2, 2.5, 3, 4, 5),
            *(100, 101, 102, 102.5, 103, 104, 105),
        ]
        assert store.actions.shape == (10,)


def test_a_full_buffer_begins_with_its_oldest_steps(tmp_path, quick_disk):
    made = import_dataset("stable_baselines3", buffer(n_envs=1, steps=8), tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (6, 1, 2)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert observed(store) == [2, 2.5, 3, 4, 5, 5.5, 6, 7, 8]


def test_observations_that_are_kept_once(tmp_path, quick_disk):
    given = buffer(n_envs=1, steps=9, optimize_memory_usage=True)
    given.observations[given.pos, :, 0] = 8.5  # as the buffer does with the newest one
    del given.next_observations
    given.handle_timeout_termination = False
    import_dataset("stable_baselines3", given, tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.transitions(store.ids, stack=None).action.tolist() == [4, 5, 6, 7, 8]
        assert store.trajectory(-1).observation[-1].tolist() == [8.5]


def test_another_object_is_refused(tmp_path):
    with pytest.raises(SchemaError, match=r"expected a ReplayBuffer .* found int without obs"):
        import_dataset("stable_baselines3", 3, tmp_path / "a.zarr")
