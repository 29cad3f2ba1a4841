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


# Six rows: an episode of three that terminates, one of two that is cut off, one of one row.
OBSERVED = [1, 2, 3, 11, 12, 21]
ENDS = [0, 0, 1, 0, 1, 1]
TERMINAL = [0, 0, 1, 0, 0, 0]
SIZES = [[6], [1] * 6, [2, 2, 2], [3, 3], [4, 2], [5, 1], [1, 5]]
AFTER = {"after": [2, 3, 4, 12, 13, 22]}
WHOLE = [[1, 2, 3, 4], [11, 12, 13], [21, 22]]


@pytest.mark.parametrize(
    ("given", "missing", "expected", "losses"),
    [
        ((ENDS, TERMINAL, {}), "repeat", [[1, 2, 3, 3], [11, 12, 12], [21, 21]], {"final obse": 3}),
        # After a terminal step no observation counts.
        (
            (ENDS, TERMINAL, {}),
            "drop",
            [[1, 2, 3, 3], [11, 12]],
            {"final obse": 1, "last steps": 2},
        ),
        (
            (ENDS, TERMINAL, {"final": [4, 13]}),
            "repeat",
            [[1, 2, 3, 4], [11, 12, 13], [21, 21]],
            {"final obse": 1},
        ),
        ((ENDS, TERMINAL, AFTER), "repeat", WHOLE, {}),
        (([0] * 5 + [1], [0] * 6, AFTER), "repeat", WHOLE, {"observatio": 2}),
    ],
    ids=["repeated", "dropped", "final", "next", "broken"],
)
def test_observations_after_the_last_steps(given, missing, expected, losses):
    ends, terminal, more = given
    for sizes in SIZES:
        found_losses = Losses()
        whole = table(OBSERVED, ends, terminal, **more)
        found = episodes(to_steps(cut(whole, sizes), missing, found_losses))
        assert [one[0] for one in found] == expected
        counts = {one.what[:10]: one.count for one in found_losses.all()}
        assert counts == losses


def test_a_lost_life_ends_no_episode():
    for sizes in SIZES:
        whole = table(OBSERVED, [0] * 5 + [1], [0, 1, 0, 0, 0, 1])
        (found,) = episodes(to_steps(cut(whole, sizes), "repeat", Losses()))
        assert found[1:] == [
            [0.5, 1, 1.5, 5.5, 6, 10.5],
            [False, True, False, False, False, True],
            True,
        ]


def test_nan_goes_on_as_itself():
    whole = table([1, np.nan], [0, 1], [0, 0], after=[np.nan, 2])
    assert sum(run.begins for run in to_steps([whole], "repeat", Losses())) == 1
