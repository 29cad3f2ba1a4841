"""What is learned from a store alone is better than what was recorded."""


def test_both_policies_are_better_than_the_one_that_was_recorded(killed_training, result_of):
    folder, _ = killed_training
    result = result_of("offline_minatar.py", folder / "store.zarr", "--updates", 800)
    assert result["recorded_best"] > result["recorded"] > result["random"]
    assert result["cql"] > result["recorded"]
    assert result["clone"] > result["recorded"]
