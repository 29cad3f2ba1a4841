"""`repair`: documents and lanes that are lost, stores that are sound, open, locked or missing."""

import errno
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import (
    CorruptStoreError,
    DiskFullError,
    FailedStoreError,
    FormatError,
    LockedError,
    SchemaError,
    repair,
    verify,
)
from mmreplay.format import plan
from tests.support.disks.faults import ALLOCATING, CALLS, faulty_disk
from tests.support.disks.trees import contents, flip, names
from tests.support.tampering.repairs import check_kept, set_attributes

STEPS = 80


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: set_attributes(path, rows=79),
        lambda path: set_attributes(path, sealed=True, padding=3),
        lambda path: path.unlink(),
    ],
    ids=["rows", "padding", "lost"],
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


def test_a_missing_or_unreadable_lane_leaves_the_ids_of_others_alone(closed_store):
    path, original = closed_store("lz4", 3), closed_store("lz4", 3, name="original.zarr")
    (path / "lane-00000" / "zarr.json").write_text("{")
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert [(one.lane, one.kept, one.missing) for one in done.lanes] == [
        ("lane-00000", 0, True),
        ("lane-00001", 0, True),
        ("lane-00002", STEPS, False),
    ]
    check_kept(path, original, 80)


@pytest.mark.parametrize("damaged", ["", "lane-00000", "lane-00001"])
def test_a_lane_or_store_of_a_later_format_is_left_to_a_later_version(closed_store, damaged):
    path = closed_store("lz4", 3)
    (path / "lane-00002" / "zarr.json").write_text("{")
    set_attributes(path / damaged / "zarr.json", sealed=True, format=2)
    before = contents(path)
    with pytest.raises(FormatError, match="expected format 1, found 2; a newer mmreplay may"):
        repair(path)
    assert contents(path) == before


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
    assert done.findings == []
    assert (done.changed, done.before, done.lost) == (True, None, 0)
    assert done.kept == len(mmreplay.open(path)) > 0
    assert verify(path).state == "closed"
    assert names(tmp_path) == ["store.zarr"]
    for rows in story.lanes.values():
        rows[-1]["end"] = True
    with mmreplay.open(path) as store:
        story.check(store)


def test_repair_refuses_a_store_that_is_being_written(open_store, tmp_path):
    writer = open_store()
    before = names(tmp_path)
    with pytest.raises(LockedError, match="open for writing already"):
        repair(writer.path)
    assert names(tmp_path) == before


def test_a_lane_of_a_store_is_not_repaired_by_itself(closed_store):
    path = closed_store("lz4", 3)
    with pytest.raises(SchemaError, match="this is a part of the store"):
        repair(path / "lane-00001")


def test_a_link_to_a_store_stays_one(closed_store, tmp_path):
    path = closed_store()
    flip(path / "rewards" / "c.4")
    (tmp_path / "link.zarr").symlink_to(path)
    done = repair(tmp_path / "link.zarr")
    assert done.before == f"{path}.damaged"
    assert (tmp_path / "link.zarr").is_symlink()
    assert verify(tmp_path / "link.zarr").sound


def test_a_sound_store_needs_no_disk_that_can_be_written(closed_store, killed_store):
    path = closed_store("lz4")
    with faulty_disk() as disk:
        disk.fail(CALLS, errno.EROFS, forever=True)
        assert not repair(path).changed
        assert not disk.hits
    shutil.rmtree(path)
    path = killed_store("lz4")
    with faulty_disk() as disk:
        disk.fail(CALLS, errno.EROFS, forever=True)
        with pytest.raises(FailedStoreError, match=f"{path.name}: .*Read-only") as told:
            repair(path)
    assert ".tmp" not in str(told.value)


@pytest.mark.parametrize("at", [1, 9, 40, 90])
def test_errors_name_files_of_the_store_and_not_of_what_is_built(closed_store, at):
    path = closed_store("lz4")
    (path / "actions" / "c.4").unlink()
    before = contents(path)
    with faulty_disk() as disk:
        disk.fail(ALLOCATING | {"link"}, errno.ENOSPC, at=at, forever=True)
        with pytest.raises(DiskFullError, match=str(path)) as told:
            repair(path)
    assert ".tmp" not in str(told.value)
    assert contents(path) == before


def test_progress_goes_up_to_the_total(closed_store):
    path = closed_store()
    flip(path / "rewards" / "c.4")
    seen = []
    repair(path, progress=lambda done, total: seen.append(done / total))
    assert seen[-1] == max(seen) == 1
    assert seen[0] < 0.5


def test_rows_that_were_evicted(closed_store, tmp_path):
    given = {"capacity": 120, "rounds": 3}
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
    assert not verify(path).from_start
    done = repair(path)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (36, 0, [])
    check_kept(path, original, 36)


@pytest.mark.parametrize("array", ["id", "first", "frames"])
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("kind", ["zstd", pytest.param("raw", marks=pytest.mark.deep(only=True))])
def test_final_observations_of_evicted_steps_are_not_needed(
    open_store, make, kill, tmp_path, monkeypatch, array, end, kind
):
    for name, value in (("_FINAL_BYTES", 32), ("_LEAST_FINALS", 4), ("_FINAL_PAGES_BYTES", 0)):
        monkeypatch.setattr(plan, name, value)  # short chunk files
    open_store(kind, capacity=400, rounds=5).close()
    writer = make(append=True, capacity=36)
    path, original = writer.path, tmp_path / "original.zarr"
    if end == "closed":
        writer.close()  # evicts steps; their final observations go one flush later
        shutil.copytree(path, original)
    else:
        writer.flush()
        kill(writer)
        mmreplay.snapshot(path, original)
    with mmreplay.open(path) as store:
        (lane,) = store.live.readers
        assert lane.base > 200
        assert lane.finals.base == 0
    flip(path / "finals" / array / ("c.0.0" if array == "frames" else "c.0"), 17)
    done = repair(path)
    assert done.findings
    assert (done.kept, done.lost) == (36, 0)
    check_kept(path, original, 36)


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


@pytest.mark.parametrize("size", [0, 1_000_000])
@pytest.mark.parametrize("array", ["frames", "finals/id"])
def test_a_file_of_checksums_that_has_another_size_costs_nothing(closed_store, array, size):
    path = closed_store("lz4", None)
    above, _, name = array.rpartition("/")
    (file,) = (path / above / "checksums" / name).glob("c.*")
    n_transitions = len(mmreplay.open(path))
    file.write_bytes(file.read_bytes()[:size].ljust(size, b"x"))
    assert not verify(path).sound
    made = repair(path)
    assert (made.kept, made.lost) == (n_transitions, 0)
    assert verify(path).sound


@pytest.mark.parametrize(
    "file", ["finals/zarr.json", ".live/generator", "checksums/step/zarr.json"]
)
def test_rows_after_the_last_flush_of_a_killed_writer_are_kept(open_store, story, kill, file):
    writer = open_store("lz4")
    story.play(writer, 12)
    writer.flush()
    story.play(writer, 20)
    n_rows, path = writer.rows, writer.path
    kill(writer)
    (path / file).write_bytes(b"damaged")
    made = repair(path)
    assert (made.kept, made.lost, made.untrusted) == (n_rows, 0, 0)
    with mmreplay.open(path) as store:
        story.check(store)


@pytest.mark.parametrize("runs", [True, False])
def test_the_chunk_file_of_the_pending_frames_alone_is_lost_in_a_crash(make, kill, runs):
    writer = make(frame=mmreplay.Field((3,), "uint8", "raw", chunk=16))
    frames = np.arange(99, dtype=np.uint8).reshape(33, 3)
    writer.reset(frames[0])
    for row in range(32):
        writer.step(0, 0, frames[row + 1], row == 31 and not runs)
    writer.flush()
    kill(writer)
    path = writer.path
    (path / "frames" / "c.2.0").unlink()
    assert [(one.file, one.rows) for one in verify(path).findings] == [("frames/c.2.0", (32, 33))]
    made = repair(path)
    n_kept = 31 if runs else 32
    assert (made.kept, made.lost) == (n_kept, 32 - n_kept)
    assert verify(path).sound
    with mmreplay.open(path) as store:
        batch = store.transitions(store.ids)
    assert np.array_equal(batch.observation, frames[:n_kept])
    assert np.array_equal(batch.next_observation, frames[1 : n_kept + 1])


def test_a_directory_in_the_place_of_a_preallocated_chunk_file(make, story, kill):
    writer = make()
    story.play(writer, 12)
    writer.flush()
    kill(writer)
    path = writer.path
    (path / "rewards" / "c.2").mkdir()
    (found,) = verify(path).findings
    assert (found.file, found.rows) == ("rewards/c.2", None)
    assert found.message == "expected a chunk file, found a link or a directory"
    made = repair(path)
    assert (made.kept, made.lost) == (12, 0)
    assert verify(path).sound
