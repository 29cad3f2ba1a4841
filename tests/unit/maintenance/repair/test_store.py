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


@pytest.mark.parametrize(
    ("kind", "lanes", "which"),
    [
        ("raw", None, "its own"),
        pytest.param("raw", None, "all others", marks=LATER),
        pytest.param("zstd", None, "its own", marks=LATER),
        pytest.param("dict", 2, "its own", marks=LATER),
        ("dict", 2, "all others"),
    ],
)
def test_lost_documents_are_written_again(closed_store, story, tmp_path, kind, lanes, which):
    path = closed_store(kind, lanes)
    lane = lane_directories(path)[-1]
    for number, document in enumerate(sorted(lane.rglob("zarr.json"))):
        if (document.parent == lane) == (which == "its own"):
            document.write_text("{") if number % 2 else document.unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS * (lanes or 1), 0)
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert verify(path).findings == []
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize("changes", [{"rows": 84}, {"rows": 1000}, {"first": 70}, {"padding": 3}])
def test_a_wrong_number_in_the_attributes(closed_store, story, changes):
    path = closed_store()
    set_attributes(path / "zarr.json", **changes)
    done = repair(path)
    assert (done.kept, done.lost) == (ROWS, 0)
    with mmreplay.open(path) as store:
        story.check(store)


def test_the_document_of_a_store_of_many_lanes(closed_store, story):
    path = closed_store("dict", 2)
    (path / "zarr.json").write_text('{"zarr_format": 3')
    assert repair(path).lost == 0
    assert verify(path).sound
    with mmreplay.open(path) as store:
        story.check(store)
    mmreplay.create(path, append=True, lane="new").close()
    assert verify(path).sound


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
    (path / "zarr.json").write_text("{")  # so that a stand-in is made

    def fail(where, *_):
        raise CorruptStoreError(f"{where}/rewards/c.0: gone; {where.parent / 'spare-'}/x: as well")

    with monkeypatch.context() as patch:
        patch.setattr(
            "mmreplay.maintenance.repair.lane.copy_lane", lambda _, target, *__, **___: fail(target)
        )
        with pytest.raises(CorruptStoreError) as error:
            repair(path)
    assert str(error.value) == f"{path}/rewards/c.0: gone; {path}/x: as well"
    with monkeypatch.context() as patch:
        patch.setattr(
            "mmreplay.maintenance.repair.lane.stand_in", lambda _, spare, *__, **___: fail(spare)
        )
        with pytest.raises(CorruptStoreError) as error:
            repair(path)
    assert ".repair.tmp" not in str(error.value)


def test_repair_refuses_a_store_without_any_document(closed_store, tmp_path):
    path = closed_store()
    for one in path.rglob("zarr.json"):
        one.write_text("{")
    before = contents(path)
    with pytest.raises(CorruptStoreError, match=r"cannot be repaired: .*what a row holds"):
        repair(path)
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


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
