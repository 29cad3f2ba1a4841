"""d3rlpy's and D4RL's layouts; files that d3rlpy itself dumped are in tests/exchange."""

import h5py
import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, import_dataset

LENGTHS, TERMINATED = (7, 1, 12, 5), (True, False, False, True)


def dump(path, dtype="f4", parts=0):
    """A file of version 2.1; observations count the rows, and are tuples if there are `parts`."""
    start = 0
    with h5py.File(path, "w") as file:
        file["num_episodes"] = len(LENGTHS)
        for number, n in enumerate(LENGTHS):
            rows = np.arange(start, start + n).repeat(3).reshape(n, 3).astype(dtype)
            for part in range(parts):
                file[f"observations_{number}_{part}"] = rows + part
            if not parts:
                file[f"observations_{number}"] = rows
            file[f"actions_{number}"] = rows[:, :1].astype("i8")
            file[f"rewards_{number}"] = rows[:, :1].astype("f4")
            file[f"terminated_{number}"] = TERMINATED[number]
            start += n


@pytest.mark.parametrize("block", [3, 1000])
@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize(("final", "n"), [("repeat", 25), ("drop", 23)])
def test_each_step_comes_once(tmp_path, quick_disk, monkeypatch, block, parts, final, n):
    monkeypatch.setattr("mmreplay.exchange.columns.block_steps", lambda row_bytes: block)
    dump(tmp_path / "a.h5", parts=parts)
    made = import_dataset("d3rlpy", tmp_path / "a.h5", tmp_path / "a.zarr", final_observation=final)
    # Of an episode of one step nothing is left, if its last one is dropped.
    episodes = 4 - (final == "drop")
    assert (made.transitions, made.episodes, made.terminated) == (n, episodes, 2)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        assert np.array_equal(batch.reward, batch.action)
        kept = np.arange(25) if final == "repeat" else np.delete(np.arange(25), [7, 19])
        assert batch.action.tolist() == kept.tolist()
        for part in range(parts):
            assert np.array_equal(batch.observation[str(part)][:, 0], batch.action + part)
        if not parts:
            assert np.array_equal(batch.observation[:, 2], batch.action)
        if final == "repeat":
            assert store.trajectory(0).terminated
            assert store.trajectory(3).terminated


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
        assert store.actions.shape == (6,)


def test_a_file_of_d4rl(tmp_path, quick_disk):
    steps = np.arange(30)
    given = {
        "observations": steps.reshape(30, 1).astype("f4"),
        "actions": np.ones((30, 2), "f4"),
        "rewards": steps.astype("f4"),
        "terminals": steps == 9,
        "timeouts": steps == 19,
        "infos/qpos": np.ones((30, 3)),
        "metadata/algorithm": b"SAC",
        "metadata/policy/weight": np.ones((5, 5)),
    }
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, rows in given.items():
            file[name] = rows
    made = import_dataset("d4rl", tmp_path / "a.hdf5", tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (30, 1, 2)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["return"].tolist() == [45, 145, 245]
        assert store.extras["infos.qpos"].shape == (30, 3)
    assert sorted(one.what[:40] for one in made.losses) == [
        "an unfinished episode at the end of the ",
        "column metadata/algorithm: a store canno",
        "column metadata/policy/weight: not one r",
        "final observations that the source does ",
    ]
    (tmp_path / "b.hdf5").write_bytes((tmp_path / "a.hdf5").read_bytes()[:3000])
    with pytest.raises(FormatError, match="cannot be read as d4rl"):
        import_dataset("d4rl", tmp_path / "b.hdf5", tmp_path / "b.zarr")
