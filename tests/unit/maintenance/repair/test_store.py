"""`repair`: documents and lanes that are lost, stores that are sound, open, locked or missing."""

import shutil

import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    DiskFullError,
    LockedError,
    SchemaError,
    StoreNotFoundError,
    repair,
    verify,
)
from mmreplay.writing.ends import Ends
from tests.support.disks.trees import contents, flip, names
from tests.support.tampering.repairs import check_kept, set_attributes

STEPS = 80
LATER = pytest.mark.deep(only=True)


def test_lost_documents_are_written_again(closed_store, story, tmp_path):
    path = closed_store("dict", 2)
    lane = max(path.glob("lane-*"))
    for number, document in enumerate(sorted(lane.rglob("zarr.json"))):
        if document.parent != lane:
            document.write_text("{") if number % 2 else document.unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost) == (STEPS * 2, 0)
    assert contents(tmp_path / "store.zarr.damaged") == before
    assert verify(path).findings == []
    for rows in story.lanes.values():
        rows[-1]["end"] = True
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: set_attributes(path, rows=79),
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


def test_a_missing_lane_leaves_the_ids_of_others_alone(closed_store):
    path, original = closed_store("lz4", 3), closed_store("lz4", 3, name="original.zarr")
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert [(one.lane, one.kept, one.missing) for one in done.lanes] == [
        ("lane-00000", STEPS, False),
        ("lane-00001", 0, True),
        ("lane-00002", STEPS, False),
    ]
    check_kept(path, original, 160)


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
        ("lane-00001", STEPS, False),
    ]
    check_kept(path, original, 80)


def test_a_sound_store_is_left_alone(closed_store, tmp_path, lanes):
    path = closed_store("lz4", lanes)
    before = contents(path)
    done = repair(path)
    assert (done.changed, done.before, done.lanes, done.findings) == (False, None, [], [])
    assert done.kept == len(mmreplay.open(path)) > 0
    assert contents(path) == before
    assert names(tmp_path) == ["store.zarr"]


def test_a_store_left_by_a_crash_is_closed(killed_store, story, tmp_path, lanes):
    path = killed_store("dict", lanes)
    done = repair(path)
    assert (done.changed, done.before, done.lost) == (True, None, 0)
    assert done.kept == len(mmreplay.open(path)) > 0
    assert verify(path).state == "closed"
    assert names(tmp_path) == ["store.zarr"]
    for rows in story.lanes.values():
        rows[-1]["end"] = True
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize("kind", [pytest.param("raw", marks=LATER), "dict"])
def test_a_damaged_store_left_by_a_crash(killed_store, tmp_path, kind):
    path = killed_store(kind)
    original = mmreplay.snapshot(path, tmp_path / "original.zarr").path
    (path / "actions" / "c.6").unlink()
    before = contents(path)
    done = repair(path)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (48, STEPS - 48, [(48, 56)])
    assert contents(tmp_path / "store.zarr.damaged") == before
    check_kept(path, original, 48)


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


def test_rows_that_were_evicted(closed_store, tmp_path):
    given = {"capacity": 120, "rounds": 4}
    path, original = closed_store("dict", **given), closed_store("dict", name="o.zarr", **given)
    first, head = mmreplay.open(path).lanes[0].first, mmreplay.open(path).lanes[0].rows
    flip(path / "actions" / f"c.{(head - 20) // 8}")
    done = repair(path)
    stop = (head - 20) // 8 * 8
    assert done.lanes[0].damaged == [(stop, stop + 8)]
    check_kept(path, original, stop - first)
    # So little of it that nothing could be sampled: the ids begin anew.
    flip(original / "actions" / f"c.{first // 8 - 4}")
    again = shutil.copytree(original, tmp_path / "again.zarr")
    assert (repair(original).kept, len(mmreplay.open(original))) == (0, 0)
    assert repair(again, skip_damaged=True).kept == 120  # older rows take the place of lost ones
    assert verify(again).sound


def test_damage_in_evicted_rows_of_a_shard_costs_nothing(closed_store):
    given = {"capacity": 36, "rounds": 4}
    path, original = closed_store("zstd", **given), closed_store("zstd", name="o.zarr", **given)
    base = mmreplay.open(path).lanes[0].base
    assert base % 16 >= 4  # the first inner chunk of its shard, of four rows, is gone
    flip(path / "frames" / f"c.{base // 16}.0", 17)
    assert any("inner chunk 0" in one.message for one in verify(path).findings)
    done = repair(path)
    assert (done.changed, done.lost) == (True, 0)
    check_kept(path, original, len(mmreplay.open(original)))
    assert verify(path).warnings == []


def test_a_damaged_state_page_costs_what_came_after_the_last_flush(open_store, story, kill):
    for log, untrusted in (("", 0), ("finals", 5)):
        writer = open_store()
        writer.flush()
        story.play(writer, 5, reset=False)
        kill(writer)
        (writer.path / log / ".live" / "state").write_bytes(b"x" * 4096)
        done = repair(writer.path)
        assert (done.kept, done.lost, done.untrusted) == (80, 0, untrusted)
        assert verify(writer.path).findings == []
        shutil.rmtree(writer.path)
        shutil.rmtree(done.before)


@pytest.mark.parametrize("name", ["checkpoint", "frames.tail"])
@pytest.mark.parametrize("log", ["", "finals"])
def test_what_nothing_else_tells_is_asked_for(killed_store, log, name):
    path = killed_store()
    (path / log / ".live" / name).unlink()
    before = contents(path)
    with pytest.raises(CorruptStoreError, match=r"cannot be repaired: .*from a backup"):
        repair(path)
    assert contents(path) == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_a_full_disk_interrupts_leaves_the_store_as_it_was(closed_store, monkeypatch):
    path = closed_store()
    flip(path / "actions" / "c.4")
    before = contents(path)

    def fail(*_):
        raise DiskFullError("no room")

    monkeypatch.setattr(Ends, "add", fail)
    with pytest.raises(DiskFullError):
        repair(path, skip_damaged=True)
    assert contents(path) == before
    assert names(path.parent) == ["store.zarr"]


def test_the_final_observations_of_the_newest_step_are_lost_in_a_crash(make, story, kill):
    """Of them, nothing else tells that its episode ended."""
    writer = make()
    for _ in range(3):
        story.play(writer, 5, "terminated")
    writer.flush()
    kill(writer)
    (writer.path / "finals" / "id" / "c.0").unlink()
    done = repair(writer.path)
    assert (done.kept, done.lost, verify(writer.path).findings) == (14, 1, [])
