"""Several files as one dataset: a folder, a list, a pattern; and columns under other names."""

import h5py
import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, SchemaError, StoreNotFoundError, import_dataset

N = 5


def columns(number, n=N, **more):
    """Of an episode: each observation says which one, and which step."""
    steps = np.arange(n + 1, dtype="f4")
    seen = np.stack([np.full(n + 1, number, "f4"), steps], 1)
    given = {"observations": seen[:n], "actions": np.full(n, number), "rewards": np.ones(n)}
    return given | more, seen


@pytest.fixture
def folder(tmp_path):
    """Eleven files of an episode each, which is numbered; and one that is not an array."""
    path = tmp_path / "episodes"
    path.mkdir()
    for number in range(11):
        np.savez(path / f"episode_{number}.npz", **columns(number)[0])
    (path / "notes.txt").write_text("of the robot")
    return path


def first_of_each(path):
    with mmreplay.open(path) as store:
        return [store.trajectory(n).observation[0, 0] for n in range(len(store.episodes))]


@pytest.mark.parametrize("given", ["folder", "pattern", "list"])
def test_each_file_is_an_episode_in_the_order_of_their_numbers(folder, tmp_path, given):
    src = {
        "folder": folder,
        "pattern": f"{folder}/*.npz",
        "list": [folder / f"episode_{n}.npz" for n in range(11)],
    }[given]
    made = import_dataset("arrays", src, tmp_path / "x.zarr")
    assert (made.transitions, made.episodes, made.truncated) == (11 * N, 11, 11)
    assert first_of_each(tmp_path / "x.zarr") == list(range(11))
    losses = {one.what: one.count for one in made.losses}
    assert losses["ends of episodes: the source marks no end, so all is one episode"] == 11
    assert ("files that are not read: notes.txt" in losses) == (given == "folder")


def test_an_observation_more_than_actions_is_the_final_one(tmp_path):
    for number in range(3):
        given, seen = columns(number)
        ends = {"terminals": np.arange(N) == N - 1} if number else {}
        np.savez(tmp_path / f"{number}.npz", **given | ends | {"observations": seen})
    made = import_dataset("arrays", f"{tmp_path}/*.npz", tmp_path / "x.zarr")
    assert (made.episodes, made.terminated) == (3, 2)
    assert not any("final observations" in one.what for one in made.losses)
    with mmreplay.open(tmp_path / "x.zarr") as store:
        for number in range(3):
            expected = columns(number)[1]
            assert np.array_equal(store.trajectory(number).observation, expected)


def test_an_observation_more_does_not_fit_two_episodes(tmp_path):
    given, seen = columns(0)
    flags = {"terminals": np.arange(N) % 2 == 1}
    with pytest.raises(FormatError, match="expected a row for each end of an episode, found 1 for"):
        import_dataset("arrays", given | flags | {"observations": seen}, tmp_path / "x.zarr")
    with pytest.raises(FormatError, match="columns of different lengths"):
        import_dataset(
            "arrays",
            given | {"episode": np.zeros(N), "observations": seen},
            tmp_path / "x.zarr",
        )


def test_a_file_of_other_fields_is_refused_by_its_name(folder, tmp_path):
    given = columns(3)[0]
    np.savez(folder / "episode_3.npz", **given | {"actions": np.zeros((N, 2), "f4")})
    with pytest.raises(FormatError, match=r"episode_3\.npz: actions: expected Field.*episode_0"):
        import_dataset("arrays", folder, tmp_path / "x.zarr")
    np.savez(folder / "episode_3.npz", **given | {"speed": np.zeros(N)})
    with pytest.raises(FormatError, match=r"episode_3\.npz: speed: expected None, as in"):
        import_dataset("arrays", folder, tmp_path / "x.zarr")
    assert not (tmp_path / "x.zarr").exists()
    made = import_dataset("arrays", folder, tmp_path / "x.zarr", leave_out=["speed"])
    assert made.episodes == 11


def test_what_matches_nothing_and_what_takes_one_source(folder, tmp_path):
    with pytest.raises(StoreNotFoundError, match=r"\*\.npy: nothing matches this pattern"):
        import_dataset("arrays", f"{folder}/*.npy", tmp_path / "x.zarr")
    with pytest.raises(StoreNotFoundError, match="src: expected one path or more"):
        import_dataset("arrays", [], tmp_path / "x.zarr")
    with pytest.raises(SchemaError, match="minari: expected one source, found 11"):
        import_dataset("minari", f"{folder}/*.npz", tmp_path / "x.zarr")


def test_columns_under_other_names(tmp_path):
    given, seen = columns(0)
    images = np.zeros((N, 4, 4, 3), "u1")
    source = {"images": images, "state": seen[:N], "act": given["actions"], "r": np.ones(N)}
    names = {"actions": "act", "rewards": "r"}
    with pytest.raises(FormatError, match=r"column 'observations', .*observations=NAME"):
        import_dataset("arrays", source, tmp_path / "a.zarr", **names)
    made = import_dataset("arrays", source, tmp_path / "a.zarr", **names, observations="state")
    assert made.transitions == N
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.schema.frame == mmreplay.Field((2,), "float32")
        assert [*store.schema.extras] == ["images"]
    import_dataset("arrays", source, tmp_path / "b.zarr", **names, observations=["images", "state"])
    with mmreplay.open(tmp_path / "b.zarr") as store:
        assert sorted(store.schema.frame) == ["images", "state"]
    # What is named takes the place of the usual name, which becomes an extra column.
    more = source | {"obs": seen[:N] + 1}
    import_dataset("arrays", more, tmp_path / "c.zarr", **names, observations="state")
    with mmreplay.open(tmp_path / "c.zarr") as store:
        assert np.array_equal(store.trajectory(0).observation[0], seen[0])
        assert sorted(store.schema.extras) == ["images", "obs"]
    with pytest.raises(SchemaError, match="found no column 'imagez', which an option names"):
        import_dataset("arrays", source, tmp_path / "d.zarr", **names, observations="imagez")
    with pytest.raises(SchemaError, match="robomimic: no such option as 'actions'"):
        import_dataset("robomimic", tmp_path, tmp_path / "d.zarr", actions="act")


@pytest.mark.parametrize("format", ["d4rl", "robomimic"])
def test_a_folder_of_hdf5_files(tmp_path, format):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in (9, 10):
        with h5py.File(folder / f"run{number}.hdf5", "w") as file:
            given = columns(number)[0]
            if format == "d4rl":
                for name, rows in given.items():
                    file[name] = rows
                continue
            demo = file.create_group("data/demo_0")
            demo.attrs["num_samples"] = N
            demo["obs/state"] = given["observations"]
            demo["actions"] = given["actions"]
    made = import_dataset(format, folder, tmp_path / "x.zarr")
    assert (made.transitions, made.episodes) == (2 * N, 2)
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert [store.trajectory(n).action[0] for n in (0, 1)] == [9, 10]
