"""d3rlpy's layout both ways; what d3rlpy itself writes and reads is in tests/exchange."""

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


@pytest.mark.parametrize("action", [Field((2,), "float32"), Field((), "int64")])
@pytest.mark.parametrize("make", [write, write_vector])
@pytest.mark.parametrize("block", [3, 1000])
def test_there_and_back_with_final_rows(tmp_path, quick_disk, monkeypatch, action, make, block):
    for module in ("maintenance.episodes", "exchange.columns"):
        monkeypatch.setattr(f"mmreplay.{module}.block_steps", lambda row_bytes: block)
    episodes = play(action=action, extras={}, lives=False)
    store = make(tmp_path / "a.zarr", episodes)
    out = export_dataset(store, "d3rlpy", tmp_path / "a.h5", final_row=True)
    assert {one.what[:5]: one.count for one in out.losses} == {"final": 2}
    back = import_dataset(
        "d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr", final_observation="drop"
    )
    assert (back.transitions, back.terminated, back.truncated) == (25, 2, 2)
    for one in episodes:
        if one.terminated:  # after which no observation counts, and none is kept
            one.observation["frame"][-1] = one.observation["frame"][-2]
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


def test_without_final_rows_every_step_is_there(tmp_path, quick_disk):
    episodes = play()
    out = export_dataset(write(tmp_path / "a.zarr", episodes), "d3rlpy", tmp_path / "a.h5")
    lost = sum(int(one.lost[:-1].sum()) for one in episodes)
    assert {one.what.split()[0]: one.count for one in out.losses} == {
        "final": 4,
        "last": 2,
        "extra": 25,
        "lost": lost,
    }
    back = import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr")
    assert back.transitions == 25
    for one in episodes:
        one.extras, one.lost = {}, np.zeros_like(one.lost)
        one.observation["frame"][-1] = one.observation["frame"][-2]
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


@pytest.mark.parametrize("frames", [DICT, ARGUMENTS], ids=["dict", "arguments"])
def test_dict_observations_become_tuples(tmp_path, quick_disk, frames):
    episodes = play(frames=frames)
    export_dataset(write(tmp_path / "a.zarr", episodes), "d3rlpy", tmp_path / "a.h5")
    import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr")
    with mmreplay.open(tmp_path / "b.zarr") as store:
        found = store.trajectory(2).observation
        for place, key in enumerate(frames):
            assert np.array_equal(found[str(place)][:-1], episodes[2].observation[key][:-1])
        assert np.array_equal(store.trajectory(2).action, episodes[2].action)


def test_a_file_of_version_1(tmp_path, quick_disk):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"] = np.arange(6, dtype="f4").reshape(6, 1)
        file["actions"] = np.arange(6).reshape(6, 1)
        file["rewards"] = np.ones((6, 1), "f4")
        file["terminals"] = np.array([0, 0, 1, 0, 0, 0], "f4")
        file["episode_terminals"] = np.array([0, 0, 1, 0, 1, 0], "f4")
        file["discrete_action"] = True
    made = import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (6, 1, 2)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["length"].tolist() == [3, 2, 1]
        assert store.actions.shape == (9,)


def test_what_it_cannot_hold_is_refused(tmp_path, quick_disk):
    store = write(tmp_path / "a.zarr", play(action=Field((2, 2), "float32")))
    with pytest.raises(SchemaError, match=r"actions of shape \(2, 2\)"):
        export_dataset(store, "d3rlpy", tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["num_episodes"] = 0
    with pytest.raises(FormatError, match="no episode"):
        import_dataset("d3rlpy", tmp_path / "b.h5", tmp_path / "b.zarr")


def test_an_end_that_is_no_flag_is_refused(tmp_path, quick_disk):
    export_dataset(write(tmp_path / "a.zarr", play()), "d3rlpy", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["terminated_2"]
        file["terminated_2"] = np.nan
    with pytest.raises(FormatError, match=r"a\.h5: terminated_2: expected flags, .* found nan"):
        import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr")


@pytest.mark.parametrize("name", ["observations", "actions"])
@pytest.mark.parametrize("more", [-1, 1])
def test_columns_of_different_lengths_are_refused(tmp_path, quick_disk, name, more):
    export_dataset(write(tmp_path / "a.zarr", play()), "d3rlpy", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        rows = file[f"{name}_1"][:]
        del file[f"{name}_1"]
        file[f"{name}_1"] = np.resize(rows, (len(rows) + more, *rows.shape[1:]))
    with pytest.raises(FormatError, match=r"episode 1: .* rows, as others have, found"):
        import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr")


def test_an_episode_of_other_numbers_than_the_first_is_refused(tmp_path, quick_disk):
    frames = {"frame": Field((3,), "uint8")}
    export_dataset(write(tmp_path / "a.zarr", play(frames=frames)), "d3rlpy", tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        rows = file["observations_1"][:]
        del file["observations_1"]
        file["observations_1"] = rows / np.float32(255)
    with pytest.raises(FormatError, match=r"observations: expected .* uint8, .* found .* float32"):
        import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "b.zarr")
