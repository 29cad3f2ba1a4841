"""n-step returns, worked out by hand."""

import numpy as np
import pytest

from tests.support.oracle.handmade_rows import (
    ACTIONS,
    BEFORE,
    IDS,
    OBSERVATIONS,
    REWARDS,
    SCALARS,
    Column,
    Rows,
    gathered,
)

RETURNS = {  # gamma = 0.5, n_step = 3: return, discount, number of the next observation
    0: (1 + 1 + 0.75, 0.0, 3),  # terminated with the third step
    1: (2 + 1.5, 0.0, 3),
    2: (3, 0.0, 3),
    3: (4 + 2.5, 0.0, 6),  # a life is lost with the second step
    4: (5, 0.0, 6),
    5: (6 + 3.5, 0.25, 8),  # truncated: bootstraps from the final observation
    6: (7, 0.5, 8),
    7: (8 + 4.5, 0.25, 11),  # the head of a running episode
    8: (9, 0.5, 11),
}


@pytest.mark.parametrize("rewards", ["float32", "float64"])
def test_an_n_step_return_ends_where_its_episode_does_and_says_how_to_bootstrap(rewards):
    batch = gathered(IDS, rows=Rows(SCALARS, rewards), stack=None, n_step=3, gamma=0.5)
    assert batch.reward.dtype == batch.discount.dtype == np.dtype(rewards)
    assert batch.reward.tolist() == [RETURNS[row][0] for row in IDS]
    assert batch.discount.tolist() == [RETURNS[row][1] for row in IDS]
    assert batch.next_observation.tolist() == [OBSERVATIONS[RETURNS[row][2]] for row in IDS]
    assert batch.non_terminal.tolist() == [RETURNS[row][1] > 0 for row in IDS]
    assert batch.observation.tolist() == [OBSERVATIONS[BEFORE[row]] for row in IDS]
    assert batch.action.tolist() == [ACTIONS[row] for row in IDS]


@pytest.mark.parametrize("rewards", ["float32", "float64"])
def test_each_reward_is_clipped_before_it_goes_into_a_return(rewards):
    rows = Rows(SCALARS, rewards)
    clipped = Rows(SCALARS, rewards)
    clipped.columns["rewards"] = Column(np.clip(REWARDS, 2, 4.5), rewards)
    for n_step in (1, 3):
        settings = {"stack": None, "n_step": n_step, "gamma": 0.5}
        batch = gathered(IDS, rows=rows, clip_reward=(2, 4.5), **settings)
        assert batch.reward.tolist() == gathered(IDS, rows=clipped, **settings).reward.tolist()
        wide = gathered(IDS, rows=rows, clip_reward=[-np.inf, 1e300], **settings)
        assert wide.reward.tolist() == gathered(IDS, rows=rows, **settings).reward.tolist()
    assert rows.columns["rewards"].rows.tolist() == REWARDS  # as they were stored


def test_a_return_of_one_step_is_the_reward():
    for n_step in (1, 2):
        batch = gathered([2, 4, 6, 8], stack=None, n_step=n_step, gamma=0.5)
        assert batch.reward.tolist() == [3, 5, 7, 9]
        assert batch.discount.tolist() == [0, 0, 0.5, 0.5]
        assert batch.non_terminal.tolist() == [False, False, True, True]
        assert batch.next_observation.tolist() == [13, 22, 24, 32]


def test_a_window_longer_than_the_episode_is_as_long_as_the_episode():
    batch = gathered([5, 7], stack=2, n_step=1000, gamma=0.5)
    assert batch.reward.tolist() == [9.5, 12.5]
    assert batch.discount.tolist() == [0.25, 0.25]
    assert batch.observation.tolist() == [[21, 22], [30, 30]]
    assert batch.next_observation.tolist() == [[23, 24], [31, 32]]


def test_the_window_is_full_where_nothing_ends():
    batch = gathered([5, 0], stack=None, n_step=2, gamma=0.9)
    assert batch.reward.tolist() == np.float32([6 + 0.9 * 7, 1 + 0.9 * 2]).tolist()
    assert batch.discount.tolist() == np.float32([0.81, 0.81]).tolist()
    assert batch.next_observation.tolist() == [24, 12]


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_the_borders_of_gamma_mean_no_future_and_all_of_it(gamma):
    batch = gathered([0, 5], stack=None, n_step=3, gamma=gamma)
    assert batch.reward.tolist() == ([1, 6] if not gamma else [6, 13])
    assert batch.discount.tolist() == [0, gamma]


def test_returns_are_summed_in_float64_and_rounded_once():
    rows = Rows(SCALARS)
    rows.columns["rewards"] = Column([1e8, 1, -1e8, *[0] * 6], "float32")
    batch = gathered([0], rows=rows, stack=None, n_step=3, gamma=1.0)
    assert batch.reward.tolist() == [1.0]


@pytest.mark.parametrize(
    ("past", "id_", "expected"), [(3, 0, 2.75), (5, 3, 6.5), (7, 6, 7)]
)  # behind a terminal step, a lost life and a truncation
def test_what_lies_past_the_end_of_a_return_is_not_in_it_whatever_it_is(past, id_, expected):
    rows = Rows(SCALARS)
    rewards = np.array(REWARDS, np.float32)
    rewards[past] = np.nan
    rows.columns["rewards"] = Column(rewards, "float32")
    batch = gathered([id_], rows=rows, stack=None, n_step=3, gamma=0.5)
    assert batch.reward.tolist() == [expected]
