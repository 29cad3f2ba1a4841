"""The order in which a lane's files change: whatever dies in between, a checkpoint speaks the truth."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.state_page import BASE, TAIL_START, State
from tests.support.disks import faults
from tests.support.disks.trees import files
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


# ---------------------------------------------------------------- a reset in mid-episode


# ---------------------------------------------------------------- seal


# ---------------------------------------------------------------- eviction


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


# ---------------------------------------------------------------- recovery


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
