"""Several files as one dataset: a folder, a list, a pattern; and columns under other names."""

import zipfile

import h5py
import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, SchemaError, StoreNotFoundError, import_dataset

N = 5
ODD = ["/abs", "../up", "a/../b", "..", "//", "a//b", "C:\\x", "x\n", "zarr.json", "mask"]


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0, 1, 10, 2, 3], [0, 1, 2, 3, 10]),  # as a shell and `sorted` put them
        ([10, 1, 2], [10, 1, 2]),
        ([1, 2, 10], [1, 2, 10]),
        ([3, 2, 1], [3, 2, 1]),
    ],
)
def test_a_list_keeps_its_order_unless_it_is_that_of_the_characters(
    folder, tmp_path, given, expected
):
    src = [folder / f"episode_{number}.npz" for number in given]
    import_dataset("arrays", src, tmp_path / "x.zarr")
    assert first_of_each(tmp_path / "x.zarr") == expected


def test_files_share_a_loss(tmp_path):
    """Also where each has texts of another length, or other names that are not read."""
    for number in range(11):
        more = {"text": np.array(["a" * (number + 1)] * N), "pickle": np.array([None] * N)}
        path = tmp_path / f"{number}.npz"
        np.savez(path, **columns(number)[0], **more, one=np.array(number))
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("notes.txt", "")
            archive.writestr(f"of_{number:02}.txt", "")
    made = import_dataset("arrays", f"{tmp_path}/*.npz", tmp_path / "x.zarr")
    assert {one.what: one.count for one in made.losses if "nd" not in one.what[:5]} == {
        "members that are not arrays: notes.txt, of_00.txt, of_01.txt, of_02.txt, of_03.txt, "
        "of_04.txt, of_05.txt, of_06.txt, ...": 22,
        "column text: a store cannot hold rows of str": 11,
        "column pickle: a pickle of Python objects, which is never opened; save plain arrays": 11,
        "column one: a single value, not one row per step": 11,
        "an unfinished episode at the end of the source: truncated": 11,
        "final observations that the source does not have: the last observation of the episode is "
        "repeated": 11,
    }
    assert len(made.losses) == 7


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["arrays", "npz", "hdf5"])
def test_odd_names_of_columns_stay_inside(tmp_path, name, kind):
    inside = tmp_path / "inside" / "of"
    inside.mkdir(parents=True)
    given = columns(0)[0] | {name: np.arange(N)}
    source = inside / "in"
    if kind == "arrays":
        source = given
    elif kind == "npz":
        with zipfile.ZipFile(source, "w") as archive:
            for column, rows in given.items():
                with archive.open(zipfile.ZipInfo(f"{column}.npy"), "w") as file:
                    np.save(file, rows)
    else:
        with h5py.File(source, "w") as file:
            for column, rows in (given | {"x" * len(name): given[name]}).items():
                if column != name:
                    file[column] = rows
        raw = source.read_bytes()
        assert raw.count(b"x" * len(name) + b"\0") == 1
        source.write_bytes(raw.replace(b"x" * len(name) + b"\0", name.encode() + b"\0"))
    before = sorted(inside.rglob("*"))
    format = "d4rl" if kind == "hdf5" else "arrays"
    try:
        made = import_dataset(format, source, inside / "x.zarr")
    except FormatError:
        assert kind == "hdf5"  # which itself finds no such name
        return
    finally:
        assert sorted(tmp_path.iterdir()) == [tmp_path / "inside"]
        assert sorted((tmp_path / "inside").iterdir()) == [inside]
    assert sorted(set(inside.iterdir()) - {*before}) == [inside / "x.zarr"]
    with mmreplay.open(inside / "x.zarr") as store:
        (own,) = store.extras
        assert store.extras[own][:].tolist() == [*range(N)]
    said = f"column {name}: called {own} in the store".replace("\n", "\\n")
    is_renamed = own != name.replace("/", ".")
    assert (said in [one.what for one in made.losses]) == is_renamed
    left = import_dataset(format, source, inside / "y.zarr", leave_out=[name])
    assert any(one.what.endswith("left out, as leave_out says") for one in left.losses)


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
    with pytest.raises(
        FormatError, match=r"episode_3\.npz: actions: expected int64 \(\), as in .*episode_0"
    ):
        import_dataset("arrays", folder, tmp_path / "x.zarr")
    np.savez(folder / "episode_3.npz", **given | {"speed": np.zeros(N)})
    with pytest.raises(FormatError, match=r"episode_3\.npz: column speed: expected nothing, as in"):
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


def test_rows_of_later_files_fit_the_first_one(tmp_path):
    """Also where an extra column is called as the observations are."""
    more = {"observations": np.zeros((N, 2)), "actions": np.zeros(N), "rewards": np.zeros(N)}
    for number, dtype in enumerate(("f4", "u1", "f8")):
        np.savez(tmp_path / f"{number}.npz", state=np.full((N, 2), number, dtype), **more)
    with pytest.raises(FormatError, match=r"2\.npz: observations: expected float32 .* float64"):
        import_dataset("arrays", f"{tmp_path}/*.npz", tmp_path / "x.zarr", observations="state")
    two = [tmp_path / "0.npz", tmp_path / "1.npz"]
    import_dataset("arrays", two, tmp_path / "x.zarr", observations="state")
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert store.trajectory(1).observation.tolist() == [[1, 1]] * (N + 1)
        assert [*store.schema.extras] == ["observations"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"terminations": ["a", "b"]}, "terminations: expected the name of a column, found a, b"),
        ({"episode": "group"}, "episode: expected the name of a column, found group"),
        ({"actions": ["a", "b"]}, "actions: expected the name of a column"),
        ({"terminations": "a", "truncations": "a"}, "expected a column to be one thing"),
        ({"observation": "a"}, "no such option as 'observation'; it has .*observations"),
    ],
)
def test_names_that_cannot_be_meant(tmp_path, names, message):
    flags = {name: np.zeros(N, bool) for name in ("a", "b", "group/x", "group/y")}
    with pytest.raises(SchemaError, match=message):
        import_dataset("arrays", columns(0)[0] | flags, tmp_path / "x.zarr", **names)


def test_an_array_that_continues_is_refused(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name, rows in columns(0)[0].items():
        with (folder / f"{name}.npy").open("wb") as file:
            np.save(file, rows)
            if name == "rewards":
                np.save(file, rows)
    with pytest.raises(FormatError, match=r"rewards\.npy: continues after its 5 rows"):
        import_dataset("arrays", folder, tmp_path / "x.zarr")
    assert not (tmp_path / "x.zarr").exists()


def test_masks_of_jaxrl_count_unless_something_else_says_what_ended(tmp_path):
    given = columns(0)[0]
    ends = {"dones_float": (np.arange(N) % 2 == 1) * 1.0, "masks": (np.arange(N) != 1) * 1.0}
    made = import_dataset("arrays", given | ends, tmp_path / "a.zarr", columns=["observations"])
    assert (made.terminated, made.truncated) == (1, 2)
    more = {"terminals": np.arange(N) == 3}
    made = import_dataset("arrays", given | ends | more, tmp_path / "b.zarr")
    assert (made.terminated, made.truncated) == (1, 2)
    with mmreplay.open(tmp_path / "b.zarr") as store:
        assert store.episodes["terminated"].tolist() == [False, True, False]


def test_a_final_observation_of_the_only_episode(tmp_path):
    given, seen = columns(0)
    last = {"final_observations": seen[N:]}
    import_dataset("arrays", given | last, tmp_path / "x.zarr")
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert np.array_equal(store.trajectory(0).observation, seen)


def test_next_observations_in_parts_belong_to_those_of_the_same_place(tmp_path):
    given, seen = columns(0)
    images = np.arange(N + 1, dtype="f4")[:, None]
    source = {"img": images[:N], "nimg": images[1:], "o": seen[:N], "no": seen[1:]}
    source |= {name: given[name] for name in ("actions", "rewards")}
    names = {"observations": ["img", "o"], "next_observations": ["nimg", "no"]}
    made = import_dataset("arrays", source, tmp_path / "x.zarr", **names)
    assert not any("final observations" in one.what for one in made.losses)
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert np.array_equal(store.trajectory(0).observation["img"], images)


def test_folders_of_folders_by_a_pattern(tmp_path):
    for name in ("0", "a/1", "a/b/2"):
        path = tmp_path / "in" / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **columns(0)[0])
    made = import_dataset("arrays", f"{tmp_path}/in/**/*.npz", tmp_path / "x.zarr")
    assert made.episodes == 3
