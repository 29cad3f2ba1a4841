"""Sums over episodes, kept up to date as an index grows."""

import numpy as np
import pytest

from mmreplay.episode_index import RowIndex
from mmreplay.errors import EmptyBufferError
from mmreplay.sampling.episode_sums import _places
from mmreplay.sampling.windows import Windows, WindowSampler
from tests.support.oracle.naive_windows import WINDOWS, naive_starts


@pytest.mark.parametrize("capacity", [None, 40, 3])
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_windows_of_an_index_that_grows_are_those_of_a_new_one(lanes, capacity):
    random = np.random.default_rng(lanes)
    index = RowIndex(lanes)
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
    index = RowIndex(1)
    index.load(0, 0, 0, np.empty(0, np.int64), 50)
    sampler = WindowSampler(Windows(2))
    for episode in range(1000):
        index.extend(0, 0, 4 * (episode + 1), np.array([4 * episode]))
        sampler.draw(index, np.array([0.5])) if episode else None
    assert len(sampler._sums._ended[0].sums) < 500


def test_a_sampler_takes_another_index_for_another():
    sampler = WindowSampler(Windows(2))
    for head in (5, 9, 5):
        index = RowIndex(1)
        index.load(0, 0, head, np.array([0]), None)
        assert sampler.every(index).tolist() == list(range(head - 2))


@pytest.mark.parametrize("size", [1, 2, 300, 65_535, 65_536, 65_537, 65_792, 100_000])
def test_few_and_many_bounds_are_searched_to_the_same_end(size):
    random = np.random.default_rng(size)
    bounds = np.append(0, random.integers(0, 3, size).cumsum())  # some count nothing
    bounds[-1] += 1
    sought = random.integers(0, bounds[-1], 2_000)
    sought[:2] = 0, bounds[-1] - 1
    assert _places(bounds, sought).tolist() == (bounds.searchsorted(sought, "right") - 1).tolist()
