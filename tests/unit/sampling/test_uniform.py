"""Draws of transitions: uniform, distinct, and in groups; all equally likely."""

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError, SchemaError
from mmreplay.sampling.draws import distinct_ids, grouped_ids, uniform_ids
from mmreplay.sampling.epoch import Blocks
from tests.support.chance import goodness
from tests.support.lane_history import History, loaded


def test_more_than_there_are_is_refused(index):
    count = index.n_transitions
    with pytest.raises(SchemaError, match=f"at most the {count} transitions there are"):
        distinct_ids(index, count + 1, 0)
    for draw in (
        lambda index: uniform_ids(index, np.array([0.5])),
        lambda index: distinct_ids(index, 1, 0),
        lambda index: grouped_ids(index, BLOCKS, 2, 2, 0),
    ):
        with pytest.raises(EmptyBufferError, match="a transition needs a reset and a step"):
            draw(loaded([History(1, 0), History(1, 0)]))


BLOCKS = Blocks(np.array([4, 5]), np.array([1, 1]))


@pytest.mark.parametrize("group", [1, 3, 8])
def test_each_transition_comes_equally_often_whatever_its_block_has(index, group):
    ids = index.ids()
    sizes = np.unique(BLOCKS.keys(ids), return_counts=True)[1]
    assert len(set(sizes.tolist())) > 2  # or weights would not be needed
    drawn = grouped_ids(index, BLOCKS, 30_000, group, 0).reshape(-1, group)
    # Groups are independent of each other, and so are the n-th ones of all groups.
    for each in drawn.T:
        found, counts = np.unique(each, return_counts=True)
        assert np.array_equal(found, ids)
        assert abs(goodness(counts, each.size / ids.size)) < 5


def test_a_group_is_of_one_block_and_has_each_transition_once_if_it_can(index):
    drawn = grouped_ids(index, BLOCKS, 500, 3, 7).reshape(-1, 3)
    assert not index.invalid(drawn.reshape(-1)).any()
    sizes = dict(zip(*np.unique(BLOCKS.keys(index.ids()), return_counts=True), strict=True))
    for row in drawn:
        keys = BLOCKS.keys(row)
        assert len(set(keys.tolist())) == 1
        assert len(set(row.tolist())) == min(3, sizes[keys[0]])
