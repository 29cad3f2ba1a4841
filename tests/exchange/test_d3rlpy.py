"""Files that d3rlpy dumped."""

import warnings

import numpy as np
import pytest

import mmreplay
from mmreplay import import_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import d3rlpy


@pytest.fixture(autouse=True)
def silent():
    """d3rlpy's own warnings are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("discrete", [False, True])
def test_counts_and_returns_are_those_of_d3rlpy(tmp_path, quick_disk, discrete):
    random, n = np.random.default_rng(0), 60
    terminals, timeouts = np.zeros(n), np.zeros(n)
    terminals[[9, 29]], timeouts[[19, 59]] = 1, 1
    actions = random.integers(0, 4, (n, 1)) if discrete else random.standard_normal((n, 2))
    dataset = d3rlpy.dataset.MDPDataset(
        observations=random.standard_normal((n, 3)).astype("f4"),
        actions=actions,
        rewards=random.standard_normal(n).astype("f4"),
        terminals=terminals,
        timeouts=timeouts,
        action_space=d3rlpy.ActionSpace.DISCRETE if discrete else d3rlpy.ActionSpace.CONTINUOUS,
    )
    with (tmp_path / "a.h5").open("w+b") as file:
        dataset.dump(file)
    made = import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "a.zarr")
    assert made.transitions == sum(one.size() for one in dataset.episodes)
    assert made.terminated == sum(one.terminated for one in dataset.episodes)
    assert made.truncated == sum(not one.terminated for one in dataset.episodes)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        returns = [one.compute_return() for one in dataset.episodes]
        assert np.allclose(store.episodes["return"], returns, rtol=1e-6)
        for number, one in enumerate(dataset.episodes):
            assert np.array_equal(store.trajectory(number).observation[:-1], one.observations)
            found = store.trajectory(number).action
            assert np.array_equal(found.reshape(one.actions.shape), one.actions)
    dropped = import_dataset(
        "d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr", final_observation="drop"
    )
    assert dropped.transitions == dataset.transition_count
