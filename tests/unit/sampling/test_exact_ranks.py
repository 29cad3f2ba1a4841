"""Ranked priorities: against a sorted list of everything, whatever comes and goes."""

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mmreplay.errors import SchemaError
from mmreplay.sampling.exact_ranks import RankedPriorities
from mmreplay.sampling.rank_distribution import RankDistribution
from tests.support.effort import by_effort
from tests.support.even_draws import assert_counts_fit, even_draws

PATTERNS = {
    "all equal": lambda rng, n, step: np.ones(n),
    "two values": lambda rng, n, step: rng.integers(1, 3, n) / 2,
    "ascending": lambda rng, n, step: step * n + np.arange(n) + 1.0,
    "descending": lambda rng, n, step: 1 / (step * n + np.arange(n) + 1.0),
    "random": lambda rng, n, step: 1 - rng.random(n),
    "clipped": lambda rng, n, step: np.where(rng.random(n) < 0.5, 1.0, 1 - rng.random(n)),
    "closer and closer": lambda rng, n, step: 1 + rng.integers(0, 9, n) * 2.0**-52,
    "smallest and largest": lambda rng, n, step: rng.choice([5e-324, 1e-308, 1.0, 1.7e308], n),
}


def by_rank(priorities):
    """The positions with a priority, as the class documents their order."""
    present = np.flatnonzero(priorities)
    return present[np.lexsort((present, -priorities[present]))]


def check(ranked, priorities):
    """Everything that can be asked of `ranked` fits these priorities."""
    expected = by_rank(priorities)
    ranks = np.arange(1, len(expected) + 1)
    assert len(ranked) == len(expected)
    assert ranked.size == len(priorities)
    assert np.array_equal(ranked.at(ranks), expected)
    assert np.array_equal(ranked.ranks(expected), ranks)
    assert np.array_equal(ranked.get(np.arange(len(priorities))), priorities)


def check_neighbours(ranked):
    """What bounds the number of blocks."""
    directory = ranked._directory
    for node in directory._order:
        counts = directory.counts[directory._blocks[node, : directory._n_blocks[node]]]
        assert (counts[1:] + counts[:-1] > ranked._width // 2).all()


class Machine(RuleBasedStateMachine):
    """Small blocks, so that a few items are many blocks and many nodes."""

    positions = st.lists(st.integers(0, 10**6), max_size=60)
    priorities = st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]) | st.floats(
        0, 1e308, allow_subnormal=True
    )

    @initialize(size=st.integers(0, 120), width=st.integers(2, 9), fanout=st.integers(4, 7))
    def begin(self, size, width, fanout):
        self.shape = {"width": width, "fanout": fanout}
        self.expected = np.zeros(size)
        self.ranked = RankedPriorities(size, **self.shape)

    def set(self, positions, priorities):
        positions = np.array(positions, np.int64)
        priorities = np.array(priorities, np.float64)
        self.ranked.set(positions, priorities)
        for position, priority in zip(positions, priorities, strict=True):
            self.expected[position] = priority

    @rule(positions=positions, data=st.data())
    def set_some(self, positions, data):
        n = len(positions) if len(self.expected) else 0
        priorities = data.draw(st.lists(self.priorities, min_size=n, max_size=n))
        self.set([p % len(self.expected) for p in positions[:n]], priorities)

    @rule(start=st.integers(0, 10**6), n=st.integers(0, 200), priority=priorities)
    def set_a_run_to_one_value(self, start, n, priority):
        size = max(len(self.expected), 1)
        run = np.arange(start % size, min(start % size + n, len(self.expected)))
        self.set(run, np.full(len(run), priority))

    @rule(start=st.integers(0, 10**6), step=st.integers(1, 9), n=st.integers(1, 200))
    def remove_neighbours_in_rank(self, start, step, n):
        order = by_rank(self.expected)
        gone = order[start % max(len(order), 1) :: step][:n]
        self.set(gone, np.zeros(len(gone)))

    @rule(size=st.integers(0, 400))
    def resize(self, size):
        self.ranked.resize(size)
        kept = self.expected[:size]
        self.expected = np.zeros(size)
        self.expected[: len(kept)] = kept

    @rule()
    def build_again(self):
        self.ranked = RankedPriorities.from_arrays(self.expected, **self.shape)

    @invariant()
    def agrees_with_a_sorted_list(self):
        check(self.ranked, self.expected)

    @invariant()
    def neighbours_in_a_node_fill_more_than_half_a_block(self):
        check_neighbours(self.ranked)


TestAgainstASortedList = Machine.TestCase
TestAgainstASortedList.settings = settings(max_examples=by_effort(10, 50, 2_000))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("built", [False, True], ids=["grown", "built"])
def test_ranks_are_exact_for_any_pattern_of_priorities(pattern, built):
    rng = np.random.default_rng(0)
    size, n = 2000, 256
    expected = np.zeros(size)
    ranked = RankedPriorities(size)
    if built:
        expected = PATTERNS[pattern](rng, size, 0)
        ranked = RankedPriorities.from_arrays(expected)
        check(ranked, expected)
    for step in range(12):
        a_run = (step * n + np.arange(n)) % size
        positions = rng.integers(0, size, n) if step % 3 else a_run
        priorities = PATTERNS[pattern](rng, n, step)
        priorities[rng.random(n) < 0.1] = 0
        ranked.set(positions, priorities)
        expected[positions] = priorities  # numpy, too, lets the last of a repeated one win
        check(ranked, expected)


def test_many_updates_leave_the_same_ranks_as_building_again():
    rng = np.random.default_rng(1)
    size = 10_000
    expected = np.ones(size)
    ranked = RankedPriorities.from_arrays(expected)
    for _ in range(100):
        positions = ranked.at(rng.integers(1, size + 1, 256))
        priorities = np.minimum(rng.exponential(0.5, 256) + 1e-6, 1)
        ranked.set(positions, priorities)
        expected[positions] = priorities
    everything = np.arange(size)
    built = RankedPriorities.from_arrays(expected)
    assert (ranked.ranks(everything) == built.ranks(everything)).all()
    assert (ranked.at(ranked.ranks(everything)) == everything).all()
    assert (ranked.at(everything + 1) == built.at(everything + 1)).all()


def test_a_position_that_is_repeated_has_its_last_priority():
    ranked = RankedPriorities(4)
    ranked.set(np.array([2, 1, 2, 3, 1]), np.array([0.5, 1.0, 0.25, 0.75, 0.0]))
    assert ranked.get(np.arange(4)).tolist() == [0, 0, 0.25, 0.75]
    assert ranked.at(np.array([1, 2])).tolist() == [3, 2]


def test_of_equal_priorities_the_lower_position_comes_first():
    ranked = RankedPriorities(600)
    for position in np.random.default_rng(0).permutation(600):
        ranked.set(np.array([position]), np.ones(1))
    assert ranked.at(np.arange(1, 601)).tolist() == list(range(600))


def test_blocks_thinned_out_and_filled_elsewhere_stay_within_their_room():
    # Leaving a few of each block and filling other blocks is what makes most of them.
    size = 1500
    expected = np.linspace(1, 2, size)
    ranked = RankedPriorities.from_arrays(expected, width=8, fanout=4)
    for step in range(1, 30):
        order = by_rank(expected)
        gone = order[np.arange(len(order)) % (4 + step) != 0]
        ranked.set(gone, np.zeros(len(gone)))
        check_neighbours(ranked)
        expected[gone] = np.linspace(2 * step, 2 * step + 1, len(gone))
        ranked.set(gone, expected[gone])
    check(ranked, expected)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_change_moves_no_more_than_the_blocks_that_it_touches(pattern):
    rng = np.random.default_rng(2)
    size, n = 50_000, 16
    ranked = RankedPriorities.from_arrays(PATTERNS[pattern](rng, size, 0))
    for step in range(20):
        before = ranked._slots.copy()
        ranked.set(rng.integers(0, size, n), PATTERNS[pattern](rng, n, step))
        # Each of them may cut one block, and join two others.
        assert np.count_nonzero(ranked._slots != before) <= n * 2 * 256


def test_empty_arrays_give_empty_answers():
    ranked = RankedPriorities(0)
    nothing = np.empty(0, np.int64)
    ranked.set(nothing, np.empty(0))
    assert len(ranked) == ranked.size == 0
    assert ranked.ranks(nothing).tolist() == ranked.at(nothing).tolist() == []
    assert len(RankedPriorities.from_arrays(np.zeros(5))) == 0


def test_answers_are_int64_whatever_is_stored():
    ranked = RankedPriorities.from_arrays(np.ones(300))
    assert ranked.at(np.array([1, 300])).dtype == np.int64
    assert ranked.ranks(np.array([0, 299])).dtype == np.int64


@pytest.mark.parametrize(
    ("positions", "priorities", "message"),
    [
        ([0, -1], [1.0, 1.0], "positions from -1 to 0"),
        ([0, 3], [1.0, 1.0], "expected 0 to 2"),
        ([0], [-1.0], "a priority is -1.0"),
        ([0], [math.nan], "a priority is nan"),
        ([0], [math.inf], "a priority is inf"),
        ([0, 1], [1.0], "one priority for each"),
    ],
)
def test_wrong_positions_and_priorities_are_refused_and_change_nothing(
    positions, priorities, message
):
    expected = np.array([0.5, 0.0, 0.25])
    ranked = RankedPriorities.from_arrays(expected)
    with pytest.raises(SchemaError, match=message):
        ranked.set(np.array(positions), np.array(priorities))
    check(ranked, expected)


def test_building_from_nan_is_refused():
    with pytest.raises(SchemaError, match="a priority is nan"):
        RankedPriorities.from_arrays(np.array([1.0, math.nan]))


def test_positions_without_a_rank_and_ranks_without_a_position_are_refused():
    ranked = RankedPriorities.from_arrays(np.array([0.5, 0.0]))
    with pytest.raises(SchemaError, match="position 1 has no rank"):
        ranked.ranks(np.array([0, 1]))
    with pytest.raises(SchemaError, match="positions from 2 to 2"):
        ranked.ranks(np.array([2]))
    for rank in (0, 2):
        with pytest.raises(SchemaError, match=f"from {rank} to {rank} .* of 1 positions"):
            ranked.at(np.array([rank]))


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.5])
@pytest.mark.parametrize("n", [3, 1000])
def test_positions_are_drawn_by_the_exact_distribution_of_their_ranks(alpha, n):
    rng = np.random.default_rng(n)
    priorities = np.minimum(1.2 * (1 - rng.random(n)), 1)
    ranked = RankedPriorities.from_arrays(priorities)
    drawn = ranked.at(RankDistribution(alpha).draw(n, even_draws(20_000)))
    expected = np.empty(n)
    expected[by_rank(priorities)] = np.arange(1, n + 1) ** -alpha
    expected /= math.fsum(expected)
    assert_counts_fit(np.bincount(drawn, minlength=n), expected)
