"""OGBench in: the transitions are those that its own loader makes."""

import numpy as np
import pytest

import mmreplay
from mmreplay import import_dataset


def test_transitions_are_those_of_its_loader(tmp_path, quick_disk):
    load_dataset = pytest.importorskip("ogbench.utils").load_dataset
    random, n = np.random.default_rng(0), 41
    ends = np.zeros(n, bool)
    ends[[9, 20, 40]] = True
    np.savez(
        tmp_path / "a.npz",
        observations=random.standard_normal((n, 5)).astype("f4"),
        actions=random.standard_normal((n, 2)).astype("f4"),
        terminals=ends,
    )
    expected = load_dataset(tmp_path / "a.npz")
    import_dataset("ogbench", tmp_path / "a.npz", tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        assert np.array_equal(batch.observation, expected["observations"])
        assert np.array_equal(batch.next_observation, expected["next_observations"])
        assert np.array_equal(batch.action, expected["actions"])
        stops = np.cumsum(store.episodes["length"]) - 1
        assert np.array_equal(np.flatnonzero(expected["terminals"]), stops)
