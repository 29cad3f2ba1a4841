"""Blocks: which ids lie together."""

import numpy as np

from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.epoch import Blocks

LANE = 1 << LANE_SHIFT


def test_blocks_of_environments_lie_side_by_side():
    blocks = Blocks(np.array([2]), np.array([3]))
    # Ticks 0 to 3 of three environments.
    assert blocks.keys(np.arange(12)).tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]


def test_members_are_the_ids_that_a_block_may_have():
    blocks = Blocks(np.array([2, 4]), np.array([3, 1]))
    members = blocks.members(np.array([4, LANE + 1]))
    assert members.tolist() == [[7, 10, -1, -1], [LANE + 4, LANE + 5, LANE + 6, LANE + 7]]
    ids = np.append(np.arange(60), np.arange(60) + LANE)
    keys = blocks.keys(ids)
    assert (blocks.members(keys) == ids[:, None]).any(1).all()
    assert blocks.rows_of(keys).tolist() == [2] * 60 + [4] * 60
