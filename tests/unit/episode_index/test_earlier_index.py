"""An index as it was: the episodes of then, though more steps have come."""

import numpy as np
import pytest

from mmreplay.episode_index import EarlierIndex, RowIndex, TickIndex
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.episode_sums import EpisodeSums
from tests.support.oracle.ticks import TicksOnDisk
from tests.support.oracle.vector_pair import in_memory


def steps_of(index):
    """Every step of all episodes, as (id of its episode's oldest step, how many have come)."""
    sums = EpisodeSums(lambda steps: steps)
    firsts, steps, within, _ = sums.at(np.arange(sums.follow(index)))
    return sorted(zip(firsts.tolist(), steps.tolist(), within.tolist(), strict=True))


@pytest.mark.parametrize("width", [1, 4])
def test_ticks_have_the_episodes_of_then(width):
    model = in_memory(width, None, 3)
    model.play(40, 0.1)
    disk = TicksOnDisk(model)
    then, now = TickIndex(disk, "lane"), TickIndex(disk, "lane")
    then.load(0, 25, model.capacity, disk.starts)
    now.load(0, 40, model.capacity, disk.starts)
    earlier = EarlierIndex(now, np.array([then.extent(0)[1]]))
    assert steps_of(earlier) == steps_of(then) != steps_of(now)
    ids = then.ids()
    assert earlier.span(ids).left.tolist() == then.span(ids).left.tolist()


def test_rows_have_the_episodes_of_then_and_lanes_that_came_since_have_none():
    starts = np.array([0, 7, 12, 30])
    then, now = RowIndex(2), RowIndex(2)
    for index, head in ((then, 20), (now, 40)):
        index.load(0, 0, head, starts[starts < head], None)
    now.load(1, 0, 10, np.array([0]), None)
    earlier = EarlierIndex(now, np.array([then.extent(0)[1]]))
    assert steps_of(earlier) == steps_of(then)
    assert max(first for first, *_ in steps_of(now)) >= 1 << LANE_SHIFT
