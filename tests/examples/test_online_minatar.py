"""A training that is killed goes on with its network and its store, and learns."""

import mmreplay

RANDOM = 0.5  # points an episode


def test_a_killed_training_goes_on_and_learns(killed_training):
    folder, result = killed_training
    assert result["killed_at"] >= 2_000
    assert [step for step, _ in result["curve"]] == list(range(300, 4_801, 300))
    assert result["return"] > 2 * RANDOM
    assert len(mmreplay.open(folder / "store.zarr")) == result["stored"]
    # Steps after the last checkpoint are in the store, and were done again after the kill.
    assert 4_800 <= result["stored"] <= 4_800 + 2 * 300


def test_priorities_are_those_of_the_errors(killed_training):
    folder, _ = killed_training
    with mmreplay.PrioritizedReplayBuffer(folder / "store.zarr", stack=None) as buffer:
        priorities = buffer.priorities(buffer.ids)
    assert len(set(priorities.tolist())) > 1_000
