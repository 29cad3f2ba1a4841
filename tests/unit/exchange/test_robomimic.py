"""robomimic's layout both ways; what robomimic reads of ours is in tests/exchange."""

import json

import h5py
import numpy as np
import pytest

import mmreplay
from mmreplay import Field, FormatError, SchemaError, export_dataset, import_dataset
from tests.support.played_episodes import (
    ARGUMENTS,
    DICT,
    assert_same,
    play,
    read_back,
    write,
    write_vector,
)


@pytest.mark.parametrize(
    ("make", "block", "frames"),
    [(write, 3, DICT), (write_vector, 1000, ARGUMENTS), (write_vector, 3, DICT)],
)
def test_there_and_back_every_byte_is_the_same(
    tmp_path, quick_disk, monkeypatch, make, block, frames
):
    for module in ("maintenance.episode_runs", "exchange.columns"):
        monkeypatch.setattr(f"mmreplay.{module}.block_steps", lambda row_bytes: block)
    episodes = play(frames=frames)
    out = export_dataset(make(tmp_path / "a.zarr", episodes), "robomimic", tmp_path / "a.hdf5")
    assert out.losses == ()
    back = import_dataset("robomimic", tmp_path / "a.hdf5", tmp_path / "b.zarr")
    assert (back.transitions, back.terminated, back.truncated) == (25, 2, 2)
    assert [one.what[-19:] for one in back.losses] == ["taken as lost lives"]
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


def demonstrations(path, *, next_obs=True, **attributes):
    """Twelve demonstrations as they are documented, in the order of their names' texts."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"env_args": json.dumps({"env_name": "Lift", "type": 1})} | attributes)
        for number in range(12):
            group = data.create_group(f"demo_{number}")
            group.attrs["model_file"] = "<xml/>"
            n = number + 1
            group["actions"] = np.full((n, 2), number, "f8")
            group["rewards"] = np.arange(n, dtype="f8")
            group["dones"] = (np.arange(n) == n - 1) & (number % 2 == 0)
            group["states"] = np.ones((n, 4))
            group["obs/pose"] = np.arange(n, dtype="f8")[:, None]
            if next_obs:
                group["next_obs/pose"] = np.arange(1, n + 1, dtype="f8")[:, None]
        file["mask/train"] = np.array([b"demo_0", b"demo_11"])
    return path


def test_demonstrations_in_order_with_states(tmp_path, quick_disk):
    made = import_dataset("robomimic", demonstrations(tmp_path / "a.hdf5"), tmp_path / "a.zarr")
    assert (made.transitions, made.episodes, made.terminated, made.truncated) == (78, 12, 6, 6)
    assert [(one.what, one.count) for one in made.losses] == [
        ("dataset mask/train: left out", 1),
    ]
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert set(store.episodes["model_file"]) == {"<xml/>"}
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["length"].tolist() == list(range(1, 13))
        last = store.trajectory(11)
        assert last.observation["pose"][:, 0].tolist() == list(range(13))
        assert store.info()["env"]["id"] == "Lift"
    export_dataset(tmp_path / "a.zarr", "robomimic", tmp_path / "b.hdf5")
    with h5py.File(tmp_path / "a.hdf5") as before, h5py.File(tmp_path / "b.hdf5") as after:
        assert json.loads(after["data"].attrs["env_args"]) == {"env_name": "Lift", "type": 1}
        for name in ("actions", "rewards", "dones", "states", "obs/pose", "next_obs/pose"):
            for number in range(12):
                path = f"data/demo_{number}/{name}"
                assert np.array_equal(before[path][:], after[path][:]), path


def test_without_next_obs_the_last_one_stands_in(tmp_path, quick_disk):
    path = demonstrations(tmp_path / "a.hdf5", next_obs=False)
    made = import_dataset("robomimic", path, tmp_path / "a.zarr")
    expected = {"final": 12, "datas": 1}
    assert {one.what[:5]: one.count for one in made.losses} == expected
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.trajectory(1).observation["pose"][:, 0].tolist() == [0, 1, 1]


def test_numbers_as_actions_and_one_observation(tmp_path, quick_disk):
    store = write(tmp_path / "a.zarr", play(action=Field((), "int64")))
    out = export_dataset(store, "robomimic", tmp_path / "a.hdf5", next_obs=False)
    assert [one.what[:7] for one in out.losses] == ["final o", "scalar "]
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["data/demo_0/actions"].shape == (7, 1)
        assert file["data/demo_0/obs/obs"].shape == (7, 3)
        assert "next_obs" not in file["data/demo_0"]


@pytest.mark.parametrize("name", ["dones", "obs", "next_obs"])
def test_extra_columns_with_the_name_of_another_are_refused(tmp_path, quick_disk, name):
    store = write(tmp_path / "a.zarr", play(extras={name: Field((), "float32")}))
    with pytest.raises(
        SchemaError, match=f"robomimic: extra columns: the format itself uses the name '{name}'"
    ):
        export_dataset(store, "robomimic", tmp_path / "a.hdf5")
    assert not (tmp_path / "a.hdf5").exists()


def test_a_file_without_observations_is_refused(tmp_path):
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs"]
    with pytest.raises(FormatError, match="demo_0: expected obs and actions; extract"):
        import_dataset("robomimic", path, tmp_path / "a.zarr")
    with h5py.File(path, "a") as file:
        for number in range(12):
            del file[f"data/demo_{number}"]
    with pytest.raises(FormatError, match="expected demonstrations, found none"):
        import_dataset("robomimic", path, tmp_path / "a.zarr")


def change(path, name, rows):
    with h5py.File(path, "a") as file:
        file.pop(name, None)
        file[name] = rows


def test_what_only_some_demonstrations_have_is_a_loss(tmp_path, quick_disk):
    path = demonstrations(tmp_path / "a.hdf5")
    change(path, "data/demo_3/obs/force", np.ones((4, 1)))
    change(path, "data/demo_5/info/x", np.ones((6, 1)))
    change(path, "data/demo_7/next_obs/pose", np.ones((3, 1)))
    change(path, "data/demo_12/actions", np.ones((0, 2)))
    change(path, "data/demo_12/obs/pose", np.ones((0, 1)))
    change(path, "data/demo_2/dones", np.array([True, False, True]))
    made = import_dataset("robomimic", path, tmp_path / "a.zarr")
    losses = {one.what: one.count for one in made.losses}
    assert losses.pop("column obs/force: only in 1 of 12 episodes") == 1
    assert losses.pop("column info/x: only in 1 of 12 episodes") == 1
    assert losses.pop("column next_obs/pose: demo_7: expected 8 rows, found (3, 1)") == 1
    assert losses.pop("demonstrations without a step: left out") == 1
    assert losses.pop("terminal steps within a numbered episode: taken as lost lives") == 1
    assert sum("final obs" in one or "model_file" in one or "mask" in one for one in losses) == len(
        losses
    )


def test_columns_are_chosen_by_name(tmp_path, quick_disk):
    path = demonstrations(tmp_path / "a.hdf5")
    options = {"columns": ["obs"], "leave_out": ["next_obs"]}
    made = import_dataset("robomimic", path, tmp_path / "a.zarr", **options)
    losses = {one.what: one.count for one in made.losses}
    assert losses["column states: left out, as columns does not name it"] == 1
    assert losses["column next_obs/pose: left out, as leave_out says"] == 1
    with pytest.raises(SchemaError, match="found no column 'forces', which an option names"):
        import_dataset("robomimic", path, tmp_path / "b.zarr", leave_out=["forces"])
    with pytest.raises(SchemaError, match="leave_out: expected a list of names of columns, found"):
        import_dataset("robomimic", path, tmp_path / "b.zarr", leave_out="states")


@pytest.mark.parametrize("name", ["obs/pose", "rewards", "dones"])
@pytest.mark.parametrize("more", [-1, 1])
def test_columns_of_different_lengths_are_refused(tmp_path, quick_disk, name, more):
    path = demonstrations(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        rows = file[f"data/demo_3/{name}"][:]
        del file[f"data/demo_3/{name}"]
        file[f"data/demo_3/{name}"] = np.resize(rows, (4 + more, *rows.shape[1:]))
    with pytest.raises(FormatError, match=rf"{name}: demo_3: expected 4 rows.* found .{4 + more},"):
        import_dataset("robomimic", path, tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
