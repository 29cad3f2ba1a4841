"""Windows of steps: which there are, and that each is drawn alike."""

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.draws import PortionSampler, TrajectorySampler, Windows, WindowSampler
from tests.support.even_draws import even_draws
from tests.support.lane_history import History, loaded


def test_where_no_window_or_episode_fits_that_is_said(index):
    with pytest.raises(EmptyBufferError, match=r"has the 25 steps \(with 5 of burn-in\)"):
        WindowSampler(Windows(20, 5)).draw(index, np.array([0.5]))
    with pytest.raises(EmptyBufferError, match=r"no whole episode has the 21 steps"):
        PortionSampler(Windows(21)).draw(index, np.zeros((2, 1)))
    for sampler in (WindowSampler(Windows(2)), WindowSampler(Windows(2, 0, "pad"))):
        with pytest.raises(EmptyBufferError, match="there is no transition yet"):
            sampler.draw(loaded([History(1, 0), History(1, 0)]), np.array([0.5]))
    with pytest.raises(EmptyBufferError, match="there is no whole episode"):
        TrajectorySampler().draw(loaded([History(1, 0)]), np.array([0.5]))


def test_trajectories_are_whole_episodes(index, whole_episodes):
    assert [steps for _, steps in whole_episodes] == [4, 13, 20, 19]
    sampler, whole = TrajectorySampler(), [first for first, _ in whole_episodes]
    assert sampler.draw(index, even_draws(4)).tolist() == whole
    assert sorted(sampler.draw_distinct(index, 4, 3).tolist()) == whole
    with pytest.raises(SchemaError, match="at most the 4 whole episodes there are"):
        sampler.draw_distinct(index, 5, 3)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"length": 0}, "length: expected a whole number, 1 to 1,048,576; found 0"),
        ({"length": 2.0}, "length"),
        ({"burn_in": -1}, "burn_in: expected a whole number, 0 to 1,048,576"),
        ({"stride": 0}, "stride"),
        (
            {"boundary": "keep"},
            "boundary: expected 'drop', 'pad', 'shift' or 'cross', found 'keep'",
        ),
    ],
)
def test_a_window_out_of_its_range_is_refused(wrong, match):
    with pytest.raises(SchemaError, match=match):
        Windows(**{"length": 3} | wrong)
