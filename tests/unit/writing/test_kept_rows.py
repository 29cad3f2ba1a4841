"""Which rows are kept: the index of a lane, the newest ticks, the starts that they name."""

import shutil

import numpy as np
import pytest

from mmreplay import FailedStoreError, Field
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.oracle.vectors import assert_closed_lane_matches
from tests.support.writers import attributes

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def vector(make):
    """Make a vector lane: a writer and its model."""
    return lambda n, **changes: of_writer(make(**FIELDS | {"lanes": n} | changes))


def test_the_index_in_memory_forgets_episodes_that_went(make, story):
    writer = make(capacity=5)
    for _ in range(100):
        story.play(writer, 3)
    writer.flush()
    base = writer.log.base
    assert writer.files.starts[0] <= base < writer.files.starts[1]
    assert len(writer.files.starts) < 20


@pytest.mark.parametrize("capacity", [40, 300])
def test_a_capacity_keeps_the_newest_ticks_and_the_starts_that_they_name(vector, make, capacity):
    model = vector(5, capacity=capacity)
    for life in range(12):
        model.play(25)
        model.writer.flush()
        counts = model.columns("ticks")["count"]
        first = model.writer.files.log.first
        assert counts[-1] - (counts[first - 1] if first else 0) <= capacity
        assert first == 0 or counts[-1] - (counts[first - 2] if first > 1 else 0) > capacity
        starts, ticks = model.writer.files.logs
        assert ticks.base == max(first - 65, 0)
        named = [one.number for tick in model.ticks[ticks.base :] for one in tick.values()]
        assert starts.first <= min(named)
        if life == 6:
            model.writer.close()
            model.reopened(make(append=True))
    path = model.writer.path
    ticks = model.writer.files.log
    assert [
        name for name in ("rewards", "frames") if (path / "ticks" / name / "c.0.0.0").exists()
    ] == []
    assert not (path / "ticks" / "ends" / "c.0.0").exists()
    model.writer.close()
    assert attributes(path / "ticks")["first"] > 0
    first_start = attributes(path / "starts")["first"]
    assert first_start > 0
    assert_closed_lane_matches(model, path, ticks.base, max(first_start - 64, 0))


def test_old_starts_go_one_flush_after_the_ticks(make):
    writer = make(lanes=2, frame=Field((3,), "float32"), action=Field(), capacity=20)
    starts, ticks = writer.files.logs
    frames, ends = np.zeros((2, 3), "f4"), np.ones(2, bool)
    for _ in range(200):
        writer.reset(frames)
        writer.step([0, 0], [0, 0], frames, ends, ends)
    writer.flush()
    assert (ticks.base, starts.base) == (125, 0)
    writer.flush()
    assert (ticks.base, starts.first, starts.base) == (125, 250, 186)


def test_ticks_that_somebody_removes_end_the_writer(vector):
    """Which rows are kept stands in them."""
    model = vector(2, capacity=6)
    model.play(30)
    shutil.rmtree(model.writer.path / "ticks" / "count")
    for _ in range(2):
        with pytest.raises(FailedStoreError, match=r"ticks/count/c.0: missing"):
            model.writer.flush()
    model.writer.close()


def test_a_vector_lane_that_was_removed_says_so(vector):
    model = vector(2, capacity=6)
    model.play(30)
    shutil.rmtree(model.writer.path)
    model.writer._background.tick(timer=False)  # looks whether something can be evicted
    with pytest.raises(FailedStoreError, match="was removed while it was open"):
        model.writer.flush()
    model.writer.close()


def test_a_writer_that_met_a_missing_part_says_so_once_all_was_removed(vector):
    """As when a flush in the background runs in the middle of `rm -rf`."""
    model = vector(2, capacity=6)
    model.play(30)
    shutil.rmtree(model.writer.path / "ticks" / "count")
    with pytest.raises(FailedStoreError, match=r"ticks/count/c.0: missing"):
        model.writer.flush()
    shutil.rmtree(model.writer.path)
    for call in (model.writer.flush, lambda: model.play(1)):
        with pytest.raises(FailedStoreError, match="was removed while it was open"):
            call()
    model.writer.close()
