"""Chunks that begin with the state that was stored predict what those that begin with zeros cannot."""


def test_stored_latents_carry_the_cue_into_the_middle_of_an_episode(result_of):
    result = result_of("dreamer_chunks.py", "--steps", 5_000)
    assert result["error"] < 0.3
    assert result["error_from_zeros"] > 0.7
