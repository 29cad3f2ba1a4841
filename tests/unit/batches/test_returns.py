"""n-step returns, worked out by hand."""

import numpy as np
import pytest

from tests.support.oracle.handmade_rows import (
    IDS,
    REWARDS,
    SCALARS,
    Column,
    Rows,
    gathered,
)


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


def test_returns_are_summed_in_float64_and_rounded_once():
    rows = Rows(SCALARS)
    rows.columns["rewards"] = Column([1e8, 1, -1e8, *[0] * 6], "float32")
    batch = gathered([0], rows=rows, stack=None, n_step=3, gamma=1.0)
    assert batch.reward.tolist() == [1.0]
