"""From windows of tagged episodes a policy of chunks learns what one position does not tell."""


def test_chunks_reach_the_flag_and_single_positions_do_not(result_of):
    result = result_of("action_chunks.py", "--episodes", 40, "--updates", 800)
    assert result["selected"] == result["episodes"] / 2
    assert result["single_reached"] < 0.5
    assert result["reached"] > 0.8
    assert result["return"] > result["recorded"] - 10
