"""Parquet in and out: pyarrow reads what is written, and what it writes is read."""

import glob

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest

import mmreplay
from mmreplay import Field, FormatError, export_dataset, import_dataset
from tests.support.played_episodes import DICT, assert_same, play, read_back, write, write_vector

ENDS = "terminations"


def steps(n, **others):
    """Columns of n steps of one episode."""
    return {
        "observations": np.arange(n, dtype="uint8"),
        "actions": np.arange(n, dtype="int16"),
        "rewards": np.arange(n, dtype="int8"),
        ENDS: np.arange(n) == n - 1,
    } | others


@pytest.mark.parametrize("frames", [{"frame": Field((3,), "uint8")}, DICT], ids=["array", "dict"])
@pytest.mark.parametrize("make", [write, write_vector])
@pytest.mark.parametrize("group", [1, 1 << 24])
def test_there_and_back_every_byte_is_the_same(
    tmp_path, quick_disk, monkeypatch, frames, make, group
):
    monkeypatch.setattr("mmreplay.exchange.parquet._GROUP_BYTES", group)
    extras = {"x": Field((), "float16"), "flag": Field((2,), "bool"), "n": Field((), "uint64")}
    episodes = play(frames=frames, action=Field((), "int32"), extras=extras)
    made = export_dataset(make(tmp_path / "a.zarr", episodes), "parquet", tmp_path / "a.parquet")
    assert (made.transitions, made.episodes, made.losses) == (25, 4, ())
    back = import_dataset("parquet", tmp_path / "a.parquet", tmp_path / "b.zarr")
    assert (back.transitions, back.terminated, back.truncated, back.losses) == (25, 2, 2, ())
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


@pytest.mark.parametrize("given", ["folder", "pattern", "list"])
def test_files_whose_columns_mark_ends_are_one_table(tmp_path, quick_disk, given):
    """In the order of the numbers in their names, whichever way they are named."""
    columns = {
        "observations": np.arange(24, dtype="uint8"),
        "actions": np.zeros(24, "int64"),
        "rewards": np.arange(24, dtype="float32"),
        "terminations": np.arange(24) % 8 == 7,
    }
    table = pa.table(columns)
    kwargs = {"format": "parquet", "max_rows_per_file": 2, "max_rows_per_group": 2}
    pa_dataset.write_dataset(table, tmp_path / "in", **kwargs)
    assert (tmp_path / "in" / "part-10.parquet").exists()
    pattern = f"{tmp_path}/in/*.parquet"
    src = {"folder": tmp_path / "in", "pattern": pattern, "list": sorted(glob.glob(pattern))}
    made = import_dataset("parquet", src[given], tmp_path / "s.zarr")
    losses = {one.what: one.count for one in made.losses}
    assert losses["episodes that go on in the next file, as these are one table"] == 9
    with mmreplay.open(tmp_path / "s.zarr") as store:
        assert store.episodes["length"].tolist() == [8, 8, 8]
        assert store.transitions(store.ids, stack=None).reward.tolist() == list(range(24))


@pytest.mark.parametrize("given", ["folder", "pattern"])
@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("empty", [{0}, {1}, {0, 1, 2}])
@pytest.mark.parametrize("none", [steps(0), {}], ids=["columns", "no columns"])
def test_files_without_rows(tmp_path, quick_disk, given, marks, empty, none):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        columns = none if number in empty else steps(4)
        table = pa.table({name: one for name, one in columns.items() if marks or name != ENDS})
        pq.write_table(table, folder / f"{number}.parquet")
    src = folder if given == "folder" else f"{folder}/*.parquet"
    if len(empty) == 3:
        with pytest.raises(FormatError, match=r"0\.parquet: expected rows, found no Parquet file"):
            import_dataset("parquet", src, tmp_path / "s.zarr")
        return
    made = import_dataset("parquet", src, tmp_path / "s.zarr")
    assert (made.transitions, made.episodes, made.terminated) == (8, 2, 2 * marks)
    assert {one.what: one.count for one in made.losses}["files without rows"] == 1


def test_pyarrow_reads_what_is_written(tmp_path, quick_disk):
    frames = {"frame": Field((4, 5), "uint8")}
    episodes = play(frames=frames, lives=False)
    store = write(tmp_path / "a.zarr", episodes)
    export_dataset(store, "parquet", tmp_path / "a.parquet", compression="snappy")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.num_rows == 25
    assert table["terminations"].to_numpy().sum() == table["truncations"].to_numpy().sum() == 2
    assert table["rewards"].to_numpy().tolist() == [r for one in episodes for r in one.reward]
    actions = np.stack(table["actions"].to_numpy())
    assert np.array_equal(actions, np.concatenate([one.action for one in episodes]))
    images = [np.frombuffer(one, "u1").reshape(4, 5) for one in table["observations"].to_pylist()]
    assert np.array_equal(images[0], episodes[0].observation["frame"][0])
    final = table["final_observations"].to_pylist()
    assert [n for n, one in enumerate(final) if one is not None] == [6, 7, 19, 24]
    assert final[24] == episodes[3].observation["frame"][-1].tobytes()


def test_a_table_of_others_in_several_files(tmp_path, quick_disk):
    (tmp_path / "in").mkdir()
    for number in range(3):
        start = number * 4
        steps = np.arange(start, start + 4)
        table = pa.table(
            {
                "observation": [[float(step), 1.0] for step in steps],
                "action": pa.array(steps, pa.int64()),
                "reward": pa.array(steps / 2, pa.float32()),
                "episode_index": pa.array(steps // 3),
                "task": ["reach"] * 4,
                "matrix": [[[1, 2, 3], [4, 5, int(step)]] for step in steps],
            }
        )
        pq.write_table(table, tmp_path / "in" / f"part-{number}.parquet", row_group_size=3)
    made = import_dataset("parquet", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.transitions, made.episodes, made.truncated) == (12, 4, 4)
    assert [one.what[:11] for one in made.losses] == ["column task", "episodes th", "final obser"]
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.transitions([0, 1], stack=None).action.tolist() == [0, 1]
        assert store.episodes["return"].tolist() == [1.5, 6, 10.5, 15]
        assert store.extras["matrix"][1].tolist() == [[1, 2, 3], [4, 5, 1]]


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        ([[1.0, 2.0], [1.0], [2.0, 3.0]], "shape .2,., found 1 lists without 2 values"),
        ([[1.0, 2.0], [1.0], [2.0, 3.0, 4.0]], "2 lists without 2 values, the first with 1"),
        ([[1.0, 2.0], None, [2.0, 3.0]], "1 values are missing"),
        ([[1, 2], [3, None], [2**53 + 1, 2]], "1 values are missing"),
        ([[[1, 2], [3, 4]], [[1], [2, 3, 4]], [[1, 2], [3, 4]]], "2 lists without 2"),
    ],
)
def test_rows_that_are_not_alike_are_refused(tmp_path, observations, message):
    table = pa.table({"observations": observations, "actions": [1, 2, 3], "rewards": [0.0] * 3})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(FormatError, match=message):
        import_dataset("parquet", tmp_path / "a.parquet", tmp_path / "a.zarr")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"rewards": [0.5, 0.25, 0.75]}, "part-1.parquet: rewards: expected int8, found float64"),
        ({"actions": np.array([0, 1, 70_000])}, "actions: expected int16, found int64"),
        ({"terminations": [0.0, 0.5, 1.0]}, "terminations: expected bool, found float64"),
    ],
)
def test_a_file_of_other_numbers_than_the_first_is_refused(tmp_path, quick_disk, other, message):
    (tmp_path / "in").mkdir()
    for number, columns in enumerate((steps(3), steps(3, **other))):
        pq.write_table(pa.table(columns), tmp_path / "in" / f"part-{number}.parquet")
    with pytest.raises(FormatError, match=message):
        import_dataset("parquet", tmp_path / "in", tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()


def test_files_without_rows_hidden_ones_and_columns_of_some_only(tmp_path, quick_disk):
    for name, table in (
        ("in/part-0.parquet", pa.table(steps(3)).slice(0, 0)),
        ("in/part-1.parquet", pa.table(steps(3))),
        ("in/part-2.parquet", pa.table(steps(4, rewards=np.ones(4, "i1"), more=np.ones(4)))),
        ("in/_tmp.parquet", pa.table(steps(9))),
        ("in/.hidden/part-3.parquet", pa.table(steps(9))),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / name)
    made = import_dataset("parquet", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.transitions, made.episodes, made.terminated) == (7, 2, 2)
    assert [one.what for one in made.losses[:3]] == [
        "files that are not read: .hidden/part-3.parquet, _tmp.parquet",
        "files without rows",
        "column more: 1 columns of this name in 2 files",
    ]


@pytest.mark.parametrize("data", [b"", b"PAR1 and no more", b"\0" * 5000])
def test_what_is_no_parquet_is_refused(tmp_path, data):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(FormatError, match="cannot be read as parquet"):
        import_dataset("parquet", tmp_path / "a.parquet", tmp_path / "a.zarr")
    with pytest.raises(FormatError, match=r"expected .parquet files, found none"):
        (tmp_path / "in").mkdir()
        import_dataset("parquet", tmp_path / "in", tmp_path / "a.zarr")


def test_files_without_ends_of_episodes_are_one_each(tmp_path, quick_disk):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        n = 3 + number
        rows = {"obs": np.full(n, number, "f4"), "actions": np.arange(n), "rewards": np.ones(n)}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet")
    for src in (folder, f"{folder}/*.parquet"):
        target = tmp_path / f"{type(src).__name__}.zarr"
        made = import_dataset("parquet", src, target)
        assert (made.transitions, made.episodes) == (12, 3)
        with mmreplay.open(target) as store:
            assert store.episodes["length"].tolist() == [3, 4, 5]
