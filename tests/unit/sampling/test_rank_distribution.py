"""Draws of ranks: each by its exact probability, however many ranks there are."""

import math

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.rank_distribution import RankDistribution
from tests.support.even_draws import assert_counts_fit, even_draws


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_ranks_of_many_items_are_drawn_by_their_exact_distribution(alpha):
    n = 300_007
    ranks = RankDistribution(alpha).draw(n, even_draws(100_000))
    assert ranks.min() >= 1
    assert ranks.max() <= n
    # Groups of ranks that are drawn equally often, exact to the last digit of a long sum.
    sums = np.cumsum((np.arange(1, n + 1) ** -alpha).astype(np.longdouble))
    bounds = sums.searchsorted(sums[-1] * np.arange(1, 50) / 50)
    edges = np.unique(np.concatenate(([0], bounds, [n])))
    masses = np.diff(np.concatenate(([0], sums[edges[1:] - 1]))) / sums[-1]
    assert_counts_fit(np.histogram(ranks, edges + 0.5)[0], masses.astype(np.float64))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("n", [1, 3, 8, 1000])
def test_probabilities_are_those_of_the_definition(alpha, n):
    total = math.fsum(k**-alpha for k in range(1, n + 1))
    found = RankDistribution(alpha).probability(np.arange(1, n + 1), n)
    assert found.tolist() == pytest.approx([k**-alpha / total for k in range(1, n + 1)], rel=1e-13)
    assert math.fsum(found) == pytest.approx(1, rel=1e-13)


@pytest.mark.parametrize("n", [1, 2, 3, 1000, 70_001])
def test_the_ends_of_the_draws_are_the_first_and_the_last_rank(n):
    for alpha in (0.0, 0.7, 1.0):
        drawn = RankDistribution(alpha).draw(n, np.array([0.0, np.nextafter(1, 0)]))
        assert drawn.tolist() == [1, n]


def test_a_draw_gives_the_rank_whose_share_it_lies_in():
    # Shares of 1, 1/2 and 1/4 of 7/4, without rounding.
    distribution = RankDistribution(1.0)
    shares = np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (25 / 12)
    inside = np.cumsum(shares) - shares / 2
    assert distribution.draw(4, inside).tolist() == [1, 2, 3, 4]
    assert RankDistribution(0.0).draw(4, np.array([0, 0.25, 0.5, 0.75])).tolist() == [1, 2, 3, 4]


def test_stratified_draws_give_ascending_ranks_one_of_each_stratum():
    n, size = 10_000, 64
    distribution = RankDistribution(0.7)
    draws = (np.arange(size) + np.random.default_rng(0).random(size)) / size
    ranks = distribution.draw(n, draws)
    assert (np.diff(ranks) >= 0).all()
    shares = np.cumsum(distribution.probability(np.arange(1, n + 1), n))
    reached = np.concatenate(([0], shares))
    assert (reached[ranks - 1] <= draws + 1e-12).all()
    assert (draws <= reached[ranks] + 1e-12).all()


def test_draws_do_not_depend_on_how_the_number_of_items_grew():
    draws = np.random.default_rng(0).random(1000)
    grown = RankDistribution(0.6)
    for n in (1, 2, 3, 500, 501, 40_000, 7, 100_000):
        grown.draw(n, draws)
    assert (grown.draw(90_001, draws) == RankDistribution(0.6).draw(90_001, draws)).all()
    assert grown._sums.tolist() == np.cumsum(np.arange(1, len(grown._sums) + 1) ** -0.6).tolist()


def test_a_draw_from_no_items_is_refused():
    with pytest.raises(EmptyBufferError):
        RankDistribution(0.7).draw(0, np.zeros(1))


@pytest.mark.parametrize("alpha", [-0.1, math.nan, math.inf])
def test_an_alpha_out_of_its_range_is_refused(alpha):
    with pytest.raises(SchemaError, match="expected a finite number of at least 0"):
        RankDistribution(alpha)
