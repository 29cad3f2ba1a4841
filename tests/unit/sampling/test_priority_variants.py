"""Both ways from priorities to probabilities: in proportion to them, and by their ranks."""

import numpy as np
import pytest

from mmreplay.sampling.priority_variants import RankBased
from tests.support.prioritized import (
    VARIANTS,
    check_distribution,
    expected_probabilities,
    give,
    play,
)

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("alpha", [0, 0.6, 1, 2])
@pytest.mark.parametrize("n", [pytest.param(3, marks=pytest.mark.deep(only=True)), 7])
def test_transitions_are_drawn_by_the_definition(prioritized_of, n, alpha, variant):
    buffer = prioritized_of(alpha=alpha, variant=variant)
    play(buffer, n)
    give(buffer, np.random.default_rng(n).random(n) + 0.2)
    check_distribution(buffer, expected_probabilities(buffer, alpha, variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_transitions_of_several_environments_are_drawn_by_the_definition_after_eviction(
    prioritized_of, variant
):
    buffer = prioritized_of(capacity=90, variant=variant, lanes=3)
    random = np.random.default_rng(0)
    for _ in range(12):
        play(buffer, 7)
        n = len(buffer)
        give(buffer, random.random(n) + 0.1)
        buffer.flush()
        assert len(buffer) == n
    assert n == 90
    check_distribution(buffer, expected_probabilities(buffer, 0.6, variant))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0, 0.4, 1])
@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_importance_weights_are_those_of_the_definition(prioritized_of, variant, beta, normalize):
    buffer = prioritized_of(variant=variant, beta=beta, normalize=normalize)
    play(buffer, 40)
    play(buffer, 3)
    give(buffer, np.random.default_rng(0).random(43) + 0.01)
    batch = buffer.sample(16)
    probabilities = expected_probabilities(buffer, 0.6, variant)
    every = (43 * probabilities) ** -beta
    drawn = every[buffer.ids.searchsorted(batch.id)]
    largest = drawn.max() if normalize == "batch" else every.max()
    assert batch.weight.dtype == np.float32
    np.testing.assert_allclose(batch.weight, drawn / largest, rtol=1e-6)
    out = buffer.sample(16, out=batch)
    assert out is batch
    drawn = every[buffer.ids.searchsorted(batch.id)]
    largest = drawn.max() if normalize == "batch" else every.max()
    np.testing.assert_allclose(batch.weight, drawn / largest, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0, 0.5, 1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_errors_of_any_size_leave_probabilities_and_weights_finite(prioritized_of, alpha, variant):
    buffer = prioritized_of(alpha=alpha, epsilon=0.0, beta=1.0, normalize="buffer", variant=variant)
    play(buffer, 4)
    buffer.update_priorities([0, 1, 2, 3], [1e308, 1.7e308, 5e-324, 0.0])
    batch = buffer.sample(100)
    assert np.isfinite(batch.weight).all()
    assert (batch.weight <= 1).all()


def ranks_of(priorities):
    """The masses of a fresh sort: equal priorities by position."""
    present = np.flatnonzero(priorities)
    order = present[np.lexsort((present, -priorities[present]))]
    return {int(one): rank**-0.7 for rank, one in enumerate(order, 1)}


@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_those_of_the_last_sort_which_comes_after_a_quarter_as_many_priorities(seed):
    random = np.random.default_rng(seed)
    priorities = np.zeros(500)
    masses = RankBased(0.7)
    masses.load(priorities)
    expected, n_came, n_given, due, sorts = {}, 0, 0, 1, 0
    for first in range(0, 480, 12):
        came = np.arange(first, first + random.integers(1, 13))
        updated = random.choice(np.flatnonzero(priorities), 5) if first else came[:0]
        gone = np.flatnonzero(priorities[: max(first - 200, 0)])
        positions = np.concatenate((gone, came, updated))
        values = np.concatenate((gone * 0, came * 0 + 9, random.integers(1, 9, updated.size) / 4))
        kept = ~np.isin(positions, gone) | (values == 0)
        positions, values = positions[kept], values[kept]
        priorities[positions] = values
        masses.set(positions, values)
        for one in gone.tolist():
            del expected[one]
        for one in came.tolist():
            n_came += 1
            expected[one] = n_came**-0.7
        n_given += int(np.count_nonzero(values))
        if n_given >= due:
            expected, n_came, n_given, sorts = ranks_of(priorities), 0, 0, sorts + 1
            due = max(len(expected) // 4, 1)
        present = np.flatnonzero(priorities)
        assert sorted(expected) == present.tolist()
        wanted = np.array([expected[one] for one in present.tolist()])
        wanted /= wanted.sum()
        np.testing.assert_allclose(masses.probabilities(present), wanted)
        assert masses.least() == pytest.approx(wanted.min())
        drawn, chances = masses.draw(random.random(50))
        np.testing.assert_allclose(chances, wanted[present.searchsorted(drawn)])
    assert 10 < sorts < 30
