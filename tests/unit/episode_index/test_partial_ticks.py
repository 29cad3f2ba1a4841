"""The ticks that leave environments out, against a list of all cells."""

import numpy as np
import pytest

from mmreplay.episode_index.partial_ticks import PartialTicks

WIDTH = 5


def cells_of(present):
    """Of ticks with so many transitions each, the first so many cells of each: one a transition."""
    return [WIDTH * tick + cell for tick, n in enumerate(present) for cell in range(n)]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.7, 1.0])
def test_each_transition_has_a_cell_of_its_tick_however_the_ticks_came(share):
    random = np.random.default_rng(0)
    present = np.where(random.random(900) < share, random.integers(0, WIDTH, 900), WIDTH)
    counts, cells = present.cumsum(), np.array(cells_of(present))
    ticks = PartialTicks(WIDTH, 0, 0)
    for stop in (0, 1, 2, 3, 60, 61, 61, 400, 900):
        assert ticks.extend(counts[ticks.head : stop])
        assert ticks.head == stop
        assert ticks.last == (counts[stop - 1] if stop else 0)
        numbers = random.permutation(ticks.last)
        assert ticks.cells(numbers).tolist() == cells[numbers].tolist()
        assert len(ticks) == np.count_nonzero(present[:stop] < WIDTH)
    for first in (0, 1, 500, 899):
        assert (
            ticks.ticks(first).tolist()
            == (np.flatnonzero(present[first:] < WIDTH) + first).tolist()
        )


def test_what_is_forgotten_is_not_kept_and_changes_no_later_cell():
    random = np.random.default_rng(1)
    present = random.integers(0, WIDTH, 3000)
    counts, cells = present.cumsum(), np.array(cells_of(present))
    ticks = PartialTicks(WIDTH, 40, int(counts[39]))
    for head in range(41, 3001):
        before = int(counts[max(head - 100, 40) - 1])
        assert ticks.extend(counts[head - 1 : head])
        ticks.forget(before)
    assert len(ticks) < 300
    assert ticks._ends.size < 600
    numbers = np.arange(before, ticks.last)
    assert ticks.cells(numbers).tolist() == cells[numbers].tolist()
    assert ticks.ticks(2900).tolist() == list(range(2900, 3000))


@pytest.mark.parametrize(
    "counts", [[14], [9, 15], [9, 7], [9, 8, 12], [4], [-1], [np.iinfo(np.int64).min, 9]]
)
def test_numbers_that_no_ticks_can_have_change_nothing(counts):
    ticks = PartialTicks(WIDTH, 0, 0)
    assert ticks.extend(np.array([5, 8]))
    assert not ticks.extend(np.array(counts))
    assert (ticks.head, ticks.last, len(ticks)) == (2, 8, 1)
    assert ticks.extend(np.array([13]))
    assert ticks.cells(np.arange(13)).tolist() == [*range(8), *range(10, 15)]
