"""Buffers that Stable-Baselines3 filled, and files that it saved."""

import warnings

import gymnasium
import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, import_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv


@pytest.mark.parametrize("once", [False, True])
def test_transitions_are_those_of_the_buffer(tmp_path, quick_disk, once):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = DummyVecEnv([lambda: gymnasium.make("CartPole-v1", max_episode_steps=15)])
        kwargs = {"handle_timeout_termination": False} if once else {}
        model = stable_baselines3.DQN(
            "MlpPolicy",
            env,
            buffer_size=200,
            learning_starts=1000,
            seed=0,
            optimize_memory_usage=once,
            replay_buffer_kwargs=kwargs,
        )
        model.learn(330)
        model.save_replay_buffer(tmp_path / "buffer.pkl")
    buffer = model.replay_buffer
    made = import_dataset("stable_baselines3", buffer, tmp_path / "a.zarr")
    order = (np.arange(once, 200) + buffer.pos) % 200
    assert made.transitions == len(order)
    dones, timeouts = buffer.dones[order, 0] > 0, buffer.timeouts[order, 0] > 0
    assert made.terminated == (dones & ~timeouts).sum()
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        assert np.array_equal(batch.observation, buffer.observations[order, 0])
        after = buffer.observations[(order + 1) % 200, 0]
        after = after if once else buffer.next_observations[order, 0]
        assert np.array_equal(batch.next_observation, after)
        assert np.array_equal(batch.action, buffer.actions[order, 0, 0])
        assert np.array_equal(batch.reward, buffer.rewards[order, 0])
        assert np.array_equal(batch.non_terminal, ~dones | timeouts)
    with pytest.raises(FormatError, match="as pickles"):
        import_dataset("stable_baselines3", tmp_path / "buffer.pkl", tmp_path / "b.zarr")
