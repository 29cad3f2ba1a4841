"""D4RL's layout in: files as they are documented, as the library itself needs mujoco-py."""

import h5py
import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, import_dataset

N = 30


@pytest.fixture
def given():
    """Thirty steps: episodes of ten; the first terminates, the second times out."""
    steps = np.arange(N)
    return {
        "observations": np.random.default_rng(0).standard_normal((N, 4)).astype("f4"),
        "actions": np.random.default_rng(1).standard_normal((N, 2)).astype("f4"),
        "rewards": steps.astype("f4"),
        "terminals": steps == 9,
        "timeouts": steps == 19,
        "infos/qpos": np.ones((N, 3)),
        "metadata/algorithm": b"SAC",
        "metadata/policy/weight": np.ones((5, 5)),
    }


def write(path, given):
    with h5py.File(path, "w") as file:
        for name, rows in given.items():
            file[name] = rows
    return path


def test_counts_and_returns_are_those_of_the_file(given, tmp_path, quick_disk):
    made = import_dataset("d4rl", write(tmp_path / "a.hdf5", given), tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (30, 1, 2)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["return"].tolist() == [45, 145, 245]
        assert np.array_equal(store.trajectory(1).observation[:-1], given["observations"][10:20])
        assert store.extras["infos.qpos"].shape == (30, 3)
    assert sorted(one.what[:40] for one in made.losses) == [
        "an unfinished episode at the end of the ",
        "column metadata/algorithm: a store canno",
        "column metadata/policy/weight: not one r",
        "final observations that the source does ",
    ]


def test_next_observations_are_the_final_ones(given, tmp_path, quick_disk):
    after = np.roll(given["observations"], -1, 0)
    after[[9, 19, 29]] = 7
    path = write(tmp_path / "a.hdf5", given | {"next_observations": after})
    made = import_dataset("d4rl", path, tmp_path / "a.zarr")
    assert (made.transitions, len(made.losses)) == (30, 3)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        for number in range(3):
            assert (store.trajectory(number).observation[-1] == 7).all()


def test_what_is_none_is_refused(given, tmp_path):
    path = write(tmp_path / "a.hdf5", given)
    del given["actions"]
    with pytest.raises(FormatError, match="expected a column 'actions'"):
        import_dataset("d4rl", write(tmp_path / "b.hdf5", given), tmp_path / "a.zarr")
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(FormatError, match="cannot be read as d4rl"):
        import_dataset("d4rl", path, tmp_path / "a.zarr")
