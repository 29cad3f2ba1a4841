"""From windows of a store a recurrent policy learns what single steps do not tell."""


def test_with_a_memory_the_pole_is_balanced_longer_than_without(result_of):
    result = result_of("recurrent_cartpole.py", "--steps", 4_000, "--updates", 300)
    assert result["recorded"] > 400
    assert result["memoryless"] < 100
    assert result["return"] > 200
