"""What is learned from a store alone is better than what was recorded."""

import gymnasium
import numpy as np

import mmreplay


def record(path, steps):
    """A paddle that follows the ball, but in one step of three."""
    import minatar.gym

    minatar.gym.register_envs()
    random = np.random.default_rng(0)
    env = mmreplay.RecordExperience(gymnasium.make("MinAtar/Breakout-v1"), path)
    observation, _ = env.reset(seed=0)
    for _ in range(steps):
        paddle, ball = (observation[:, :, channel].any(axis=0).argmax() for channel in (0, 1))
        action = 0 if paddle == ball else 1 if ball < paddle else 2
        if random.random() < 1 / 3:
            action = int(random.integers(3))
        observation, _, terminated, _, _ = env.step(action)
        if terminated:
            observation, _ = env.reset()
    env.close()


def test_both_policies_are_better_than_the_one_that_was_recorded(result_of, tmp_path):
    record(tmp_path / "store.zarr", 8_000)
    result = result_of("offline_minatar.py", tmp_path / "store.zarr", "--updates", 1_500)
    assert result["recorded_best"] > result["recorded"] > 2 * result["random"]
    assert result["cql"] > result["recorded"]
    assert result["clone"] > result["recorded"]
