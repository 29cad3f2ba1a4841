"""`repair`: documents and lanes that are lost, stores that are sound, open, locked or missing."""

import shutil

import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    LockedError,
    SchemaError,
    StoreNotFoundError,
    repair,
    verify,
)
from tests.support.disks.trees import contents, flip, names
from tests.support.tampering.damage import lane_directories
from tests.support.tampering.repairs import check_kept, set_attributes

ROWS = 85
LATER = pytest.mark.deep(only=True)


def test_lost_documents_are_written_again(closed_store, story, tmp_path):
    path = closed_store("dict", 2)
    lane = lane_directories(path)[-1]
    for number, document in enumerate(sorted(lane.rglob("zarr.json"))):
        if document.parent != lane:
            document.write_text("{") if number % 2 else document.unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS * 2, 0)
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert verify(path).findings == []
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: set_attributes(path, rows=84),
        lambda path: set_attributes(path, sealed=True, rows=1000),
        lambda path: set_attributes(path, sealed=True, padding=3),
        lambda path: path.write_text('{"zarr_format": 3'),
        lambda path: path.unlink(),
    ],
    ids=["rows", "too many rows", "padding", "cut", "lost"],
)
@pytest.mark.parametrize("n_lanes", [None, 2])
def test_a_store_of_which_nothing_tells_what_it_is_is_refused(
    closed_store, tmp_path, damage, n_lanes
):
    path = closed_store("lz4", n_lanes)
    damage(path / "zarr.json")
    before = contents(path)
    if verify(path).sound:  # a store of lanes says nothing of rows
        return
    with pytest.raises(CorruptStoreError, match="cannot be repaired: "):
        repair(path)
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_a_vector_lane_that_is_damaged_is_refused(closed_vector):
    path = closed_vector.writer.path
    flip(path / "ticks" / "rewards" / "c.0.0")
    with pytest.raises(CorruptStoreError, match="many environments cannot be repaired"):
        repair(path)


def test_a_missing_lane_leaves_the_ids_of_others_alone(closed_store):
    path, original = closed_store("lz4", 3), closed_store("lz4", 3, name="original.zarr")
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert [(one.lane, one.kept, one.missing) for one in done.lanes] == [
        ("lane-00000", ROWS, False),
        ("lane-00001", 0, True),
        ("lane-00002", ROWS, False),
    ]
    assert len(check_kept(path, original)) == 160


def test_errors_do_not_name_the_repair_site(closed_store, monkeypatch):
    path = closed_store("lz4")
    (path / "rewards" / "zarr.json").unlink()  # so that a copy with other documents is made

    def fail(reader, target, *_, **__):
        raise CorruptStoreError(f"{target}/rewards/c.0: gone; {reader.path}/x: as well")

    monkeypatch.setattr("mmreplay.maintenance.repair.lane.copy_lane", fail)
    with pytest.raises(CorruptStoreError) as error:
        repair(path)
    assert str(error.value) == f"{path}/rewards/c.0: gone; {path}/x: as well"


def test_a_lane_that_cannot_be_read_is_replaced_by_an_empty_one(closed_store):
    path, original = closed_store("lz4", 2), closed_store("lz4", 2, name="original.zarr")
    (path / "lane-00000" / "zarr.json").write_text("{")
    done = repair(path)
    assert [(one.lane, one.kept, one.missing) for one in done.lanes] == [
        ("lane-00000", 0, True),
        ("lane-00001", ROWS, False),
    ]
    assert len(check_kept(path, original)) == 80


def test_a_sound_store_is_left_alone(closed_store, tmp_path, lanes):
    path = closed_store("lz4", lanes)
    before = contents(path)
    done = repair(path)
    assert (done.changed, done.before, done.lanes, done.findings) == (False, None, [], [])
    assert done.kept == mmreplay.open(path).info()["kept_rows"] > 0
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_a_store_left_by_a_crash_is_closed(killed_store, story, tmp_path, lanes):
    path = killed_store("dict", lanes)
    done = repair(path)
    assert (done.changed, done.before, done.lost) == (True, None, 0)
    assert done.kept == mmreplay.open(path).info()["kept_rows"] > 0
    assert verify(path).state == "closed"
    assert names(tmp_path) == ["store.zarr"]
    for rows in story.lanes.values():
        rows[-1]["step"] = False
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize("kind", [pytest.param("raw", marks=LATER), "dict"])
def test_a_damaged_store_left_by_a_crash(killed_store, tmp_path, kind):
    path = killed_store(kind)
    original = shutil.copytree(path, tmp_path / "original.zarr")
    (path / "actions" / "c.6").unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (48, ROWS - 48, [(48, 56)])
    assert contents(tmp_path / "store.zarr.damaged") == before
    check_kept(path, original)


def test_repair_refuses_a_store_that_is_being_written(open_store, tmp_path):
    writer = open_store()
    before = names(tmp_path)
    with pytest.raises(LockedError, match="open for writing already"):
        repair(writer.path)
    assert names(tmp_path) == before


def test_a_lane_of_a_store_is_not_repaired_by_itself(closed_store):
    path = closed_store("lz4", 3)
    with pytest.raises(SchemaError, match="this is a lane of"):
        repair(path / "lane-00001")


def test_no_store(tmp_path):
    with pytest.raises(StoreNotFoundError):
        repair(tmp_path / "nothing.zarr")
    assert names(tmp_path) == []


def test_a_link_to_a_store_stays_one(closed_store, tmp_path):
    path = closed_store()
    flip(path / "rewards" / "c.4")
    (tmp_path / "link.zarr").symlink_to(path)
    done = repair(tmp_path / "link.zarr")
    assert done.before == f"{path}.damaged"
    assert (tmp_path / "link.zarr").is_symlink()
    assert verify(tmp_path / "link.zarr").sound


def test_progress_goes_up_to_the_total(closed_store):
    path = closed_store()
    flip(path / "rewards" / "c.4")
    told = []
    repair(path, progress=lambda done, total: told.append(done / total))
    assert told[-1] == 1
    assert max(told) == 1
    assert told[0] < 0.5
