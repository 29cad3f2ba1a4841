"""What an index asks of a vector lane, read from its columns."""

from types import SimpleNamespace

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import CorruptStoreError
from mmreplay.reading.lane_ticks import LaneTicks
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.raw_column import Remaps
from tests.support.disks.faults import kill

WIDTH = 3


@pytest.fixture
def opened():
    def opened(lane):
        out = LaneTicks(VectorReader(lane.path), Remaps())
        out.refresh()
        return out

    return opened


def test_it_gives_what_the_arrays_hold(vector, opened):
    lane = vector()
    ticks, arrays, starts = opened(lane), lane.ticks, lane.starts
    cells = np.random.default_rng(0).integers(0, 60 * WIDTH, (5, 7))
    assert ticks.width == WIDTH
    assert ticks.starts == (0, len(starts["env"]))
    assert ticks.counts(3, 50).tolist() == arrays["count"][3:50].tolist()
    assert np.array_equal(ticks.episodes(cells), arrays["episode"].ravel()[cells])
    assert np.array_equal(ticks.numbers(41), arrays["episode"][41])
    assert np.array_equal(ticks.ends(cells), arrays["ends"].ravel()[cells])
    assert np.array_equal(ticks.ended(20, 41), arrays["ends"][20:41])
    numbers = np.arange(len(starts["env"])).reshape(1, -1)
    assert np.array_equal(ticks.start_ticks(numbers), starts["tick"][None])
    assert np.array_equal(ticks.start_envs(numbers), starts["env"][None])


def test_counts_are_a_view_of_files_of_whole_pages(vector, opened):
    lane = vector(specs=None)
    counts = opened(lane).counts(2, 60)
    assert not counts.flags.owndata
    assert counts.tolist() == lane.ticks["count"][2:].tolist()


def test_it_follows_a_lane_that_grows(vector, opened):
    lane = vector()
    ticks = opened(lane)
    for _ in range(4):
        lane.play(20)
        lane.commit()
        assert ticks._reader.poll()
        ticks.refresh()
        head = ticks._reader.head
        assert np.array_equal(ticks.counts(0, head), lane.ticks["count"])
        assert np.array_equal(
            ticks.episodes(np.arange(head * WIDTH)), lane.ticks["episode"].ravel()
        )
        assert ticks.starts[1] == len(lane.starts["env"])


def test_an_end_that_a_reset_sets_in_the_newest_tick_is_seen(vector, opened):
    lane = vector(n_ticks=0)
    lane.pair.reset()
    lane.pair.step()
    lane.commit()
    ticks = opened(lane)
    lane.pair.reset([1])
    lane.commit()
    assert ticks.ends(np.arange(3)).tolist() == [0, 1, 0]


@pytest.mark.parametrize("number", [-1, 10**6, 1 << 62, -(1 << 62)])
def test_an_episode_that_has_no_start_is_corrupt(vector, opened, number):
    lane = vector()
    ticks = opened(lane)
    for look in (ticks.start_ticks, ticks.start_envs):
        with pytest.raises(
            CorruptStoreError, match=rf"belongs to episode {number:,}; expected one"
        ):
            look(np.array([[0], [number]]))


def test_a_start_that_went_meanwhile_is_evicted_and_one_that_was_gone_is_corrupt(vector, opened):
    lane = vector(n_ticks=600, capacity=100)
    lane.evict(450)
    ticks, gone = opened(lane), np.array([lane.base["starts"] - 1])
    assert lane.base["starts"] > 0
    with pytest.raises(CorruptStoreError):
        ticks.start_ticks(gone)
    lane.evict(500)
    with pytest.raises(EvictedError):
        ticks.start_ticks(gone)


@pytest.mark.usefixtures("quick_disk")
def test_a_step_of_a_later_session_than_the_starts_are_is_no_damage(tmp_path, opened):
    frame, action = mmreplay.Field((2,), "float32"), mmreplay.Field((), "int64")
    writer = mmreplay.create(tmp_path / "a.zarr", frame, action, lanes=WIDTH)
    writer.reset(np.zeros((WIDTH, 2), np.float32))
    kill(writer)
    ticks = opened(SimpleNamespace(path=tmp_path / "a.zarr"))
    ticks.starts = 0, 0  # as of a session before
    with pytest.raises(CorruptStoreError, match="belongs to episode 0"):
        ticks.start_ticks(np.array([0]))
    mmreplay.create(tmp_path / "a.zarr", frame, action, lanes=WIDTH, append=True).close()
    with pytest.raises(EvictedError):
        ticks.start_ticks(np.array([0]))
