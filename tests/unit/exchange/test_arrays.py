"""Plain arrays in and out: byte for byte, and under the names that others give them."""

import pickle

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, FormatError, SchemaError, export_dataset, import_dataset
from tests.support.played_episodes import (
    DICT,
    assert_same,
    observed,
    play,
    read_back,
    steps_of,
    write,
    write_vector,
)


def flat(**more):
    """Ten steps: five that terminate, three that are cut off, two that go on."""
    ends = np.arange(10)
    return {
        "observations": np.arange(10, dtype="float32").reshape(10, 1),
        "actions": np.arange(10),
        "rewards": np.ones(10, "float32"),
        "terminals": ends == 4,
        "timeouts": ends == 7,
    } | more


@pytest.mark.parametrize(
    ("target", "frames", "make"),
    [
        ("out.npz", {"frame": Field((3,), "uint8")}, write),
        ("out", DICT, write),
        ("out", {"frame": Field((3,), "uint8")}, write_vector),
        ("out.npz", DICT, write_vector),
    ],
)
def test_there_and_back_every_byte_is_the_same(tmp_path, quick_disk, target, frames, make):
    episodes = play(frames=frames)
    made = export_dataset(make(tmp_path / "a.zarr", episodes), "arrays", tmp_path / target)
    assert (made.transitions, made.episodes, made.losses) == (steps_of(episodes), 4, ())
    back = import_dataset("arrays", tmp_path / target, tmp_path / "b.zarr")
    assert (back.transitions, back.terminated, back.truncated, back.losses) == (25, 2, 2, ())
    assert_same(read_back(tmp_path / "b.zarr"), episodes)
    assert mmreplay.verify(tmp_path / "b.zarr").sound


def test_numpy_reads_what_is_exported(tmp_path, quick_disk):
    episodes = play(lives=False)
    export_dataset(
        write(tmp_path / "a.zarr", episodes), "arrays", tmp_path / "a.npz", compressed=True
    )
    with np.load(tmp_path / "a.npz") as found:
        assert found["terminations"].sum() == found["truncations"].sum() == 2
        assert not found["life_losses"].any()
        observed = np.concatenate([one.observation["frame"][:-1] for one in episodes])
        assert np.array_equal(found["observations"], observed)
        last = np.stack([one.observation["frame"][-1] for one in episodes])
        assert np.array_equal(found["final_observations"], last)


def test_arrays_in_memory_under_names_of_others(tmp_path, quick_disk):
    made = import_dataset("arrays", flat(**{"infos/q": np.ones((10, 2))}), tmp_path / "a.zarr")
    assert (made.episodes, made.terminated, made.truncated) == (3, 1, 2)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["length"].tolist() == [5, 3, 2]
        assert observed(store) == [0, 1, 2, 3, 4, 4, 5, 6, 7, 7, 8, 9, 9]
        assert store.extras["infos.q"].shape == (10, 2)
        assert store.info()["env"] == {"imported": {"format": "arrays"}}
    assert sum(one.count for one in made.losses) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": None}, "src: expected a column 'rewards', found actions, observations"),
        ({"actions": np.arange(9)}, "columns of different lengths"),
        ({"final_observations": np.ones((2, 3), "f4")}, "expected rows like those of the observ"),
        (
            {"observations": np.array(["a"] * 10)},
            "src: observations: a store cannot hold rows of str",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, change, message):
    given = {key: rows for key, rows in (flat() | change).items() if rows is not None}
    with pytest.raises(FormatError, match=message):
        import_dataset("arrays", given, tmp_path / "a.zarr")
    assert list(tmp_path.iterdir()) == []


def test_neither_a_path_nor_arrays(tmp_path):
    with pytest.raises(SchemaError, match="src: expected a path or a mapping of arrays, found int"):
        import_dataset("arrays", 3, tmp_path / "a.zarr")


class Trap:
    """Unpickled, it says so."""

    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_a_pickle_is_refused_and_not_opened(tmp_path):
    np.savez(tmp_path / "a.npz", **flat(infos=np.array([Trap()], object)))
    made = import_dataset("arrays", tmp_path / "a.npz", tmp_path / "a.zarr")
    assert "column infos: a pickle of Python objects" in made.losses[0].what
    np.savez(tmp_path / "a.npz", **flat(rewards=np.array([Trap()], object)))
    with pytest.raises(FormatError, match=r"a\.npz: rewards: a pickle of Python objects"):
        import_dataset("arrays", tmp_path / "a.npz", tmp_path / "c.zarr")
    (tmp_path / "b.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(FormatError, match="cannot be read as arrays: BadZipFile"):
        import_dataset("arrays", tmp_path / "b.npz", tmp_path / "c.zarr")


def test_a_file_that_was_cut_off_leaves_nothing_behind(tmp_path, quick_disk):
    folder = tmp_path / "in"
    export_dataset(write(tmp_path / "a.zarr", play()), "arrays", folder)
    rewards = folder / "rewards.npy"
    rewards.write_bytes(rewards.read_bytes()[:-8])
    with pytest.raises(FormatError, match=r"rewards.npy: ends within rows"):
        import_dataset("arrays", folder, tmp_path / "b.zarr")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.zarr", "in"]


def test_a_column_whose_name_resembles_final_observations_is_an_extra(tmp_path, quick_disk):
    n = 6
    columns = {
        "observations": np.zeros((n, 2), np.float32),
        "actions": np.zeros(n, np.int64),
        "rewards": np.zeros(n, np.float32),
        "terminations": np.arange(n) % 3 == 2,
        "final frame": np.arange(n, dtype=np.float32),
    }
    np.savez(tmp_path / "in.npz", **columns)
    mmreplay.import_dataset("arrays", tmp_path / "in.npz", tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.extras["final_frame"][:].tolist() == [*range(n)]
