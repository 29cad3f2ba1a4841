"""DQN of stable-baselines3 trains the same with a buffer on disk as with its own, and learns."""


def test_both_buffers_give_the_same_training_which_learns(result_of):
    result = result_of("sb3_cartpole.py", "--steps", 3_000)
    assert result["same_bytes"]  # the example itself fails where they are not
    assert result["return"] > 100
