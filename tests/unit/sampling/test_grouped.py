"""Groups: several transitions of a block each, all transitions equally likely."""

import numpy as np
import pytest

from mmreplay.errors import EmptyBufferError
from mmreplay.sampling.blocks import Blocks
from mmreplay.sampling.grouped import grouped_ids
from tests.support.chance import goodness
from tests.support.lane_history import History, loaded

BLOCKS = Blocks(np.array([4, 5]), np.array([1, 1]))


@pytest.mark.parametrize("group", [1, 2, 3, 5, 8])
def test_each_transition_comes_equally_often_whatever_its_block_has(index, group):
    ids = index.ids()
    sizes = np.unique(BLOCKS.keys(ids), return_counts=True)[1]
    assert len(set(sizes.tolist())) > 2  # or weights would not be needed
    drawn = grouped_ids(index, BLOCKS, 60_000, group, 0).reshape(-1, group)
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


def test_the_same_seed_draws_the_same_groups(index):
    one, two, other = (grouped_ids(index, BLOCKS, 20, 4, seed).tolist() for seed in (1, 1, 2))
    assert one == two != other


def test_there_is_no_group_of_nothing():
    with pytest.raises(EmptyBufferError):
        grouped_ids(loaded([History(1, 0)]), BLOCKS, 2, 2, 0)
