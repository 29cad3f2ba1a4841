"""Updates of derived columns: what is stored, what is refused, who may, and what is left."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, ReplayBuffer
from mmreplay.errors import ClosedError, InvalidIdError, LockedError, SchemaError
from tests.support.disks.faults import kill

FIELDS = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}
DERIVED = {"v": Field((), "float32", chunk=1024), "z": Field((2,), "float16", chunk=7)}

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def buffer(tmp_path):
    """Of 20 steps, of which 12 can be sampled; `v` is the number of each."""
    made = ReplayBuffer(tmp_path / "s.zarr", 12, stack=None, flush_s=0, derived=DERIVED, **FIELDS)
    play(made)
    yield made
    kill(made)


def play(writer, n=20):
    writer.reset(np.zeros(3, np.uint8))
    for t in range(n):
        writer.step(t, 1.0, np.full(3, t, np.uint8), v=t)


def values(path, name="v", ids=None):
    with mmreplay.open(path) as store:
        chosen = store.ids if ids is None else ids
        return store.transitions(chosen, stack=None).extras[name].tolist()


def test_values_are_seen_at_once_by_batches_sequences_and_trajectories(tmp_path):
    with ReplayBuffer(tmp_path / "s.zarr", stack=None, derived=DERIVED, **FIELDS) as buffer:
        play(buffer)
        follower = mmreplay.load(tmp_path / "s.zarr", stack=None)
        assert follower.transitions([3, 4]).extras["z"].tolist() == [[0, 0], [0, 0]]
        batch = buffer.sample_sequences(2, 3)
        buffer.update(batch.id, z=np.ones((2, 3, 2), "float16"), v=-batch.id)
        for data in (buffer, follower):
            assert (data.transitions(batch.id[0]).extras["v"] == -batch.id[0]).all()
            assert (data.store.trajectory(0).extras["z"][batch.id] == 1).all()
        assert buffer.store.extras["v"][batch.id[1, 2]] == -batch.id[1, 2]
        windows = buffer.windows(batch.id[0], {"v": (0, -1), "z": 0})
        found = buffer.store.extras["v"][:]
        assert windows["v"][:, 0].tolist() == (-batch.id[0]).tolist()
        kept = windows.mask["v"][:, 1]
        assert (windows["v"][kept, 1] == found[batch.id[0][kept] - 1]).all()
        assert (windows["z"] == 1).all()
        assert buffer.statistics(["v"])["v"].mean == pytest.approx(found.mean())


def test_the_last_of_an_id_counts_minus_one_is_skipped_and_late_ones_are_counted(buffer):
    buffer.update([[9, -1], [19, 9], [2, 0]], v=[[1, 2], [3, 4], [5, 6]])
    assert buffer.transitions([9, 10, 19]).extras["v"].tolist() == [4, 10, 3]
    assert buffer.n_late_updates == 2
    buffer.update([], v=[])
    buffer.update(np.full((2, 0), 3), v=np.zeros((2, 0)))
    assert buffer.n_late_updates == 2


def test_selections_and_wrappers_update_what_their_data_updates(buffer):
    part = buffer.select(ids=[9, 10, 11])
    for number, data in enumerate((part, mmreplay.Decorated(part, lambda batch, _: batch))):
        data.update([9, 12, 2], v=[number, 7, 7])
        assert buffer.transitions([9, 12]).extras["v"].tolist() == [number, 7]
        assert data.n_late_updates == buffer.n_late_updates == number + 1
        data.flush()
    part.close()
    buffer.update([9], v=[8])
    with pytest.raises(mmreplay.UnsupportedError, match=r"^Mixture\.update: "):
        mmreplay.Mixture([buffer]).update([9], v=[1])


def test_values_of_other_dtypes_are_stored_if_they_fit(buffer):
    buffer.update([9, 10], v=[True, False], z=np.array([[1, 2], [3, 4]], "int8"))
    assert buffer.transitions([9, 10]).extras["v"].tolist() == [1, 0]
    assert buffer.transitions([9, 10]).extras["z"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("error", "says", "ids", "columns"),
    [
        (SchemaError, "expected columns of", [9], {"v": [1], "w": [1]}),
        (SchemaError, r"v: expected shape \(1,\), found \(2,\)", [9], {"z": [[1, 2]], "v": [1, 2]}),
        (SchemaError, r"z: expected shape \(1, 2\)", [9], {"v": [1], "z": [1]}),
        (SchemaError, "does not hold", [9], {"v": [1], "z": [[1e9, 0]]}),
        (SchemaError, "expected integers", [9.0], {"v": [1]}),
        (InvalidIdError, "id 20 ", [9, 20], {"v": [1, 2], "z": [[1, 2], [3, 4]]}),
        (InvalidIdError, "id -2: ", [9, -2], {"v": [1, 2]}),
        (InvalidIdError, r"there is no lane 1", [9, 1 << 40], {"v": [1, 2]}),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(buffer, error, says, ids, columns):
    before = buffer.transitions(buffer.ids).extras
    with pytest.raises(error, match=says):
        buffer.update(ids, **columns)
    after = buffer.transitions(buffer.ids).extras
    assert all((after[name] == before[name]).all() for name in before)
    assert buffer.n_late_updates == 0


def test_an_extra_and_a_column_that_is_not_read_are_not_updated(tmp_path):
    with mmreplay.create(tmp_path / "s.zarr", **FIELDS, extras={"x": Field()}) as writer:
        writer.reset(np.zeros(3, np.uint8))
        writer.step(1, 1.0, np.zeros(3, np.uint8), x=7)
    mmreplay.add_column(tmp_path / "s.zarr", "v", [1.0])
    with pytest.raises(SchemaError, match="expected derived columns that are read"):
        mmreplay.load(tmp_path / "s.zarr", update=["x"])
    with pytest.raises(SchemaError, match="expected derived columns that are read"):
        mmreplay.load(tmp_path / "s.zarr", update=["v"], columns=["x"])
    with pytest.raises(SchemaError, match="expected a list of names, found 'v'"):
        mmreplay.load(tmp_path / "s.zarr", update="v")
    with (
        mmreplay.load(tmp_path / "s.zarr") as data,
        pytest.raises(SchemaError, match="columns of none"),
    ):
        data.update([0], v=[2.0])


# ---------------------------------------------------------------- who may


def test_one_at_a_time_updates_a_column(buffer, tmp_path):
    path = tmp_path / "s.zarr"
    with mmreplay.load(path, stack=None, update=["v"]) as other:
        buffer.update([9], z=[[1, 2]])
        with pytest.raises(LockedError, match=r"derived/v: open for writing already"):
            buffer.update([9], v=[1])
        with pytest.raises(LockedError, match="derived/z"):
            mmreplay.load(path, update=["z"])
        other.update([9], v=[5])
    with pytest.raises(ClosedError):
        other.update([9], v=[5])
    buffer.update([10], v=[6])
    assert buffer.transitions([9, 10]).extras["v"].tolist() == [5, 6]


def test_another_process_updates_while_this_one_writes(buffer, tmp_path):
    path = tmp_path / "s.zarr"
    code = (
        "import sys, mmreplay\n"
        "with mmreplay.load(sys.argv[1], stack=None, update=['v']) as data:\n"
        "    data.update(data.ids, v=-data.ids)\n"
        "    print('done', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    data.refresh()\n"
        "    data.update(data.ids[-1:], v=[1000])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "done\n"
        assert (buffer.transitions(buffer.ids).extras["v"] == -buffer.ids).all()
        with pytest.raises(LockedError, match="another writer holds this column"):
            buffer.update([9], v=[1])
        buffer.step(1, 1.0, np.zeros(3, np.uint8), v=20)
        buffer.close()  # while it goes on
        assert mmreplay.verify(path).sound
        child.communicate("go on\n")
        assert child.returncode == 0
    assert values(path)[-2:] == [-19, 1000]
    report = mmreplay.verify(path)
    assert (report.findings, report.warnings) == ([], [])


def test_a_forked_child_and_a_pickle_do_not_update(buffer):
    buffer.update([9], v=[1])
    child = os.fork()
    if not child:
        status = 1
        try:
            buffer.update([9], v=[2])
        except SchemaError:
            status = 0
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    buffer.update([9], v=[3])
    with mmreplay.load(buffer.store.path, update=["z"]) as data:
        copy = pickle.loads(pickle.dumps(data))
        with pytest.raises(SchemaError, match="expected columns of none"):
            copy.update([9], z=[[0, 0]])
        assert copy.store.schema.derived.keys() == {"v", "z"}


# ---------------------------------------------------------------- what is left


def test_a_closed_store_is_sound_after_updates_and_after_a_death_among_them(tmp_path):
    path = tmp_path / "s.zarr"
    with mmreplay.create(path, derived=DERIVED, **FIELDS) as writer:
        play(writer)
    data = mmreplay.load(path, stack=None, update=["v", "z"])
    data.update([3, 19], v=[7, 8])
    report = mmreplay.verify(path)  # as a death would leave it
    assert report.sound
    assert [one.file for one in report.warnings] == ["derived/v/c.0"]
    data.close()
    report = mmreplay.verify(path)
    assert (report.findings, report.warnings) == ([], [])
    assert values(path)[3::16] == [7, 8]


def test_values_survive_a_death_and_later_writers(buffer, tmp_path):
    buffer.update([9, 10], v=[-1, -2], z=[[1, 1], [2, 2]])
    kill(buffer)
    path = tmp_path / "s.zarr"
    assert values(path, ids=[9, 10]) == [-1, -2]
    with ReplayBuffer(path, stack=None, flush_s=0) as again:
        again.reset(np.zeros(3, np.uint8))
        again.step(0, 0.0, np.zeros(3, np.uint8))
        assert again.transitions([9, 10, 20]).extras["v"].tolist() == [-1, -2, 0]
        again.update([20], z=[[3, 3]])
    assert values(path, "z", [9, 10, 20]) == [[1, 1], [2, 2], [3, 3]]
    assert mmreplay.verify(path).findings == []


def test_a_value_that_a_failed_step_had_is_not_that_of_the_next(buffer):
    with pytest.raises(SchemaError, match="flags"):
        buffer.step(20, 1.0, np.zeros(3, np.uint8), terminated=[1, 2], v=9, z=[9, 9])
    with pytest.raises(SchemaError, match="extras"):
        buffer.step(20, 1.0, np.zeros(3, np.uint8), w=9)
    buffer.writer._put_extras(20, {"derived/v": 9, "derived/z": 9})  # as if its end had failed
    buffer.step(20, 1.0, np.zeros(3, np.uint8), z=[1, 2])
    assert buffer.transitions([20]).extras["v"].tolist() == [0]
    assert buffer.transitions([20]).extras["z"].tolist() == [[1, 2]]


def test_files_with_other_names_are_not_changed(buffer, tmp_path):
    """As `cp -al` makes them: the next writer, and whoever updates a closed store, has its own."""
    buffer.close()
    path, copy = tmp_path / "s.zarr", tmp_path / "copy.zarr"
    subprocess.run(["cp", "-al", path, copy], check=True)
    before = values(copy)
    with mmreplay.load(path, stack=None, update=["v"]) as data:
        data.update(data.ids, v=-data.ids)
    subprocess.run(["cp", "-al", path, tmp_path / "second.zarr"], check=True)
    with ReplayBuffer(path, stack=None, flush_s=0) as again:
        again.update(again.ids, v=np.zeros(len(again)))
    assert values(copy) == before
    assert values(tmp_path / "second.zarr") == [-one for one in range(8, 20)]
    assert {*values(path)} == {0}
    for one in (path, copy, tmp_path / "second.zarr"):
        assert mmreplay.verify(one).findings == []


def test_only_the_columns_that_are_asked_for_are_read(buffer):
    path = buffer.store.path
    with mmreplay.load(path, stack=None, columns=["z"]) as data:
        assert data.sample(2).extras.keys() == {"z"}
        assert data.store.extras.keys() == {"z"}
        assert pickle.loads(pickle.dumps(data)).sample(2).extras.keys() == {"z"}
    with mmreplay.load(path, stack=None, columns=[]) as data:
        assert data.sample(2).extras == {}
    with pytest.raises(SchemaError, match=r"columns: .*\['v', 'z'\].*found \['w'\]"):
        mmreplay.load(path, columns=["w", "z"])


def test_stores_are_loaded_together_if_they_have_the_same_derived_columns(tmp_path):
    for name, derived in (("a", DERIVED), ("b", {"v": DERIVED["v"]})):
        with mmreplay.create(tmp_path / name, derived=derived, **FIELDS) as writer:
            play(writer, 3)
    both = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(SchemaError, match=r"derived/z none and not \(2,\) float16.*columns="):
        mmreplay.load(both)
    with mmreplay.load(both, stack=None, columns=["v"]) as data:
        assert data.transitions(data.ids).extras["v"].tolist() == [0, 1, 2] * 2


@pytest.mark.parametrize("kind", [ReplayBuffer, mmreplay.PrioritizedReplayBuffer])
def test_a_buffer_is_resumed_with_the_derived_columns_it_has(tmp_path, kind):
    given = {"stack": None, "flush_s": 0, **FIELDS}
    with kind(tmp_path / "s.zarr", derived={"v": DERIVED["v"]}, **given) as buffer:
        play(buffer)
        buffer.update([3], v=[30])
    mmreplay.add_column(tmp_path / "s.zarr", "added", np.arange(20))
    for derived in (None, {"v": Field((), "float32")}):
        with kind(tmp_path / "s.zarr", derived=derived, **given) as buffer:
            assert buffer.transitions([3]).extras["v"].tolist() == [30]
            buffer.update([4], added=[40])
            assert buffer.transitions([3, 4]).extras["added"].tolist() == [3, 40]
    with pytest.raises(SchemaError, match=r"expected .*derived/v \(\) float32.*found .*float64"):
        kind(tmp_path / "s.zarr", derived={"v": Field((), "float64")}, **given)
    with pytest.raises(SchemaError, match="derived/new"):
        kind(tmp_path / "s.zarr", derived={"new": Field()}, **given)


def test_priorities_and_values_count_late_updates_together(tmp_path):
    with mmreplay.PrioritizedReplayBuffer(
        tmp_path / "s.zarr", 12, stack=None, flush_s=0, derived=DERIVED, **FIELDS
    ) as buffer:
        play(buffer)
        buffer.update_priorities([1, 9], [1.0, 2.0])
        buffer.update([2, 9], v=[1, 2])
        assert buffer.n_late_updates == 2
