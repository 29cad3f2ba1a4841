"""Flat transitions as runs: compared with a loop over single rows that keeps everything."""

import numpy as np
import pytest

from mmreplay.exchange.losses import Losses
from mmreplay.exchange.transitions import Table, to_steps


def table(observations, ends, terminal, after=None, final=None):
    n = len(observations)
    given = np.array(observations, np.float32)
    return Table(
        {"frame": given},
        np.arange(n),
        given.astype(np.float64) / 2,
        np.array(terminal, bool),
        np.array(ends, bool),
        {"x": given * 3},
        None if after is None else {"frame": np.array(after, np.float32)},
        None if final is None else {"frame": np.array(final, np.float32)},
    )


def cut(whole, sizes):
    """The table in blocks of these sizes; final observations go with the rows that end."""
    start, n_ends = 0, 0
    for size in sizes:
        part = slice(start, start + size)
        n = int(whole.ends[part].sum())
        yield Table(
            {"frame": whole.observation["frame"][part]},
            whole.action[part],
            whole.reward[part],
            whole.terminal[part],
            whole.ends[part],
            {"x": whole.extras["x"][part]},
            whole.next_observation and {"frame": whole.next_observation["frame"][part]},
            whole.final and {"frame": whole.final["frame"][n_ends : n_ends + n]},
        )
        start, n_ends = start + size, n_ends + n


def episodes(runs):
    """(observations, rewards, terminal) of each episode; one that nobody ends is there as well."""
    out = []
    for run in runs:
        assert len(run.observation["frame"]) == len(run) + 1
        if run.begins:
            out.append([[run.observation["frame"][0].item()], [], [], False])
        one = out[-1]
        assert not one[3]  # nothing comes after an end
        assert one[0][-1] == run.observation["frame"][0]
        one[0] += run.observation["frame"][1:].tolist()
        one[1] += run.reward.tolist()
        one[2] += run.terminal.tolist()
        one[3] = run.ends
        assert np.array_equal(run.extras["x"], run.reward * 6, equal_nan=True)
    return out


# Six rows: an episode of three that terminates, one of two that is cut off, one that goes on.
OBSERVED = [1, 2, 3, 11, 12, 21]
ENDS = [0, 0, 1, 0, 1, 0]
TERMINAL = [0, 0, 1, 0, 0, 0]
SIZES = [[6], [1] * 6, [2, 2, 2], [3, 3], [4, 2], [5, 1], [1, 5]]


@pytest.mark.parametrize("sizes", SIZES)
def test_final_observations_of_the_source_are_kept(sizes):
    losses = Losses()
    whole = table(OBSERVED, ENDS, TERMINAL, final=[4, 13])
    found = episodes(to_steps(cut(whole, sizes), "repeat", losses))
    assert found == [
        [[1, 2, 3, 4], [0.5, 1, 1.5], [False, False, True], True],
        [[11, 12, 13], [5.5, 6], [False, False], True],
        [[21, 21], [10.5], [False], True],
    ]
    assert [one.what for one in losses.all()] == [
        "an unfinished episode at the end of the source: truncated",
        (
            "final observations that the source does not have: the last observation of the episode "
            "is repeated"
        ),
    ]


@pytest.mark.parametrize("sizes", SIZES)
def test_without_final_observations_the_last_one_stands_in(sizes):
    losses = Losses()
    found = episodes(to_steps(cut(table(OBSERVED, ENDS, TERMINAL), sizes), "repeat", losses))
    assert [one[0] for one in found] == [[1, 2, 3, 3], [11, 12, 12], [21, 21]]
    assert losses.all()[-1].count + losses.all()[0].count == 4


@pytest.mark.parametrize("sizes", SIZES)
def test_last_steps_of_truncated_episodes_can_be_left_out(sizes):
    losses = Losses()
    found = episodes(to_steps(cut(table(OBSERVED, ENDS, TERMINAL), sizes), "drop", losses))
    assert [(one[0], one[1]) for one in found] == [
        ([1, 2, 3, 3], [0.5, 1, 1.5]),  # after a terminal step no observation counts
        ([11, 12], [5.5]),
    ]
    counts = {one.what[:10]: one.count for one in losses.all()}
    assert counts == {"final obse": 1, "last steps": 2, "an unfinis": 1}


@pytest.mark.parametrize("sizes", SIZES)
def test_next_observations_are_followed(sizes):
    losses = Losses()
    whole = table(OBSERVED, ENDS, TERMINAL, after=[2, 3, 4, 12, 13, 22])
    found = episodes(to_steps(cut(whole, sizes), "repeat", losses))
    assert [one[0] for one in found] == [[1, 2, 3, 4], [11, 12, 13], [21, 22]]
    assert losses.all() == ()


@pytest.mark.parametrize("sizes", SIZES)
def test_an_observation_that_does_not_go_on_begins_an_episode(sizes):
    losses = Losses()
    whole = table(OBSERVED, [0] * 6, [0] * 6, after=[2, 3, 4, 12, 13, 22])
    found = episodes(to_steps(cut(whole, sizes), "repeat", losses))
    assert [one[0] for one in found] == [[1, 2, 3, 4], [11, 12, 13], [21, 22]]
    assert [one.count for one in losses.all()] == [2]


@pytest.mark.parametrize("sizes", SIZES)
def test_a_lost_life_ends_no_episode(sizes):
    whole = table(OBSERVED, [0] * 5 + [1], [0, 1, 0, 0, 0, 1])
    (found,) = episodes(to_steps(cut(whole, sizes), "repeat", Losses()))
    assert found[2] == [False, True, False, False, False, True]


def test_nan_goes_on_as_itself():
    whole = table([1, np.nan], [0, 0], [0, 0], after=[np.nan, 2])
    assert len(episodes(to_steps([whole], "repeat", Losses()))) == 1
