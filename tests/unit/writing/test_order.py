"""The order in which a lane's files change: whatever dies in between, a checkpoint speaks the truth."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.state_page import BASE, TAIL_START, State
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane, flush
from tests.support.disks import faults
from tests.support.disks.trees import contents, files
from tests.support.documents import attributes
from tests.support.modelled_lane import FRAMES, Play
from tests.support.quiet import settle

pytestmark = pytest.mark.usefixtures("quick_disk")

LANES = pytest.mark.parametrize("lanes", [None, 3])
KINDS = pytest.mark.parametrize("kind", FRAMES)


@pytest.fixture
def play(tmp_path):
    """`play(kind, lanes)`: a writer of tiny chunk files, and its model; it is killed at the end."""
    plays = []

    def make(kind, lanes=None, **given):
        plays.append(Play(tmp_path / "s.zarr", kind, lanes, **given))
        return plays[-1]

    yield make
    for one in plays:
        if not one.writer.files.closed:
            faults.kill(one.writer)


def everyone(one):
    return list(range(one.model.n))


def steps(one, n, **given):
    for _ in range(n):
        one.step(**given)


def checkpoint(log):
    """What stands on the disk."""
    return CheckpointFile(log.live / "checkpoint", log.checkpoint._store.hex()).best


# ---------------------------------------------------------------- flush


@LANES
@pytest.mark.parametrize("following", ["running", "flush", "step", "reset", "close"])
def test_a_final_that_an_interrupted_step_owes_is_written_by_the_next_call(play, lanes, following):
    one = play("lz4", lanes)
    one.reset(everyone(one))
    steps(one, 3)
    real = one.writer._ends.commit

    def interrupt():
        one.writer._ends.commit = real
        raise KeyboardInterrupt  # between the words of the steps and of the finals

    one.writer._ends.commit = interrupt
    with pytest.raises(KeyboardInterrupt):
        one.step(terminated=[0])
    assert [which.head for which in one.writer.files.logs] == [4, 0]
    if following == "running":
        assert np.atleast_1d(one.writer.running).tolist() == one.model.is_running()
    elif following == "flush":
        one.flush()
        assert [checkpoint(which).head for which in one.writer.files.logs] == [4, 1]
    elif following == "step" and lanes:
        one.step()  # of the others
    elif following == "reset":
        one.reset([0])
    one.end("close")


def test_a_flush_saves_what_the_generator_says_and_needs_room_for_nothing_else(play, monkeypatch):
    one = play("lz4")
    one.reset([0])
    steps(one, 9)
    states = iter(["first", None, "second", "third"])
    one.writer.files.on_flush = lambda: next(states)
    for expected in ("first", "first"):
        one.flush()
        assert build_lane.read_generator(one.path) == expected

    def full(*_, **__):
        raise mmreplay.DiskFullError("no room")

    one.step()
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "write_file", full)
        with pytest.raises(mmreplay.DiskFullError):
            one.writer.flush()
    assert checkpoint(one.writer.files.rows).head == 10  # the rows are durable nonetheless
    one.writer.files.on_flush = lambda: "fourth"
    one.end("close")
    assert attributes(one.path)["generator"] == "fourth"
    one.open()
    assert build_lane.read_generator(one.path) == "fourth"
    assert "generator" not in attributes(one.path)


# ---------------------------------------------------------------- a reset in mid-episode


# ---------------------------------------------------------------- seal


# ---------------------------------------------------------------- eviction


def test_finals_go_one_flush_after_their_steps(play, monkeypatch):
    one = play("raw", capacity=1)
    monkeypatch.setattr(one.writer._session._background, "wake", lambda: None)
    rows, finals = one.writer.files.logs
    for _ in range(90):
        one.reset([0])
        one.step(terminated=[0])
    assert (rows.base, finals.base) == (0, 0)
    one.flush()
    assert (rows.first, rows.base, rows.before, finals.base) == (89, 25, 25, 0)
    assert checkpoint(rows).before == 25
    one.flush()
    assert (rows.base, finals.base, checkpoint(finals).base) == (25, 25, 25)
    one.end("close")
    own = attributes(one.path)
    assert [own[key] for key in ("first", "first_final", "episodes_before")] == [89, 25, 25]


def test_a_larger_capacity_brings_nothing_back_and_a_smaller_one_evicts_at_once(play):
    one = play("raw", capacity=50)
    one.reset([0])
    steps(one, 200)
    one.flush()
    assert (one.writer.files.rows.first, one.writer.base) == (150, 86)
    for capacity, first in ((100, 150), (50, 150), (20, 180)):
        one.end("close", check=False)
        one.open(capacity=capacity)
        assert attributes(one.path)["capacity"] == capacity
        assert one.writer.files.rows.first == first
        one.flush()
        assert one.writer.base == max(first - 64, 86)


# ---------------------------------------------------------------- close, and open again


@LANES
@KINDS
def test_what_a_death_in_a_close_leaves_is_removed_by_the_next_opening(play, kind, lanes):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 10)
    one.end("close")
    clean = contents(one.path)
    for name in (".live/state", ".live/x.tail", "finals/.live/checkpoint", "frames/c.0.0.ab.tmp"):
        (one.path / name).parent.mkdir(exist_ok=True)
        (one.path / name).write_bytes(b"litter" * 1000)
    one.open()
    assert not (one.path / ".live" / "x.tail").exists()
    one.end("close")
    assert contents(one.path) == clean


# ---------------------------------------------------------------- recovery


@LANES
@KINDS
def test_a_final_of_a_reset_that_died_is_durable_before_its_pending_row_is_overwritten(
    play, monkeypatch, power_cut, kind, lanes
):
    one = play(kind, lanes)
    one.reset(everyone(one))
    steps(one, 3)
    one.flush()

    def die(_):
        raise KeyboardInterrupt  # the word of the finals is stored, and they are not durable

    with monkeypatch.context() as patch:
        patch.setattr(flush, "flush_finals", die)
        with pytest.raises(KeyboardInterrupt):
            one.reset(everyone(one))
    faults.kill(one.writer)
    one.open()
    assert one.writer.files.finals.head == one.model.n
    one.reset(everyone(one))
    one.step()
    faults.kill(one.writer)
    power_cut()
    one.model.lose_power()
    one.open()
    one.end("close")


@LANES
@pytest.mark.parametrize("head", [1, 4, 5, 6, 7, 10, 12])
def test_a_lane_goes_back_to_any_row_with_what_was_pending_there(play, power_cut, lanes, head):
    one = play("lz4", lanes)
    one.reset(everyone(one))
    steps(one, head)
    one.flush()
    steps(one, 25)  # the tail has gone round: what was pending is in a shard
    settle(one.writer)
    assert one.writer.files.rows.tail_start > head
    faults.kill(one.writer)
    power_cut()
    one.model.lose_power()
    one.open()
    assert one.writer.files.rows.tail_start == head - head % 6
    one.end("close")


@pytest.mark.parametrize("lost", ["state", "finals/state"])
def test_a_lane_of_which_one_state_is_not_trusted_goes_back_to_both_checkpoints(play, lost):
    one = play("lz4", 3)
    one.reset(everyone(one))
    steps(one, 4)
    one.flush()
    one.step(terminated=[0, 1])
    one.reset([0, 1])
    steps(one, 2)
    faults.kill(one.writer)
    log = one.path / "finals" if "/" in lost else one.path
    State(log / ".live" / "state", writable=True).distrust()
    one.model.lose_power()
    one.open()
    assert one.writer.rows == 4
    one.end("close")


@LANES
@KINDS
def test_a_kill_between_checkpoint_and_state_page_loses_no_row(play, kind, lanes):
    one = play(kind, lanes, capacity=20)
    one.reset(everyone(one))
    steps(one, 120)
    settle(one.writer)
    one.flush()
    rows = one.writer.files.rows
    best = checkpoint(rows)
    faults.kill(one.writer)
    one.model.die()
    state = State(one.path / ".live" / "state", writable=True)
    old = state.words[TAIL_START], state.words[BASE]
    assert old == (best.tail_start, best.base)
    state.words[TAIL_START] = max(best.tail_start - 6, 0)  # as a seal and a flush found them
    state.words[BASE], state.words[12] = best.base - 1, best.before
    one.open()
    assert (one.writer.files.rows.tail_start, one.writer.base) == (best.tail_start, best.base)
    assert one.writer.rows == 120
    assert rows.before == one.writer.files.rows.before


def test_a_live_lane_of_one_environment_is_forty_files(tmp_path):
    with mmreplay.create(tmp_path / "s.zarr", Field((84, 84)), Field((), "int64")) as writer:
        for _ in range(2):
            writer.reset(np.zeros((84, 84), np.uint8))
            for t in range(3):
                writer.step(0, 0.0, np.zeros((84, 84), np.uint8), terminated=t == 2)
            writer.flush()
            settle(writer)
            found = [one for one in files(writer.path) if not one.endswith("zarr.json")]
            assert len(found) <= 40
