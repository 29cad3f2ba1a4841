"""Soft actor-critic learns from vector environments that reset themselves."""


def test_it_learns_to_swing_up(result_of):
    result = result_of("sac_pendulum.py", "--steps", 4_000)
    assert result["return"] > result["untrained"] + 400
    # Episodes of 200 steps in each of four environments, without the steps that only reset.
    assert result["episodes"] == 20
