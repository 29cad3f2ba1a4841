"""Samplers: every transition with the same probability, or each of them once."""

import numpy as np
import pytest

from mmreplay.episodes import Index
from mmreplay.errors import EmptyBufferError
from mmreplay.format import LANE_SHIFT
from mmreplay.samplers import epoch_ids, uniform_ids


@pytest.fixture
def index():
    """Two lanes with episodes of several lengths: 60 transitions."""
    out = Index(2)
    out.load(0, 0, 41, np.array([0, 5, 6, 20]), None)
    out.load(1, 0, 30, np.array([0, 1, 10]), 25)
    return out


def test_each_transition_is_drawn_with_the_same_probability(index):
    n_draws = 200_000
    drawn = uniform_ids(index, np.random.default_rng(0).random(n_draws))
    found, counts = np.unique(drawn, return_counts=True)
    valid = index.ids()
    assert found.tolist() == valid.tolist()
    expected = n_draws / len(valid)
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    degrees = len(valid) - 1
    # Four standard deviations either way: neither unfair nor fairer than chance.
    assert abs(chi_squared - degrees) < 4 * (2 * degrees) ** 0.5


@pytest.mark.parametrize("size", [1, 2, 63, 64, 65, 1000])
def test_each_draw_gives_one_transition_and_the_same_draws_the_same(index, size):
    draws = np.random.default_rng(1).random(size)
    drawn = uniform_ids(index, draws)
    assert (drawn.dtype, drawn.shape) == (np.dtype("int64"), (size,))
    assert not index.invalid(drawn).any()
    assert uniform_ids(index, draws).tolist() == drawn.tolist()
    assert [uniform_ids(index, draws[n : n + 1])[0] for n in range(size)] == drawn.tolist()


def test_a_single_transition_is_all_that_is_drawn():
    index = Index(3)
    index.load(1, 0, 2, np.array([0]), None)
    draws = np.random.default_rng(0).random(5)
    assert uniform_ids(index, draws).tolist() == [1 << LANE_SHIFT] * 5


def test_the_least_draw_is_the_oldest_transition_and_the_greatest_the_newest(index):
    draws = np.array([0.0, np.nextafter(1.0, 0.0)])
    assert uniform_ids(index, draws).tolist() == [index.ids()[0], index.ids()[-1]]


def test_every_transition_has_its_stretch_of_the_draws(index):
    count = index.n_transitions
    draws = (np.arange(count) + 0.5) / count
    assert uniform_ids(index, draws).tolist() == index.ids().tolist()


def test_nothing_can_be_drawn_from_nothing():
    for head in (0, 1):
        index = Index(2)
        index.load(0, 0, head, np.arange(head), None)
        with pytest.raises(EmptyBufferError, match="a transition needs a reset and a step"):
            uniform_ids(index, np.array([0.5]))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 100])
def test_over_all_ranks_an_epoch_holds_each_transition_exactly_once(index, shuffle, world_size):
    parts = [
        epoch_ids(index, seed=3, epoch=5, shuffle=shuffle, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(np.concatenate(parts).tolist()) == index.ids().tolist()


def test_the_order_depends_on_the_seed_and_the_number_of_the_epoch_alone(index):
    def order(seed, epoch, **changes):
        given = {"shuffle": True, "rank": 0, "world_size": 1, **changes}
        return epoch_ids(index, seed=seed, epoch=epoch, **given).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    whole = order(1, 4)
    assert order(1, 4, rank=1, world_size=3) == whole[1::3]
    assert order(1, 0, shuffle=False) == order(2, 7, shuffle=False) == index.ids().tolist()


def test_an_epoch_of_nothing_is_empty():
    assert epoch_ids(Index(1), seed=0, epoch=0, shuffle=True, rank=0, world_size=1).tolist() == []
