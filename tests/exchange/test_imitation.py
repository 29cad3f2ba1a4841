"""Trajectories that imitation saved; nothing of their infos is unpickled."""

import warnings

import numpy as np
import pytest

import mmreplay
from mmreplay import import_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets


def trajectories(lengths, discrete):
    random = np.random.default_rng(0)
    return [
        {
            "obs": random.standard_normal((n + 1, 3)).astype("f4"),
            "acts": random.integers(0, 4, n) if discrete else random.standard_normal((n, 2)),
            "rews": random.standard_normal(n).astype("f4"),
            "terminal": number % 2 == 0,
            "infos": ['{"py/object": "none"}'] * n,
        }
        for number, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("discrete", [False, True])
def test_counts_and_returns_are_those_of_the_trajectories(tmp_path, quick_disk, discrete):
    given = trajectories((7, 1, 12, 5), discrete)
    columns = {name: [one[name] for one in given] for name in given[0]}
    # As imitation.data.huggingface_utils.trajectories_to_dataset and serialize.save do.
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "in")
    made = import_dataset("imitation", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (25, 2, 2)
    assert {one.what: one.count for one in made.losses} == {"infos: pickles in texts": 4}
    with mmreplay.open(tmp_path / "a.zarr") as store:
        for number, one in enumerate(given):
            found = store.trajectory(number)
            assert np.array_equal(found.observation, one["obs"])
            assert np.array_equal(found.action, one["acts"])
            assert np.array_equal(found.reward, one["rews"])
            assert found.terminated == one["terminal"]
