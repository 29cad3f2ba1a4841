"""`repair` of lanes of which less tells how far they were written."""

import os
import shutil

import pytest

import mmreplay
from mmreplay import CorruptStoreError, repair, verify
from tests.support.disks.trees import contents
from tests.support.tampering.repairs import (
    assert_refused,
    attributes,
    columns,
    repaired,
    set_attributes,
)

UNKNOWN = ".live cannot be read whole, so nothing tells how many rows there were"
UNSURE = "zarr.json does not match its crc32c"
LATER = pytest.mark.deep(only=True)


@pytest.fixture
def page_of(killed_half_flushed):
    """A store of 85 rows left by a kill, and what changes a word of its state page."""

    def create(kind="dict", **given):
        path = killed_half_flushed(kind, **given)

        def change(word, value):
            with (path / ".live" / "state").open("r+b") as file:
                file.seek(8 * word)
                old = int.from_bytes(file.read(8), "little")
                file.seek(8 * word)
                file.write(value(old).to_bytes(8, "little"))

        return path, change

    return create


def assert_rows_of_the_last_flush(done):
    assert (done.kept, done.lost, done.at_least) == (66, 0, True)
    assert done.notes[0].startswith(UNKNOWN)


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("raw", ".live"),
        ("lz4", "state and checkpoint"),
        pytest.param("lz4", ".live", marks=LATER),
        pytest.param("raw", "state and checkpoint", marks=LATER),
    ],
)
def test_repair_refuses_a_lane_that_was_never_closed_and_lost_its_records(
    killed_half_flushed, kind, lost
):
    path = killed_half_flushed(kind)
    if lost == ".live":
        shutil.rmtree(path / ".live")
    else:
        for name in ("state", "checkpoint"):
            os.truncate(path / ".live" / name, 50)
    assert ".live" in {finding.file for finding in verify(path).findings}
    assert_refused(path, r"nobody knows how far .* if a backup .* put that back and repair again")


def test_a_lane_that_cannot_be_repaired_does_not_take_the_others_with_it(make, story, kill):
    writer = make(n_lanes=3)
    story.play(writer, 5, "terminated")
    kill(writer)
    shutil.rmtree(writer.path / "lane-00001" / ".live")
    done = repair(writer.path)
    assert [(lane.kept, lane.missing) for lane in done.lanes] == [(6, False), (0, True), (6, False)]
    assert (done.lost, done.at_least, len(done.notes)) == (0, True, 1)
    assert done.notes[0].startswith("lane-00001: nothing tells what was in it: ")
    assert verify(writer.path).findings == []


@pytest.mark.parametrize("capacity", [None, 30])
def test_a_closed_lane_that_says_it_is_open(closed_half_flushed, capacity):
    path = closed_half_flushed("dict", capacity=capacity)
    known = columns(path)
    set_attributes(path / "zarr.json", closed=False)
    assert {"zarr.json", ".live"} <= {finding.file for finding in verify(path).findings}
    done = repaired(path, known)
    assert (done.lost, done.at_least) == (0, False)
    assert len(columns(path)[1]["rewards"]) == 85
    assert [note.partition(":")[0] for note in done.notes] == [UNSURE]


def test_damage_in_a_closed_lane_that_says_it_is_open(closed_half_flushed):
    """Its last chunk files have checksums, as those of a closed lane have."""
    path = closed_half_flushed("dict")
    known = columns(path)
    set_attributes(path / "zarr.json", closed=False)
    file = path / "rewards" / "c.10"
    file.write_bytes(bytes([1]) + file.read_bytes()[1:])
    done = repaired(path, known)
    assert (done.kept, done.lost, done.lanes[0].damaged) == (80, 5, [(80, 85)])


@pytest.mark.parametrize(
    ("n_steps", "own"),
    [
        (1, "sound"),
        (30, "damaged"),
        pytest.param(30, "sound", marks=LATER),
        pytest.param(1, "damaged", marks=LATER),
    ],
)
def test_a_reopened_lane_without_live_keeps_the_rows_of_its_last_close(
    closed_half_flushed, make, story, kill, n_steps, own
):
    path = closed_half_flushed("lz4")
    writer = make(append=True)
    story.lanes[writer.path] = [{}] * writer.rows
    story.play(writer, n_steps)
    kill(writer)
    known = columns(path)
    shutil.rmtree(path / ".live")
    if own == "damaged":
        set_attributes(path / "zarr.json", padding="reset")
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least) == (85, 0, True)


def test_a_crashed_lane_that_says_it_is_closed(killed_half_flushed):
    path = killed_half_flushed()
    known = columns(path)
    set_attributes(path / "zarr.json", closed=True)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least) == (85, 0, False)


def test_a_state_page_without_its_magic_is_damage(page_of):
    path, change = page_of()
    known = columns(path)
    change(0, lambda magic: magic ^ 1 << 40)
    (finding,) = verify(path).findings
    assert finding.message.startswith("state: expected a page that begins with MMRSTATE")
    before = contents(path)
    for use in (mmreplay.open, lambda path: mmreplay.create(path, append=True)):
        with pytest.raises(CorruptStoreError, match=r"\.live/state: expected .* `mmreplay repair`"):
            use(path)
    assert before.keys() <= contents(path).keys()
    for name in ("state", "checkpoint"):  # not all: who tried is noted
        assert (path / ".live" / name).read_bytes() == before[f".live/{name}"]
    assert_rows_of_the_last_flush(repaired(path, known))


@pytest.mark.parametrize(
    ("capacity", "bit"), [(None, 0), pytest.param(20, 6, marks=LATER), (20, 63)]
)
def test_an_impossible_base_is_ignored(page_of, capacity, bit):
    path, change = page_of(capacity=capacity)
    known = columns(path)
    change(2, lambda base: base ^ 1 << bit)
    assert any(".live" in finding.file for finding in verify(path).findings)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least, done.notes) == (85 - known[0], 0, False, [])
    assert attributes(path)["capacity"] == capacity


@pytest.mark.parametrize(
    ("kind", "bit"),
    [
        ("dict", 0),
        pytest.param("dict", 7, marks=LATER),
        pytest.param("lz4", 5, marks=LATER),
        ("lz4", 63),
    ],
)
def test_an_impossible_tail_start_is_ignored(page_of, kind, bit):
    path, change = page_of(kind)
    known = columns(path)
    change(3, lambda start: start ^ 1 << bit)
    assert ".live/state" in {finding.file for finding in verify(path).findings}
    done = repaired(path, known)
    assert (done.kept, done.lost, done.at_least, done.notes) == (85, 0, False, [])


@pytest.mark.parametrize(("kind", "bit"), [("raw", 12), pytest.param("dict", 40, marks=LATER)])
def test_a_head_past_all_chunk_files_is_ignored(page_of, kind, bit):
    path, change = page_of(kind)
    known = columns(path)
    change(4, lambda committed: committed ^ 1 << bit)
    assert any(".live" in finding.file for finding in verify(path).findings)
    assert_rows_of_the_last_flush(repaired(path, known))


def test_a_head_before_the_last_flush_is_ignored(page_of):
    path, change = page_of()
    known = columns(path)
    change(4, lambda committed: committed ^ 64)
    (finding,) = verify(path).findings
    assert finding.message == (
        "committed: expected at least the head of the checkpoint, 66, found 21"
    )
    assert_rows_of_the_last_flush(repaired(path, known))


@pytest.mark.parametrize("kind", ["raw", pytest.param("dict", marks=LATER)])
def test_a_page_whose_checkpoint_lost_its_newest_slot(page_of, kind):
    """Then the page is all that tells of base and tail_start."""
    path, _ = page_of(kind, capacity=20)
    known = columns(path)
    file = path / ".live" / "checkpoint"
    data = bytearray(file.read_bytes())
    newest = max((0, 4096), key=lambda slot: data[slot + 40])
    data[newest + 48] ^= 1
    file.write_bytes(data)
    (path / "rewards" / "c.10").unlink()
    done = repaired(path, known)
    assert (done.kept, done.lost) == (80 - known[0], 5)
    assert done.lanes[0].damaged == [(80, 85)]


def test_rows_of_a_lost_tail_are_counted(killed_half_flushed):
    path = killed_half_flushed()
    known = columns(path)
    (path / ".live" / "frames.tail").unlink()
    done = repaired(path, known)
    assert (done.kept + done.lost, done.at_least, done.notes) == (85, False, [])
    assert done.lost in (5, 13)


def test_without_the_state_the_rows_of_the_last_flush_are_kept(killed_half_flushed):
    path = killed_half_flushed("raw")
    known = columns(path)
    (path / ".live" / "state").unlink()
    assert_rows_of_the_last_flush(repaired(path, known))


def test_untrusted_rows_of_a_damaged_store_are_counted(killed_half_flushed, tmp_path):
    path = shutil.copytree(killed_half_flushed("raw"), tmp_path / "copy.zarr")
    (path / "rewards" / "c.3").unlink()
    done = repair(path)
    assert (done.kept, done.lost, done.untrusted, done.at_least) == (24, 42, 19, False)


def test_the_rows_of_a_missing_lane_are_not_counted(closed_half_flushed):
    path = closed_half_flushed("lz4", n_lanes=3)
    shutil.rmtree(path / "lane-00001")
    done = repair(path)
    assert (done.lost, done.at_least) == (0, True)


def test_a_flipped_bit_in_a_checksum_costs_no_row(closed_half_flushed):
    path = closed_half_flushed("raw")
    known = columns(path)
    for array, chunk in (("rewards", 0), ("resets", 5), ("frames", 5), ("frames", 10)):
        file = path / "checksums" / array / "c.0"
        data = bytearray(file.read_bytes())
        data[4 * chunk + 2] ^= 8
        file.write_bytes(data)
    done = repaired(path, known)
    assert (done.kept, done.lost, done.notes) == (85, 0, [])
