"""The index of trajectory boundaries, against code that looks at every row."""

import numpy as np
import pytest

from mmreplay.episode_index import UNKNOWN, RowIndex, floor_row
from mmreplay.ids import LANE_SHIFT
from tests.support.oracle.naive_rows import naive_first, naive_transitions

ROW_MASK = (1 << LANE_SHIFT) - 1


def ids(values):
    return np.array(values, np.int64)


# ---------------------------------------------------------------- the whole index


class Naive:
    """One lane: every reset that ever was, and what the index was told."""

    def __init__(self, capacity=None):
        self.starts, self.head, self.base, self.capacity = [], 0, 0, capacity
        self.loaded_base = 0
        self.first = 0
        self.live = False

    def grow(self, random, rows, rate):
        """Append rows; returns the new resets."""
        new = [
            row for row in range(self.head, self.head + rows) if row == 0 or random.random() < rate
        ]
        self.starts += new
        self.head += rows
        return new

    def settle(self):
        self.first = naive_first(self.starts, self.first, self.head, self.capacity)

    def evict(self, random):
        """Base goes up, never past the context of the oldest transition."""
        self.settle()
        most = max(self.first - 64, self.base)
        self.base = int(random.integers(self.base, most + 1))

    def load(self, index, number):
        self.loaded_base = self.base
        self.first = naive_first(self.starts, floor_row(self.base), self.head, self.capacity)
        known = [start for start in self.starts if start >= self.base]
        self.live = number % 2 == 0
        index.load(number, self.base, self.head, ids(known), self.capacity, live=self.live)

    @property
    def transitions(self):
        return naive_transitions(self.starts, self.first, self.head)


def compare(index, lanes, random):
    expected = [
        (number << LANE_SHIFT) + row
        for number, lane in enumerate(lanes)
        for row in lane.transitions
    ]
    assert index.n_transitions == len(expected)
    assert index.ids().tolist() == expected
    for number, lane in enumerate(lanes):
        assert index.window(number) == (lane.base, lane.first, lane.head)
        resets = index.resets(number).tolist()
        assert [row for row in resets if row >= lane.first] == [
            row for row in lane.starts if row >= lane.first
        ]
        assert set(resets) <= set(lane.starts)
    if expected:
        count = int(random.choice([1, 7, 64, 65, 300]))
        ranks = random.integers(0, len(expected), count)
        found = index.at(ranks)
        assert found.dtype == np.int64
        assert found.tolist() == [expected[rank] for rank in ranks]
        steps, span = index.steps(found, 5, back=True), index.span(found)
        assert steps.left.tolist() == np.minimum(span.left, 5).tolist()
        assert steps.back.tolist() == span.back.tolist() == span.steps.back.tolist()
        assert span.steps.left is span.left
        assert steps.until.tolist() == span.left.tolist()
        apart = index.steps(found.copy(), 5, back=True)  # without the places that `at` found
        for name in ("back", "left", "until", "running"):
            assert np.array_equal(getattr(steps, name), getattr(apart, name)), name
        ends = zip(found.tolist(), span.left.tolist(), strict=True)
        newest = [
            lanes[one >> LANE_SHIFT].live
            and (one & ROW_MASK) + left + 1 == lanes[one >> LANE_SHIFT].head
            for one, left in ends
        ]
        assert (steps.running is None and not any(newest)) or steps.running.tolist() == newest
        around = zip(*(x.tolist() for x in (found, span.back, span.oldest, span.left)), strict=True)
        for one, back, oldest, left in around:
            lane, row = lanes[one >> LANE_SHIFT], one & ROW_MASK
            start = max(start for start in lane.starts if start <= row)
            if start >= lane.loaded_base:
                assert back == row - start
            else:  # gone: no row that is kept is taken for the start
                assert back >= UNKNOWN
            assert oldest == row - max(start, lane.first)
            assert left == min([s for s in lane.starts if s > row] + [lane.head]) - 1 - row
    probes = [
        -1,
        -(1 << 40),
        (1 << 63) - 1,
        len(lanes) << LANE_SHIFT,
        (len(lanes) << LANE_SHIFT) + 3,
    ]
    for number, lane in enumerate(lanes):
        probes += [
            (number << LANE_SHIFT) + row for row in range(max(lane.head - 90, 0), lane.head + 4)
        ]
    valid = set(expected)
    assert index.invalid(ids(probes)).tolist() == [one not in valid for one in probes]


@pytest.mark.parametrize("seed", range(25))
def test_row_i_is_a_transition_if_and_only_if_row_i_plus_1_is_committed_and_is_no_reset(seed):
    random = np.random.default_rng(seed)
    n_lanes = int(random.choice([1, 1, 2, 3]))
    rate = float(random.choice([0, 0.02, 0.2, 0.6, 1]))
    lanes = [
        Naive(None if random.random() < 0.4 else int(random.integers(1, 60)))
        for _ in range(n_lanes)
    ]
    index = RowIndex(n_lanes)
    compare(index, lanes, random)
    for number, lane in enumerate(lanes):
        if random.random() < 0.7:
            lane.grow(random, int(random.choice([1, 5, 150])), rate)
            lane.evict(random)
        lane.load(index, number)
    compare(index, lanes, random)
    for _ in range(25):
        number = int(random.integers(0, n_lanes))
        lane = lanes[number]
        new = lane.grow(random, int(random.choice([0, 1, 2, 10, 100])), rate)
        if random.random() < 0.4:
            lane.evict(random)
        lane.settle()
        index.extend(number, lane.base, lane.head, ids(new))
        compare(index, lanes, random)
        if random.random() < 0.1:
            lane.load(index, number)
            compare(index, lanes, random)


def test_an_index_grown_row_by_row_equals_one_loaded_at_once():
    random = np.random.default_rng(1)
    lane, index = Naive(20), RowIndex(1)
    lane.load(index, 0)
    for _ in range(600):
        new = lane.grow(random, 1, 0.2)
        lane.settle()
        index.extend(0, 0, lane.head, ids(new))
    compare(index, [lane], random)
    whole = RowIndex(1)
    whole.load(0, 0, lane.head, ids(lane.starts), 20)
    assert whole.ids().tolist() == index.ids().tolist()


def test_lanes_loaded_one_after_the_other_are_there_with_the_last_of_them():
    random = np.random.default_rng(2)
    lanes, index = [Naive(None), Naive(20), Naive(None)], RowIndex(3)
    for number, lane in enumerate(lanes):
        lane.grow(random, 50, 0.2)
        lane.settle()
        starts = ids(lane.starts)
        index.load(number, 0, lane.head, starts, [None, 20, None][number], more=number < 2)
    compare(index, lanes, random)


def test_the_span_of_an_episode_is_what_of_it_can_be_sampled():
    index = RowIndex(3)
    index.load(0, 0, 9, np.array([0, 4]), None)
    index.load(1, 100, 300, np.array([200]), None)  # where row 100's episode began is not known
    index.load(2, 0, 12, np.array([0, 8]), 7)

    def span(lane, row):
        found = index.span(np.array([(lane << LANE_SHIFT) + row]))
        back, oldest, left = (int(one[0]) for one in (found.back, found.oldest, found.left))
        return None if back >= UNKNOWN else row - back, row - oldest, row + left

    assert [span(0, row) for row in (0, 2, 4, 7)] == [(0, 0, 3), (0, 0, 3), (4, 4, 8), (4, 4, 8)]
    assert [span(1, row) for row in (164, 198, 200, 298)] == [
        (None, 164, 199),
        (None, 164, 199),
        (200, 200, 299),
        (200, 200, 299),
    ]
    assert [span(2, row) for row in (3, 6, 8)] == [(0, 3, 7), (0, 3, 7), (8, 8, 11)]


def test_what_was_drawn_comes_back_in_the_order_in_which_it_was_drawn():
    index = RowIndex(1)
    index.load(0, 0, 1000, ids([0, 10, 500]), None)
    ranks = np.random.default_rng(0).integers(0, index.n_transitions, 500)
    assert index.at(ranks).tolist() == [int(index.at(ranks[n : n + 1])[0]) for n in range(500)]
    assert index.at(ids([])).tolist() == []


def test_the_index_remembers_no_more_episodes_than_can_be_sampled():
    index, head = RowIndex(1), 0
    index.load(0, 0, 0, ids([]), 50)
    for _ in range(3000):
        index.extend(0, max(head - 200, 0), head + 3, ids([head]))
        head += 3
    assert index.n_transitions == 50
    assert len(index.resets(0)) < 300
    assert len(index._starts) < 1000
