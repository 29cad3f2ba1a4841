"""Read-only view of a log: closed, live or crashed; and what it notices when that changes."""

import uuid

import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import CorruptStoreError
from mmreplay.reading import lane_reader
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.system import locks, platform
from tests.support.effort import by_effort

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(lane_reader, "_PATIENCE_S", 0)


def contents(path):
    return {str(one): (one.stat().st_mtime_ns, one.stat().st_size) for one in path.rglob("*")}


# ---------------------------------------------------------------- closed, live, crashed


def test_a_closed_lane_is_as_its_root_says(closed_lane):
    lane = LaneReader(closed_lane.path, 3)
    assert (lane.head, lane.base, lane.number) == (19, 0, 3)
    assert (lane.is_closed, lane.is_live, lane.rows.tails) == (True, False, {})
    assert lane.extent == (0, 19, 0, 2)
    assert lane.rows.tail_start() == 19
    assert lane.entries.head == lane.frames.head == 19
    assert lane.poll()
    assert not lane.replaced()


@pytest.mark.parametrize("sealed", [3, 20])
def test_after_a_power_cut_the_rules_of_recovery_hold_in_memory(
    make, story, kill, lz4, monkeypatch, sealed
):
    writer = make(**lz4)
    story.play(writer, 4)
    writer.flush()
    story.play(writer, sealed, reset=False)
    writer._background.finish_tasks()
    kill(writer)
    now = uuid.uuid4().bytes
    monkeypatch.setattr(platform, "boot_id", lambda: now)
    before = contents(writer.path)
    lane = LaneReader(writer.path)
    assert (lane.head, lane.is_live, lane.is_closed) == (4, False, False)
    assert bool(lane.rows.tails) == (sealed == 3)
    story.copy(writer.path, writer.path, 4)
    with mmreplay.open(writer.path) as store:
        assert store.ids.tolist() == [0, 1, 2, 3]
        story.check_transitions(store, 0, range(4))
        assert store.transitions([3]).truncated.tolist() == [True]
        assert store.trajectory(0).ids.tolist() == [0, 1, 2, 3]
    assert contents(writer.path) == before


@pytest.mark.parametrize("how", ["closed", "live", "killed"])
def test_reading_takes_no_lock_and_writes_nothing(make, story, kill, lz4, how):
    writer = make(**lz4)
    story.play(writer, 20)
    writer._background.finish_tasks()
    if how == "closed":
        writer.close()
    if how == "killed":
        kill(writer)
    before = contents(writer.path)
    with mmreplay.open(writer.path) as store:
        story.check(store)
        store.refresh()
        assert len(store.transitions(store.ids)) == 20
        assert len(store.episodes) == 1
        assert locks.is_locked(writer.path) is (how == "live")
        assert contents(writer.path) == before
        if how != "live":
            make(append=True)


# ---------------------------------------------------------------- sessions


def test_poll_says_when_the_session_of_base_head_and_tails_is_over(make, story, kill, lz4):
    writer = make(**lz4)
    story.play(writer, 5)
    lane = LaneReader(writer.path)
    numbers = {lane.rows._session}
    for how in ("kill", "close", "close and open"):
        if how == "kill":
            kill(writer)
            writer = make(append=True)
        else:
            writer.close()
        if how == "close and open":
            writer = make(append=True)
        assert not lane.poll()
        assert lane.replaced()
        lane = LaneReader(writer.path)
        assert lane.poll()
        assert not lane.replaced()
        assert lane.is_closed is (how == "close")
        numbers.add(lane.rows._session)
        if how == "close":
            writer = make(append=True)
            assert lane.poll()  # rows of a closed lane never change
            assert lane.replaced()
            lane = LaneReader(writer.path)
        story.play(writer, 4)
        assert lane.poll()
        assert lane.head == writer.rows
    assert len(numbers) == 4


N_READS = 17  # of the opening of a live store with one compressed column


@pytest.mark.parametrize("at", range(1, N_READS + 1, by_effort(3, 1, 1)))
def test_a_lane_that_is_closed_between_any_two_reads_of_the_opening_opens(
    make, story, lz4, between_reads, at
):
    writer = make(**lz4)
    story.play(writer, 20)
    with between_reads(writer.path, at, writer.close) as store:
        story.check(store)


@pytest.mark.parametrize("at", range(1, 4))  # of a closed one
def test_a_lane_that_is_opened_between_any_two_reads_of_the_opening_opens(
    make, story, lz4, between_reads, at
):
    writer = make(**lz4)
    story.play(writer, 20)
    writer.close()
    with between_reads(writer.path, at, lambda: story.play(make(append=True), 3)) as store:
        store.refresh()
        story.check(store)


@pytest.mark.parametrize("at", [14, 17])  # the state page is read, and the tail is not
@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_lane_reopened_between_two_reads_is_read_as_one_session(
    make, story, kill, lz4, between_reads, at, end
):
    writers = [make(**lz4)]
    story.play(writers[0], 12)

    def change_hands():
        (kill if end == "kill" else type(writers[0]).close)(writers[0])
        writers.append(make(append=True))
        story.play(writers[1], 5)

    with between_reads(writers[0].path, at, change_hands) as store:
        story.check(store)
        for _ in range(4):
            story.play(writers[1], 9)
            story.check(store)


# ---------------------------------------------------------------- chunk files that are gone


def test_a_file_that_is_gone_is_evicted_below_base_and_damage_above(make, story, kill):
    writer = make(capacity=5)
    story.play(writer, 40)
    lane = LaneReader(writer.path)
    path = chunk_files.chunk_path(writer.path, writer.files.rows.specs["rewards"], 0)
    error = lane.rows.missing(path, 8)
    assert isinstance(error, CorruptStoreError)
    assert "it holds rows up to 8 of [0, 40); run `mmreplay verify`" in str(error)
    story.play(writer, 200, reset=False)
    writer.flush()
    assert isinstance(lane.rows.missing(path, 8), EvictedError)
    kill(writer)
    again = make(append=True)
    assert isinstance(lane.rows.missing(path, 10**6), EvictedError)  # another session: look again
    again.close()
    lane = LaneReader(writer.path)
    assert isinstance(lane.rows.missing(path, 10**6), CorruptStoreError)
    make(append=True)
    assert isinstance(lane.rows.missing(path, 10**6), EvictedError)


# ---------------------------------------------------------------- stores that are odd


def test_a_live_lane_whose_private_files_may_not_be_read_says_so(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    writer = mmreplay.create(tmp_path / "s.zarr", Field((2,)), Field(()))
    monkeypatch.setattr(lane_reader, "State", refuse)
    with pytest.raises(CorruptStoreError, match=r"\.live: may not be read: Permission denied"):
        LaneReader(writer.path)
