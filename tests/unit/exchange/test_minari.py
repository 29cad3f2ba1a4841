"""Minari's HDF5 read without Minari; with it, and written, see tests/exchange."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from mmreplay import FormatError, SchemaError, StoreNotFoundError, import_dataset
from tests.support.minari_dataset import put, write_minari


@pytest.fixture
def dataset(tmp_path):
    return write_minari(tmp_path / "set")


def test_what_is_no_dataset_is_refused(dataset, tmp_path):
    about = dataset / "data" / "metadata.json"
    about.write_text(json.dumps({"total_episodes": 0}))
    with pytest.raises(FormatError, match="the dataset has no episode"):
        import_dataset("minari", dataset, tmp_path / "a.zarr")
    about.write_text(json.dumps({"total_episodes": 3}))
    with pytest.raises(FormatError, match="cannot be read as minari: KeyError"):
        import_dataset("minari", dataset, tmp_path / "a.zarr")
    (dataset / "data" / "main_data.hdf5").write_bytes(b"no HDF5")
    with pytest.raises(FormatError, match="cannot be read as minari: OSError"):
        import_dataset("minari", dataset, tmp_path / "a.zarr")


def test_an_id_is_found_in_the_folder_of_minari_and_nothing_else_is_taken_for_it(
    tmp_path, quick_disk, monkeypatch
):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    expected = r"^door/human-v2: there is no such path, and no dataset at .*/minari/door/human-v2; "
    with pytest.raises(StoreNotFoundError, match=expected):
        import_dataset("minari", "door/human-v2", "a.zarr")
    write_minari(tmp_path / "minari" / "door" / "human-v2")
    assert import_dataset("minari", "door/human-v2", "a.zarr").transitions == 7
    write_minari(tmp_path / "set-v0")
    assert import_dataset("minari", "set-v0", "b.zarr").transitions == 7
    write_minari(tmp_path / "door" / "human-v2")
    with pytest.raises(SchemaError, match=r"^src: 'door/human-v2' is a path here, and a dataset"):
        import_dataset("minari", "door/human-v2", "c.zarr")
    assert import_dataset("minari", "./door/human-v2", "c.zarr").transitions == 7
    assert import_dataset("minari", Path("door/human-v2"), "d.zarr").transitions == 7
    monkeypatch.chdir(tmp_path / "minari")
    assert import_dataset("minari", "door/human-v2", tmp_path / "e.zarr").transitions == 7


def test_the_folder_of_minari_is_at_home_by_default(tmp_path, quick_disk, monkeypatch):
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_minari(tmp_path / ".minari" / "datasets" / "set-v0")
    assert import_dataset("minari", "set-v0", tmp_path / "a.zarr").transitions == 7


@pytest.mark.parametrize(
    ("seeds", "loss"),
    [
        ([-1, 2**63], (2, "seed of episodes: not in all of them, or of different types")),
        ([-1, 3], (1, "seed of episodes: -1, which means a missing seed")),
        ([2**64 - 1, 3], (1, "seed of episodes: 18446744073709551615, which means a missing seed")),
    ],
)
def test_a_seed_that_cannot_be_kept_is_said(dataset, tmp_path, quick_disk, seeds, loss):
    put(dataset, "seed", seeds)
    made = import_dataset("minari", dataset, tmp_path / "a.zarr")
    assert [(one.count, one.what) for one in made.losses] == [loss]


@pytest.mark.parametrize("values", [[-3, 2**63], [1, 0.5], [1, None], [[1, 2], [1, 2, 3]]], ids=str)
def test_numbers_of_episodes_that_no_column_holds_are_said(dataset, tmp_path, quick_disk, values):
    put(dataset, "options/level", values)
    made = import_dataset("minari", dataset, tmp_path / "a.zarr")
    assert [one.what for one in made.losses] == [
        "options/level of episodes: not in all of them, or of different types"
    ]


@pytest.mark.parametrize("name", ["terminations", "truncations"])
def test_an_end_that_is_no_flag_is_refused(dataset, tmp_path, quick_disk, name):
    with h5py.File(dataset / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_1/{name}"]
        file[f"episode_1/{name}"] = np.array([0, 0, np.nan, 1])
    with pytest.raises(FormatError, match=f"data: {name}: expected flags, .* found nan"):
        import_dataset("minari", dataset, tmp_path / "a.zarr")


@pytest.mark.parametrize("name", ["observations", "actions", "terminations", "truncations"])
@pytest.mark.parametrize("more", [-1, 1])
def test_columns_of_different_lengths_are_refused(dataset, tmp_path, quick_disk, name, more):
    with h5py.File(dataset / "data" / "main_data.hdf5", "a") as file:
        path = f"episode_1/{name}"
        if isinstance(file[path], h5py.Group):
            path += f"/{next(iter(file[path]))}"
        rows = file[path][:]
        del file[path]
        file[path] = np.resize(rows, (len(rows) + more, *rows.shape[1:]))
    with pytest.raises(FormatError, match=f"episode 1: {name}.*: expected .* rows for .* rewards"):
        import_dataset("minari", dataset, tmp_path / "a.zarr")
