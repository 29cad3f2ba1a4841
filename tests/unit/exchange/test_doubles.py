"""Doubles of a source are doubles of the store, bit for bit, without an option."""

import gzip

import h5py
import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import import_dataset
from tests.support.minari_dataset import write_minari

N = 6
SEEN = np.arange(2 * N).reshape(N, 2) / 7
REWARDS = np.arange(N) / 3
LAST = np.arange(N) == N - 1
FLAT = {"observations": SEEN, "actions": np.arange(N), "rewards": REWARDS}


def hdf5(path, columns):
    with h5py.File(path, "w") as file:
        for name, rows in columns.items():
            file[name] = rows


def npz(path, columns):
    with path.open("wb") as file:
        np.savez(file, **columns)


def d3rlpy(path):
    names = {"observations_0": SEEN, "actions_0": np.arange(N), "rewards_0": REWARDS}
    hdf5(path, names | {"num_episodes": 1, "terminated_0": True})


def robomimic(path):
    names = {"obs/state": SEEN, "actions": np.zeros((N, 1)), "rewards": REWARDS}
    hdf5(path, {f"data/demo_0/{name}": rows for name, rows in names.items()})


def diffusion_policy(path):
    root = zarr.open_group(path, mode="w", zarr_format=2)
    columns = {"data/state": SEEN, "data/action": np.zeros((N, 1)), "data/reward": REWARDS}
    for name, rows in (columns | {"meta/episode_ends": np.array([N])}).items():
        root.create_array(name, data=rows)


def dqn_replay(path):
    path.mkdir()
    columns = {"observation": SEEN, "action": np.arange(N), "reward": REWARDS, "terminal": LAST}
    stored = {f"$store$_{name}": rows for name, rows in columns.items()}
    for name, rows in (stored | {"add_count": np.array(N)}).items():
        with gzip.open(path / f"{name}_ckpt.0.gz", "wb") as file:
            np.save(file, rows)


def minari(path):
    write_minari(path)
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        for number, rows in enumerate((SEEN[:4], SEEN[:5])):
            for name, new in (("observations", rows), ("rewards", REWARDS[: len(rows) - 1])):
                del file[f"episode_{number}/{name}"]
                file[f"episode_{number}/{name}"] = new


SOURCES = {
    "arrays": lambda path: npz(path, FLAT),
    "arrays, big-endian": lambda path: npz(
        path, {k: v.astype(f">{v.dtype.kind}8") for k, v in FLAT.items()}
    ),
    "d4rl": lambda path: hdf5(path, FLAT | {"terminals": LAST}),
    "d3rlpy": d3rlpy,
    "ogbench": lambda path: npz(path, FLAT | {"terminals": LAST}),
    "robomimic": robomimic,
    "diffusion_policy": diffusion_policy,
    "dqn_replay": dqn_replay,
    "minari": minari,
}


@pytest.mark.parametrize("source", SOURCES)
def test_doubles_are_kept(tmp_path, quick_disk, source):
    SOURCES[source](tmp_path / "in")
    made = import_dataset(source.partition(",")[0], tmp_path / "in", tmp_path / "a.zarr")
    assert not any("dtype" in one.what or "rounded" in one.what for one in made.losses)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        (seen,) = (
            batch.observation.values()
            if isinstance(batch.observation, dict)
            else [batch.observation]
        )
        assert seen.dtype == batch.reward.dtype == np.float64
        n = 3 if source == "minari" else len(seen)
        assert np.array_equal(seen[:n], SEEN[:n])
        assert np.array_equal(batch.reward[:n], REWARDS[:n])
