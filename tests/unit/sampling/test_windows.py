"""Windows of steps: which there are, and that each is drawn alike."""

import numpy as np
import pytest

from mmreplay.episode_index import Index
from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.windows import PortionSampler, Windows, WindowSampler
from tests.support.even_draws import even_draws


def steps_of_episodes(index):
    """Ids of the steps of each episode."""
    ids = index.ids()
    return np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1) if ids.size else []


def naive_starts(index, windows):
    """Ids of the first steps after the burn-in, by trying every step of every episode."""
    out = []
    for steps in steps_of_episodes(index):
        found = set()
        for offset in range(0, len(steps), windows.stride):
            if windows.boundary == "pad":
                found.add(int(steps[offset]))
            elif offset + windows.steps <= len(steps):
                found.add(int(steps[offset + windows.burn_in]))
        if windows.boundary == "shift":
            found.add(int(steps[max(len(steps) - windows.length, 0)]))
        out += sorted(found)
    return out


WINDOWS = [
    Windows(length, burn_in, boundary, stride)
    for length, burn_in in ((1, 0), (3, 0), (4, 2), (10, 1), (1, 5))
    for boundary in ("drop", "pad", "shift")
    for stride in (1, 2, 5)
]


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_every_window_of_an_index_is_found_once_and_no_other(index, windows):
    assert WindowSampler(windows).every(index).tolist() == naive_starts(index, windows)


@pytest.mark.parametrize("capacity", [None, 40, 3])
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_windows_of_an_index_that_grows_are_those_of_a_new_one(lanes, capacity):
    random = np.random.default_rng(lanes)
    index = Index(lanes)
    for lane in range(lanes):
        index.load(lane, 0, 0, np.empty(0, np.int64), capacity)
    samplers = {one: WindowSampler(one) for one in WINDOWS[::7]}
    heads = [0] * lanes
    for turn in range(100):
        lane = int(random.integers(lanes))
        grown = int(random.integers(1, 9))
        starts = heads[lane] + np.flatnonzero(random.random(grown) < 0.2)
        if not heads[lane]:
            starts = np.unique(np.append(0, starts))
        heads[lane] += grown
        index.extend(lane, 0, heads[lane], starts)
        if turn % 7 and turn < 90:  # most changes are not seen one by one
            continue
        for windows, sampler in samplers.items():
            expected = naive_starts(index, windows)
            if not expected:
                with pytest.raises(EmptyBufferError):
                    sampler.every(index)
                continue
            assert sampler.every(index).tolist() == expected, windows
            draws = (np.arange(len(expected)) + 0.5) / len(expected)
            assert sampler.draw(index, draws).tolist() == expected


def test_episodes_that_can_no_longer_be_sampled_are_not_kept():
    index = Index(1)
    index.load(0, 0, 0, np.empty(0, np.int64), 50)
    sampler = WindowSampler(Windows(2))
    for episode in range(1000):
        index.extend(0, 0, 4 * (episode + 1), np.array([4 * episode]))
        sampler.draw(index, np.array([0.5])) if episode else None
    assert len(sampler._sums._ended[0].sums) < 500


def test_a_sampler_takes_another_index_for_another():
    sampler = WindowSampler(Windows(2))
    for head in (5, 9, 5):
        index = Index(1)
        index.load(0, 0, head, np.array([0]), None)
        assert sampler.every(index).tolist() == list(range(head - 2))


def test_where_no_window_fits_the_longest_episode_is_named(index):
    with pytest.raises(EmptyBufferError, match=r"the 25 steps \(5 of burn-in and 20\).* has 20 "):
        WindowSampler(Windows(20, 5)).draw(index, np.array([0.5]))
    with pytest.raises(EmptyBufferError, match=r"no whole episode has the 21 steps.* has 20 "):
        PortionSampler(Windows(21)).draw(index, np.zeros((2, 1)))
    for sampler in (WindowSampler(Windows(2)), WindowSampler(Windows(2, 0, "pad"))):
        with pytest.raises(EmptyBufferError, match="there is no episode of a step yet"):
            sampler.draw(Index(2), np.array([0.5]))


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"length": 0}, "length: expected a whole number, 1 or more; found 0"),
        ({"length": 2.0}, "length"),
        ({"length": True}, "length"),
        ({"length": None}, "length"),
        ({"burn_in": -1}, "burn_in: expected a whole number, 0 or more"),
        ({"stride": 0}, "stride"),
        ({"boundary": "keep"}, "boundary: expected 'drop', 'pad' or 'shift', found 'keep'"),
        ({"boundary": None}, "boundary"),
    ],
)
def test_a_window_out_of_its_range_is_refused(wrong, match):
    with pytest.raises(SchemaError, match=match):
        Windows(**{"length": 3} | wrong)


def test_portions_are_windows_of_whole_episodes(index, whole_episodes):
    assert index.window(1) == (0, 3, 30)  # the second lane's episode of 8 steps was cut into
    # Of 52 steps in episodes of 13 or more, each stands for its episode.
    draws = even_draws(52)
    drawn = PortionSampler(Windows(13)).draw(index, np.stack((draws, np.zeros(52))))
    first, counts = np.unique(drawn, return_counts=True)
    assert list(zip(first.tolist(), counts.tolist(), strict=True)) == whole_episodes[1:]
    newest = PortionSampler(Windows(13)).draw(index, np.stack((draws, np.full(52, 1 - 1e-9))))
    assert set(newest.tolist()) == {start + steps - 13 for start, steps in whole_episodes[1:]}
