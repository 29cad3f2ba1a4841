"""What gatherers and samplers may rely on, whichever kind of index they have."""

import numpy as np
import pytest

from mmreplay.episode_index import JoinedIndex, TickIndex
from mmreplay.ids import LANE_SHIFT
from tests.support.oracle.ticks import Rows, TicksOnDisk
from tests.support.oracle.vector_pair import in_memory


@pytest.fixture(params=["rows", "ticks", "joined"])
def index(request):
    """One of each kind, of the same experience of 3 environments; the last has it twice."""
    model = in_memory(3, 60)
    model.play(90, 0.2)
    disk = TicksOnDisk(model)
    ticks = TickIndex(disk, "lane")
    ticks.load(0, len(model.ticks), model.capacity, disk.starts)
    rows = Rows(model).index
    joined = JoinedIndex([(rows, (0, 1, 2)), (ticks, [3])])
    return {"rows": rows, "ticks": ticks, "joined": joined}[request.param]


def test_ids_ranks_and_presence_are_about_the_same_transitions(index):
    ids = index.ids()
    assert index.n_transitions == len(ids) > 50
    assert (np.diff(ids) > 0).all()
    assert sorted(index.at(np.arange(len(ids))).tolist()) == ids.tolist()
    assert not index.invalid(ids).any()
    present = []
    for lane in range(index.n_lanes):
        base, first, head = index.window(lane)
        start, stop = index.extent(lane)
        assert base <= first <= start <= stop <= head
        at = np.flatnonzero(index.present(lane, start, stop)) + start + (lane << LANE_SHIFT)
        present += at.tolist()
        assert index.n_transitions_of(lane + 1) == len(present)
    assert present == ids.tolist()


def test_the_steps_of_all_episodes_are_all_transitions(index):
    found = []
    for lane in range(index.n_lanes):
        episodes = index.episodes(lane)
        numbers = np.setdiff1d(np.arange(episodes.start, episodes.stop), episodes.cut)
        firsts, lengths = index.ended(lane, numbers)
        there = episodes.steps.nonzero()[0]
        firsts = np.concatenate((firsts, episodes.firsts(there)))
        lengths = np.concatenate((lengths, episodes.steps[there]))
        for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
            found += [first + step * episodes.stride for step in range(length)]
    assert sorted(found) == index.ids().tolist()


def test_the_span_of_a_step_reaches_as_far_as_its_steps_are_transitions(index):
    ids = index.ids()
    span = index.span(ids)
    for n, (oldest, left) in enumerate(zip(span.oldest.tolist(), span.left.tolist(), strict=True)):
        around = span.steps.at(np.arange(-oldest, left))[n]
        assert not index.invalid(around).any()
    assert (span.back >= span.oldest).all()
    assert index.steps(ids, 3, back=True).left.tolist() == np.minimum(span.left, 3).tolist()
