"""Columns that are added and dropped: where values come from, what is refused, what a crash leaves."""

import filecmp
import itertools
import os
import shutil

import numpy as np
import pytest
import tensorstore
import zarr

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    DiskFullError,
    InvalidIdError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.maintenance import column_values
from tests.support.disks.faults import faulty_disk, kill
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import disk
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.power_cut.power import power_disk

LAYOUT = Layout(Field((3,), "uint8", "raw", chunk=8), Field((), "int64", chunk=8))
LAYOUTS = {
    "one": LAYOUT,
    "evicting": Layout(LAYOUT.frame, LAYOUT.action, capacity=30),
    "vector": Layout(LAYOUT.frame, LAYOUT.action, environments=3),
    "lanes": Layout(LAYOUT.frame, LAYOUT.action, lanes=2, episode={"task": mmreplay.Text(8)}),
    "dict": Layout({"a": Field((3,)), "b": Field((), "float32")}, LAYOUT.action),
}
FLOAT = Field((), "float32")

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(params=sorted(LAYOUTS))
def layout(request):
    return LAYOUTS[request.param]


@pytest.fixture
def made(tmp_path):
    """Makes a closed store of 200 rows and says its model."""

    def make(layout=LAYOUT, name="s.zarr", n_rows=200):
        writers, model = layout.create_lanes(tmp_path / name), layout.model()
        Pair(writers, model, np.random.default_rng(0)).play(n_rows, 0.1)
        for writer in writers:
            writer.close()
        model.end_session()
        return tmp_path / name, model

    return make


def values(path, name, ids=None):
    with mmreplay.open(path) as store:
        return store.transitions(store.ids if ids is None else ids, stack=None).extras[name]


def same_files(one, other):
    found = filecmp.dircmp(one, other, ignore=[])
    return not (found.left_only or found.right_only or found.diff_files) and all(
        same_files(os.path.join(one, name), os.path.join(other, name)) for name in found.subdirs
    )


# ---------------------------------------------------------------- values

ONLY_DEEP = pytest.mark.deep(only=True)
FURTHER = ("list", "memory map", "zarr array")


@pytest.mark.parametrize(
    "how",
    ["array", "pairs", "function", *(pytest.param(one, marks=ONLY_DEEP) for one in FURTHER)],
)
def test_values_come_from_an_array_from_pairs_and_from_a_function(made, tmp_path, layout, how):
    path, model = made(layout)
    ids = model.ids()
    given = np.arange(2 * ids.size, dtype="float32").reshape(-1, 2) + 1
    sources = {
        "array": lambda: given,
        "list": given.tolist,
        "memory map": lambda: _mapped(tmp_path / "m", given),
        "zarr array": lambda: zarr.create_array(str(tmp_path / "z"), data=given),
        "pairs": lambda: ((ids[i : i + 7], given[i : i + 7]) for i in range(0, ids.size, 7)),
        "function": lambda: lambda one: given[np.searchsorted(ids, one.ids)],
    }
    n_values = mmreplay.add_column(path, "x", sources[how](), Field((2,), "float32"))
    if how == "function":
        whole = [
            number << 40 | entry
            for number, lane in enumerate(model.lanes)
            for one in lane.whole_episodes()
            for entry in one.entries(lane.n)
        ]
        given[~np.isin(ids, whole)] = 0
        assert n_values == len(whole)
    else:
        assert n_values == ids.size
    assert (values(path, "x") == given).all()
    assert mmreplay.verify(path).findings == []
    disk.check_plain_zarr(path)


def _mapped(path, given):
    out = np.lib.format.open_memmap(path, "w+", given.dtype, given.shape)
    out[...] = given
    return out


@pytest.mark.parametrize("n_together", [1, 20, 1 << 14])
def test_a_function_sees_whole_trajectories_with_true_final_observations(
    made, layout, n_together, monkeypatch
):
    monkeypatch.setattr(column_values, "_BLOCK_ROWS", n_together)
    path, model = made(layout)
    seen = []

    def look(one):
        seen.append(one.read())
        assert len(one) == len(one.ids) == len(one.reward) == len(one.extras.get("x", one.ids))
        return one.reward

    mmreplay.add_column(path, "reward_again", look)
    with mmreplay.open(path) as store:
        assert len(seen) == len(store.episodes) > 0
        for number, one in enumerate(seen):
            expected = store.trajectory(number)
            for name in ("action", "reward", "non_terminal", "ids"):
                assert (getattr(one, name) == getattr(expected, name)).all()
            assert (one.terminated, one.truncated) == (expected.terminated, expected.truncated)
            assert one.episode == expected.episode
            frames = one.observation if model.schema.is_dict else {"": one.observation}
            wanted = expected.observation if model.schema.is_dict else {"": expected.observation}
            assert all(np.array_equal(frames[key], wanted[key], equal_nan=True) for key in frames)
            assert (expected.extras["reward_again"] == expected.reward).all()


def test_the_field_is_that_of_the_first_values_unless_one_is_given(made):
    path, model = made()
    n = len(model)
    mmreplay.add_column(path, "a", np.zeros((n, 2, 3), "int16"))
    mmreplay.add_column(path, "b", np.arange(n), Field((), "float16", chunk=512))
    mmreplay.add_column(path, "c", iter([(model.ids()[:4].reshape(2, 2), np.ones((2, 2, 5)))]))
    with mmreplay.open(path) as store:
        assert store.schema.derived["a"] == Field((2, 3), "int16")
        assert store.schema.derived["b"] == Field((), "float16")
        assert store.schema.derived["c"] == Field((5,), "float64")
        assert store.info()["fields"]["derived/b"]["chunk_rows"] == 512
    found = values(path, "c")
    assert (found[:4] == 1).all()
    assert not found[4:].any()


def test_of_pairs_the_last_value_of_an_id_counts_and_minus_one_is_skipped(made):
    path, model = made()
    ids = model.ids()
    pairs = [(ids[:3], [1.0, 2, 3]), ([[ids[1], -1]], [[5.0, 6.0]]), ([ids[0], ids[0]], [7, 8])]
    assert mmreplay.add_column(path, "x", iter(pairs), FLOAT) == 6
    assert values(path, "x").tolist() == [8, 5, 3, *[0] * (ids.size - 3)]


def test_every_reader_of_zarr_reads_the_new_arrays(made, layout):
    path, model = made(layout)
    mmreplay.add_column(path, "x", np.arange(len(model)) + 1.0, FLOAT)
    mmreplay.add_column(path, "y", np.arange(3 * len(model)).reshape(-1, 3))
    with mmreplay.open(path) as store:
        for lane in store.lanes:
            for name in ("x", "y"):
                expected = lane.extras[name][:]
                where = lane.path / "derived" / name
                assert (zarr.open_array(str(where), mode="r")[:] == expected).all()
                group = zarr.open_group(str(lane.path), mode="r")  # by the consolidated copy
                assert (group[f"derived/{name}"][:] == expected).all()
                kvstore = {"driver": "file", "path": str(where)}
                other = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
                assert (other.read().result() == expected).all()
                assert other.domain.labels[0] == "step"


# ---------------------------------------------------------------- what is refused


def test_what_does_not_fit_is_refused_and_the_store_is_as_it_was(made, tmp_path):
    path, model = made()
    n, ids = len(model), model.ids()
    mmreplay.add_column(path, "old", np.zeros(n))
    shutil.copytree(path, tmp_path / "before.zarr")
    short = lambda one: np.zeros(1)  # noqa: E731
    for name, source, field, error, says in (
        ("x", np.zeros(n - 1), None, SchemaError, f"a value for each of {n}"),
        ("x", np.zeros((n, 2)), FLOAT, SchemaError, "expected shape"),
        ("x", np.full(n, "text"), None, SchemaError, "dtype"),
        ("x", np.full(n, 1e300), FLOAT, SchemaError, "does not hold"),
        ("x", 5, None, SchemaError, "expected an array"),
        ("x", iter([ids]), None, SchemaError, "expected pairs"),
        ("x", iter([(ids, np.zeros(3))]), None, SchemaError, "a value for each of the ids"),
        ("x", iter([([1 << 30], [1.0])]), FLOAT, InvalidIdError, "is not a transition"),
        ("x", iter([]), None, SchemaError, "no value to take the field from"),
        ("x", short, None, SchemaError, "trajectory with id"),
        ("x", "no_such_module:f", None, MmreplayError, "loading it raised"),
        ("x", "text", None, MmreplayError, "expected an array, an iterator, 'module:callable'"),
        ("x", np.zeros(n), Field((), "float32", fill=1), SchemaError, "fill"),
        ("x", np.zeros(n), Field((), "float32", "lz4"), SchemaError, "only frames are compressed"),
        ("x", np.zeros((n, 9)), Field((9,), "float64", chunk=1 << 19), SchemaError, "smaller"),
        ("old", np.zeros(n), None, SchemaError, "replace=True"),
        ("mask", np.zeros(n), None, SchemaError, "arguments of step"),
        ("reward", np.zeros(n), None, SchemaError, "reserved"),
        ("discount", np.zeros(n), None, SchemaError, "reserved"),
        ("episode.task", np.zeros(n), None, SchemaError, "reserved"),
        ("observation.x", np.zeros(n), None, SchemaError, "reserved"),
        ("x.tmp", np.zeros(n), None, SchemaError, "reserved"),
        ("../x", np.zeros(n), None, SchemaError, "cannot be a column's"),
    ):
        with pytest.raises(error, match=says):
            mmreplay.add_column(path, name, source, field)
        assert same_files(path, tmp_path / "before.zarr"), name
    with pytest.raises(RuntimeError, match="of the user"):
        mmreplay.add_column(path, "x", _raises)
    with pytest.raises(SchemaError, match=r"expected a derived column, of \['old'\]; found 'x'"):
        mmreplay.drop_column(path, "x")
    assert same_files(path, tmp_path / "before.zarr")


def _raises(_):
    raise RuntimeError("of the user")


def test_a_name_that_an_extra_has_is_refused(tmp_path):
    with mmreplay.create(
        tmp_path / "s.zarr", LAYOUT.frame, LAYOUT.action, extras={"x": Field()}
    ) as writer:
        writer.reset(np.zeros(3, "uint8"))
        writer.step(0, 0.0, np.zeros(3, "uint8"), x=1)
    for replace in (False, True):
        with pytest.raises(SchemaError, match=r"\['x'\] are extras already"):
            mmreplay.add_column(tmp_path / "s.zarr", "x", [1.0], replace=replace)
    with pytest.raises(SchemaError, match="expected a derived column, of none"):
        mmreplay.drop_column(tmp_path / "s.zarr", "x")


def test_paths_that_are_no_store_are_refused(made, tmp_path):
    path, _ = made(LAYOUTS["lanes"])
    with pytest.raises(StoreNotFoundError):
        mmreplay.add_column(tmp_path / "none.zarr", "x", [])
    with pytest.raises(SchemaError, match="a part of the store"):
        mmreplay.add_column(path / "lane-00000", "x", [])
    with pytest.raises(SchemaError, match="expected a path"):
        mmreplay.drop_column(5, "x")


@pytest.mark.parametrize("name", ["one", "lanes"])
def test_a_store_that_is_written_is_refused_and_one_that_a_crash_left_is_closed(made, name):
    path, model = made(LAYOUTS[name])
    mmreplay.add_column(path, "old", np.zeros(len(model)))
    lane = {"lane": "actor-1"} if name == "lanes" else {}
    writer = mmreplay.create(path, append=True, flush_s=0, **lane)
    writer.reset(np.zeros(3, "uint8"))
    writer.step(0, 0.0, np.zeros(3, "uint8"), old=9)
    for call in (
        lambda: mmreplay.add_column(path, "x", []),
        lambda: mmreplay.drop_column(path, "old"),
    ):
        with pytest.raises(LockedError, match="open for writing already"):
            call()
    kill(writer)
    mmreplay.add_column(path, "x", np.ones(len(model) + 1), FLOAT)
    assert values(path, "x").sum() == len(model) + 1
    assert values(path, "old").max() == 9
    assert mmreplay.open(path).info()["state"] == "closed"


def test_a_column_that_is_updated_is_neither_replaced_nor_dropped(made):
    path, model = made()
    mmreplay.add_column(path, "x", np.zeros(len(model)))
    with mmreplay.load(path, update=["x"]) as data:
        with pytest.raises(LockedError, match="derived/x"):
            mmreplay.add_column(path, "x", np.ones(len(model)), replace=True)
        with pytest.raises(LockedError, match="derived/x"):
            mmreplay.drop_column(path, "x")
        mmreplay.add_column(path, "y", np.ones(len(model)))
        data.update(data.ids[:1], x=[5.0])
    assert values(path, "x").sum() == 5


# ---------------------------------------------------------------- replaced, dropped, read meanwhile


def test_a_store_whose_columns_were_all_dropped_is_as_before_they_were_added(
    made, tmp_path, layout
):
    path, model = made(layout)
    shutil.copytree(path, tmp_path / "before.zarr")
    for name in ("x", "y"):
        mmreplay.add_column(path, name, np.ones(len(model)))
    mmreplay.add_column(path, "x", np.zeros((len(model), 2), "int8"), replace=True)
    assert values(path, "x").shape == (len(model), 2)
    for name in ("y", "x"):
        mmreplay.drop_column(path, name)
    assert same_files(path, tmp_path / "before.zarr")


def test_readers_that_are_open_keep_their_columns(made, layout):
    path, model = made(layout)
    mmreplay.add_column(path, "x", np.arange(len(model)))
    with mmreplay.load(path, stack=None) as data, mmreplay.load(path, columns=["x"]) as chosen:
        mmreplay.add_column(path, "y", np.ones(len(model)))
        for one in (data, chosen):
            one.refresh()
            assert one.sample(3).extras.keys() == {"x"}
        mmreplay.add_column(path, "x", -np.arange(len(model)), replace=True)
        data.refresh()
        assert (data.transitions(data.ids).extras["x"] == -np.arange(len(model))).all()
        mmreplay.drop_column(path, "y")
        data.refresh()
        data.sample(3)
        mmreplay.drop_column(path, "x")
        with pytest.raises(SchemaError, match=r"derived/x none and not \(\) int64.*open the store"):
            data.refresh()


def test_lanes_that_come_later_have_the_columns_of_their_store(made):
    path, model = made(LAYOUTS["lanes"])
    mmreplay.add_column(path, "x", np.ones(len(model)), Field((), "float32", chunk=32))
    with mmreplay.create(path, lane="late", flush_s=0) as writer:
        writer.reset(np.zeros(3, "uint8"))
        writer.step(0, 0.0, np.zeros(3, "uint8"))
        writer.step(0, 0.0, np.zeros(3, "uint8"), x=5)
    assert values(path, "x")[-3:].tolist() == [1, 0, 5]
    assert mmreplay.verify(path).findings == []
    mmreplay.drop_column(path, "x")
    with mmreplay.create(path, lane="later", flush_s=0) as writer:
        assert writer.schema.derived == {}


# ---------------------------------------------------------------- crashes and full disks


class _Crash(BaseException):
    pass


def _lives(tmp_path, path, call):
    """Calls that change the disk are the last one, by a kill or a power cut."""
    for power, step in ((False, by_effort(9, 2, 1)), (True, by_effort(23, 9, 4))):
        for count in itertools.count(1, step):
            folder = tmp_path / f"life-{power}-{count}"
            folder.mkdir()
            copy = folder / "s.zarr"
            shutil.copytree(path, copy)

            def before_call(number, last=count):
                if number == last:
                    raise _Crash

            with power_disk(folder, before_call) as known:
                try:
                    call(copy)
                except _Crash:
                    if power:
                        known.cut()
                else:
                    break
            yield copy
            shutil.rmtree(folder)


@pytest.mark.deep
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", ["one", "lanes"])
def test_killed_or_without_power_a_store_is_as_before_or_after_and_the_call_can_be_repeated(
    made, tmp_path, name, replace
):
    path, model = made(LAYOUTS[name], n_rows=20)
    n = len(model)
    if replace:
        mmreplay.add_column(path, "x", np.full(n, 1.0), FLOAT)
    add = lambda one: mmreplay.add_column(one, "x", np.full(n, 2.0), FLOAT, replace)  # noqa: E731
    states = set()
    for copy in _lives(tmp_path, path, add):
        report = mmreplay.verify(copy)
        assert report.findings == []
        with mmreplay.open(copy) as store:
            found = store.transitions(store.ids, stack=None).extras
            assert found.keys() <= {"x"}
            states.add(float(found["x"].min()) if found else None)
            assert len({*found.get("x", np.zeros(1)).tolist()}) == 1
        mmreplay.add_column(copy, "x", np.full(n, 2.0), FLOAT, replace=True)
        assert mmreplay.verify(copy).warnings == []
        assert (values(copy, "x") == 2).all()
        assert not [*copy.rglob("*.tmp")]
    all_states = {1.0, None, 2.0} if replace else {None, 2.0}
    assert states == all_states or (not THOROUGH and states < all_states)


def test_a_column_that_is_dropped_is_there_or_not_whenever_that_is_cut_off(made, tmp_path):
    path, model = made(LAYOUTS["lanes"], n_rows=20)
    mmreplay.add_column(path, "x", np.ones(len(model)), FLOAT)
    for copy in _lives(tmp_path, path, lambda one: mmreplay.drop_column(one, "x")):
        assert mmreplay.verify(copy).findings == []
        with mmreplay.open(copy) as store:
            assert store.transitions(store.ids[:1], stack=None).extras.get("x", [1]) == [1]
        try:
            mmreplay.drop_column(copy, "x")
        except SchemaError:
            assert mmreplay.verify(copy).warnings == []
        assert not mmreplay.open(copy).extras


def test_a_writer_removes_what_an_interrupted_call_left(made):
    path, _ = made()
    for folder in ("derived", "checksums/derived"):
        (path / folder / "x.tmp").mkdir(parents=True)
        (path / folder / "x.tmp" / "c.0").write_bytes(b"half")
    mmreplay.create(path, append=True).close()
    assert not [*path.rglob("*.tmp")]


def test_a_full_disk_changes_nothing(made, tmp_path):
    path, model = made(LAYOUTS["lanes"])
    shutil.copytree(path, tmp_path / "before.zarr")
    for at in range(1, 5):
        with faulty_disk() as broken:
            broken.fail({"posix_fallocate"}, 28, at=at)
            with pytest.raises(DiskFullError, match="no room"):
                mmreplay.add_column(path, "x", np.ones((len(model), 4)), Field((4,), "float64"))
        assert same_files(path, tmp_path / "before.zarr")
