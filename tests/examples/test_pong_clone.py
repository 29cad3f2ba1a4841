"""A clone of a scripted policy, learned from recorded frames, plays Pong better than chance."""


def test_the_clone_loses_fewer_points_than_a_random_policy(result_of):
    short = ("--steps", 6_000, "--most", 500)
    result = result_of("pong_clone.py", *short)
    assert result["return"] > result["random"] + 4
