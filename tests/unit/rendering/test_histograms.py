"""Counts in blocks are those of all values at once."""

import numpy as np
import pytest

import mmreplay
from mmreplay.rendering import histograms
from mmreplay.rendering.histograms import (
    Tally,
    blocks_of,
    drawable,
    shared_edges,
    shared_values,
    shares_in_bins,
    shares_of_values,
)


def tally_of(*blocks):
    tally = Tally()
    for block in blocks:
        tally.add(np.array(block))
    return tally


def test_few_values_are_counted_each():
    tally = tally_of([1.0, 0.0, 1.0], [], [[2.0, np.nan], [1.0, np.inf]])
    assert tally.values.tolist() == [0, 1, 2]
    assert tally.counts.tolist() == [1, 3, 1]
    assert (tally.low, tally.high) == (0, 2)


def test_many_values_leave_a_range():
    tally = tally_of(range(40), range(30, 90))
    assert tally.values is tally.counts is None
    assert (tally.low, tally.high) == (0, 89)


def test_values_of_several():
    a, b, many = tally_of([0, 2]), tally_of([1, 2, 2]), tally_of(range(99))
    values = shared_values([a, b], 3)
    assert values.tolist() == [0, 1, 2]
    assert shared_values([a, b], 2) is None
    assert shared_values([a, many], 99) is None
    assert shares_of_values(a, values).tolist() == [0.5, 0, 0.5]
    assert shares_of_values(b, values).tolist() == [0, 1 / 3, 2 / 3]
    assert shares_of_values(tally_of(), values).tolist() == [0, 0, 0]


def test_bins_are_those_of_numpy():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=500), rng.normal(2, 3, 700)
    edges = shared_edges([tally_of(one), tally_of(two), tally_of()])
    assert (edges[0], edges[-1]) == (min(one.min(), two.min()), max(one.max(), two.max()))
    for values in (one, two):
        found = shares_in_bins([values[:100], values[100:]], edges)
        assert np.allclose(found, np.histogram(values, edges)[0] / len(values))


def test_values_without_a_place_on_an_axis_are_left_out():
    values = np.array([1, np.nan, np.inf, -np.inf, 1e305, -1e305, 2])
    assert tally_of(values).values.tolist() == drawable(values).tolist() == [1, 2]
    assert shares_in_bins([values], np.array([1.0, 1.5, 2])).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("lanes", [None, 3])
def test_blocks_are_all_transitions(make, story, monkeypatch, lanes):
    monkeypatch.setattr(histograms, "_BLOCK", 10)
    writer = make(**({"n_lanes": lanes} if lanes else {}))
    story.play_every_end(writer)
    told = []
    with mmreplay.open(writer.path) as store:
        found = np.concatenate(list(blocks_of(store, "rewards", told.append)))
        assert np.array_equal(found, store.transitions(store.ids, stack=None).reward)
        assert sum(told) == len(store) == len(found)


def test_blocks_of_a_store_that_evicts_meanwhile(make, story, monkeypatch):
    monkeypatch.setattr(histograms, "_BLOCK", 10)
    writer = make(capacity=30)
    story.play(writer, 60, "terminated")
    with mmreplay.open(writer.path) as store:
        blocks = blocks_of(store, "rewards", lambda n: None)
        next(blocks)
        story.play(writer, 60, "terminated")
        assert sum(map(len, blocks)) <= 20
