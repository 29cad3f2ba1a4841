"""Damage to values that may change: `verify` names it, and it costs values, but no row."""

import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import CorruptStoreError, Field, LockedError, pack, repair, snapshot, verify
from tests.support.disks.trees import flip

N, CHUNK = 80, 16
FIELDS = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=16)}
DERIVED = {"v": Field((), "float32", chunk=CHUNK), "z": Field((2,), "float16", chunk=CHUNK)}

pytestmark = pytest.mark.usefixtures("quick_disk")


def play(writer):
    writer.reset(np.zeros(3, np.uint8), task="a")
    for t in range(N):
        ends = t % 10 == 9
        writer.step(t, 1.0, np.full(3, t, np.uint8), ends, v=t + 1, z=[t, -t])
        if ends:
            writer.reset(np.zeros(3, np.uint8), task="b")


@pytest.fixture(params=["one", "lanes"])
def path(request, tmp_path):
    """A closed store of 80 steps, or of two such lanes."""
    path = tmp_path / "s.zarr"
    options = FIELDS | {"derived": DERIVED, "episode": {"task": mmreplay.Text(4)}, "flush_s": 0}
    for name in ("a", "b") if request.param == "lanes" else (None,):
        writer = mmreplay.create(path, lane=name, **options)
        play(writer)
        writer.close()
    return path


def lane_of(path):
    lane = path / "lane-00001"
    return lane if lane.exists() else path


def values(path):
    """All of the newest lane."""
    with mmreplay.open(path) as store:
        assert len(store) == N * len(store.lanes)
        assert store.lanes[-1].actions[:].tolist() == list(range(N))
        assert set(store.episodes["task"].tolist()) == {"a", "b"}
        return {name: one[:] for name, one in store.lanes[-1].extras.items()}


def cut(file):
    with file.open("r+b") as opened:
        opened.truncate(8)


@pytest.mark.parametrize(
    "damage", [flip, cut, lambda file: file.unlink()], ids=["flipped", "cut", "lost"]
)
@pytest.mark.parametrize("name", ["v", "z"])
def test_a_damaged_file_costs_its_values(path, name, damage):
    before = values(path)
    damage(next(lane_of(path).glob(f"derived/{name}/c.2*")))
    report = verify(path)
    assert [(one.array, one.rows) for one in report.findings] == [(f"derived/{name}", (32, 48))]
    assert not report.sound
    assert not report.from_start
    done = repair(path)
    assert (done.lost, done.kept) == (0, len(mmreplay.open(path)))
    assert all(lane.damaged == [] and not lane.renumbered for lane in done.lanes)
    before[name][32:48] = 0
    after = values(path)
    assert all((after[key] == before[key]).all() for key in before)
    assert verify(path).sound


@pytest.mark.parametrize("skip_damaged", [False, True])
def test_values_stay_with_their_rows_where_others_are_lost(path, skip_damaged):
    before = values(path)
    flip(next(lane_of(path).glob("actions/c.3")))
    flip(next(lane_of(path).glob("derived/v/c.1")))
    repair(path, skip_damaged=skip_damaged)
    before["v"][16:32] = 0
    kept = [*range(48), *(range(64, 80) if skip_damaged else ())]
    with mmreplay.open(path) as store:
        lane = store.lanes[-1]
        assert lane.actions[:].tolist() == kept
        assert (lane.extras["v"][:] == before["v"][kept]).all()
        assert (lane.extras["z"][:] == before["z"][kept]).all()


def test_a_damaged_checksum_costs_nothing(path):
    before = values(path)
    flip(lane_of(path) / "checksums" / "derived" / "v" / "c.0")
    assert not verify(path).sound
    assert repair(path).lost == 0
    assert all((one == before[key]).all() for key, one in values(path).items())


def test_a_document_that_is_lost_is_taken_from_the_copy(path):
    before = values(path)
    (lane_of(path) / "derived" / "v" / "zarr.json").unlink()
    assert not verify(path).sound
    assert repair(path).lost == 0
    assert all((one == before[key]).all() for key, one in values(path).items())


def test_a_column_that_is_gone_is_0_afterwards(path):
    before = values(path)
    shutil.rmtree(lane_of(path) / "derived" / "v")
    assert not verify(path).sound
    with mmreplay.load(path, columns=["z"]) as data:
        assert data.sample(4).extras.keys() == {"z"}
    assert repair(path).lost == 0
    after = values(path)
    assert not after["v"].any()
    assert (after["z"] == before["z"]).all()


def test_copies_do_not_take_over_damage_but_do_without_the_column(path, tmp_path):
    flip(next(lane_of(path).glob("derived/v/c.2")))
    for number, call in enumerate((snapshot, pack)):
        with pytest.raises(CorruptStoreError, match=r"derived/v/c\.2: does not match its checksum"):
            call(path, tmp_path / f"copy-{number}.zarr")
    made = pack(path, tmp_path / "packed.zarr", leave_out=["v"])
    assert made.transitions == len(mmreplay.open(path))
    assert {*mmreplay.open(tmp_path / "packed.zarr").schema.derived} == {"z"}


def test_values_that_a_killed_process_was_changing_are_a_warning_until_a_writer_closes(path):
    last = N - 1 if lane_of(path) == path else (1 << mmreplay.LANE_SHIFT) + N - 1
    data = mmreplay.load(path, update=["v"])
    data.update([last], v=[-1])
    for column in data.updates._held.values():
        column._lock.release()  # as its end would
    report = verify(path)
    assert report.sound
    assert [(one.array, one.file.rpartition("/")[2]) for one in report.warnings] == [
        ("derived/v", "c.4")
    ]
    assert "has no checksum: its values were being changed" in str(report.warnings[0])
    assert values(path)["v"][N - 1] == -1
    assert not repair(path).changed
    with mmreplay.load(path, update=["v"]) as data:
        data.update([last], v=[-2])
    assert verify(path).warnings == []
    assert values(path)["v"][N - 1] == -2


def test_a_store_whose_columns_are_updated_is_neither_repaired_nor_tagged(path):
    flip(next(lane_of(path).glob("actions/c.3")))
    with mmreplay.load(path, update=["z"]):
        for call in (repair, lambda one: mmreplay.tag(one, good=1)):
            with pytest.raises(LockedError, match=r"derived/z"):
                call(path)
    assert repair(path).changed


def test_damage_does_not_keep_a_writer_from_opening_the_store(path, caplog):
    file = next(lane_of(path).glob("derived/v/c.4"))
    flip(file)
    named = {"lane": "b"} if lane_of(path) != path else {}
    with mmreplay.create(path, append=True, **named) as writer:
        play(writer)
    assert f"{file}: does not match its checksum" in caplog.text
    with mmreplay.open(path) as store:
        assert store.lanes[-1].extras["v"][N:].tolist() == list(range(1, N + 1))
    assert verify(path).sound
