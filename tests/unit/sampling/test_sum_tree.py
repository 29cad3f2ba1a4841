"""The tree of sums: positions in proportion to their mass, and sums that never drift."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmreplay.sampling.priority_variants import SumTree

LAST = np.nextafter(1.0, 0.0)
# One level and two, full and with one more position.
SIZES = [1, 3, 7, 31, 32, 33, 1000, 65_536, 65_537]


def naive(masses, draws):
    """By one sum over everything."""
    bounds = masses.cumsum()
    return bounds.searchsorted(draws * bounds[-1], "right")


def levels(tree):
    tree.settle()
    return [level.tobytes() for level in tree._levels]


@pytest.mark.parametrize("size", SIZES)
def test_a_draw_gives_the_position_whose_share_it_lies_in(size):
    random = np.random.default_rng(size)
    masses = random.random(size) * (random.random(size) < 0.7)
    masses[-1] = 0.5
    tree = SumTree(masses)
    draws = random.random(500)
    positions, found = tree.draw(draws)
    assert (positions.dtype, found.dtype) == (np.dtype("int64"), np.dtype("float64"))
    assert found.tolist() == masses[positions].tolist()
    # A draw may lie closer to a border than sums of this many numbers are exact.
    bounds = masses.cumsum()
    close = np.abs(bounds[naive(masses, draws), None] - draws[:, None] * bounds[-1]) < 1e-9 * size
    agree = positions == naive(masses, draws)
    assert (agree | close.any(1)).all()
    assert agree.mean() > 0.99
    assert tree.total == pytest.approx(masses.sum())


@pytest.mark.parametrize("size", SIZES)
def test_the_ends_of_the_draws_are_the_first_and_the_last_position_with_mass(size):
    for first, last in ((0, size - 1), (size // 3, size // 2)):
        masses = np.zeros(size)
        masses[[first, last]] = 0.1, 0.7
        tree = SumTree(masses)
        assert tree.draw(np.array([0.0, LAST]))[0].tolist() == [first, last]


masses_of_any_size = st.lists(
    st.sampled_from([0.0, 0.0, 1e-140, 1e-17, 0.1, 0.2, 0.3, 1 / 3, 1.0, 1e16, 1e140]),
    min_size=1,
    max_size=200,
).filter(any)


@given(masses_of_any_size, st.integers(0, 2**32), st.integers(0, 5000))
def test_no_position_without_mass_is_ever_drawn(masses, seed, before):
    tree = SumTree(np.array([0.0] * before + masses + [0.0] * 40))
    bounds = np.cumsum(masses) / np.sum(masses)
    edges = [np.nextafter(bounds, 0), bounds, np.nextafter(bounds, 2)]
    draws = np.concatenate([*edges, np.random.default_rng(seed).random(50), [0.0, LAST]])
    positions, found = tree.draw(draws[draws < 1])
    assert (found > 0).all()
    assert found.tolist() == [masses[position - before] for position in positions]


def test_a_draw_rounded_up_past_the_end_of_a_group_gives_its_last_position():
    random = np.random.default_rng(0)
    for _ in range(100):
        masses = np.zeros(8192)
        masses[:20], masses[-1] = random.random(20), 1e-3
        tree = SumTree(masses)
        border = masses[:32].sum() / tree.total
        near = [border]
        for _ in range(4):
            near += [np.nextafter(near[-1], 0)]
        positions, found = tree.draw(np.array(near))
        assert (found > 0).all()
        assert set(positions.tolist()) <= {19, 8191}


@pytest.mark.parametrize("size", [1000, 70_003])
def test_many_updates_leave_the_sums_of_a_tree_built_again(size):
    random = np.random.default_rng(0)
    masses = random.random(size)
    tree = SumTree(masses)
    for number in range(300):
        n = 500 if number % 3 else 517  # both ways to sum
        positions = random.integers(0, size, n)
        changed = random.random(n) ** 9 * 10.0 ** random.integers(-12, 12, n)
        tree.set(positions, changed)
        masses[positions] = changed
        if not number % 7:  # the sums of several sets are made at once
            tree.draw(random.random(3))
    assert tree.masses.tobytes() == masses.tobytes()
    built = SumTree(masses)
    assert levels(tree) == levels(built)
    assert tree.total == built.total
    draws = random.random(1000)
    assert tree.draw(draws)[0].tolist() == built.draw(draws)[0].tolist()


@pytest.mark.parametrize("size", [1, 31, 33, 1025, 5000])
def test_the_least_mass_is_that_of_a_search_whatever_is_set(size):
    random = np.random.default_rng(size)
    masses = random.random(size) * (random.random(size) < 0.7)
    tree = SumTree(masses)
    for _ in range(30):
        present = masses[masses > 0]
        assert tree.least() == (present.min() if present.size else np.inf)
        positions = random.integers(0, size, 7)
        values = random.random(7) * (random.random(7) < 0.8) * 10.0 ** random.integers(-9, 1)
        masses[positions] = values
        tree.set(positions, values)
    tree.set(np.arange(size), np.zeros(size))
    assert tree.least() == np.inf
