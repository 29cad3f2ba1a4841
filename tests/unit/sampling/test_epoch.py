"""Epochs: every transition once, over all ranks; block by block, few of them at a time."""

import numpy as np
import pytest

from mmreplay.episode_index import index as index_module
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling import epoch
from mmreplay.sampling.epoch import Blocks, Shares, block_shuffled_ids, ordered_ids, shuffled_ids
from tests.support.chance import goodness


def blocks_of(rows, width=1, lanes=2):
    return Blocks(np.full(lanes, rows), np.full(lanes, width))


def shares(rank=0, world_size=1, seed=3, epoch=5):
    return Shares(seed, epoch, rank, world_size)


def pooled(ids, share, blocks, pool_rows):
    """The ids in their order, and where pools begin."""
    found = block_shuffled_ids(ids, share, blocks, pool_rows)
    return found.part(0, len(found)), found.begins


def by_blocks(ids, share, blocks=None, pool_rows=16):
    return pooled(ids, share, blocks or blocks_of(4), pool_rows)[0]


def in_order(ids, share):
    return ordered_ids(ids, share).part(0, ids.size)


def in_any_order(ids, share):
    return shuffled_ids(ids, share).part(0, ids.size)


HOW = {"in order": in_order, "full": in_any_order, "blocks": by_blocks}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 100])
def test_over_all_ranks_an_epoch_holds_each_transition_exactly_once(index, how, world_size):
    parts = [HOW[how](index.ids(), shares(rank, world_size)) for rank in range(world_size)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(np.concatenate(parts).tolist()) == index.ids().tolist()


@pytest.mark.parametrize("how", ["full", "blocks"])
def test_the_order_depends_on_the_seed_and_the_number_of_the_epoch_alone(index, how):
    def order(seed, number):
        return HOW[how](index.ids(), shares(seed=seed, epoch=number)).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, number)) for seed in range(3) for number in range(3)}) == 9


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_pool_holds_whole_blocks_and_no_block_is_in_two(index, world_size, width):
    blocks = blocks_of(4, width)
    for rank in range(world_size):
        ids, begins = pooled(index.ids(), shares(rank, world_size), blocks, 16)
        pools = [set(blocks.keys(part).tolist()) for part in np.split(ids, begins[1:])]
        assert begins[0] == 0
        assert len(pools) >= (2 if world_size < 3 else 1)
        assert sum(map(len, pools)) == len(set.union(*pools))
        assert max(map(len, pools)) <= 16 // 4 + 1


def test_in_one_pool_each_transition_may_come_anywhere():
    ids = np.arange(12)
    counts = np.zeros((12, 12))
    for number in range(300):
        order, begins = pooled(ids, shares(epoch=number), blocks_of(4), 100)
        assert begins.tolist() == [0]
        counts[order, np.arange(12)] += 1
    assert abs(goodness(counts, counts.mean())) < 5


def test_who_gets_what_of_a_block_that_ranks_share_is_drawn():
    counts = np.zeros((3, 4))
    for number in range(300):
        parts = [by_blocks(np.arange(4), shares(rank, 3, epoch=number)) for rank in range(3)]
        assert sorted(np.concatenate(parts).tolist()) == [0, 1, 2, 3]
        for rank, part in enumerate(parts):
            counts[rank, part] += 1
    for row in counts:
        assert abs(goodness(row, row.mean())) < 5


def test_blocks_of_lanes_of_different_lengths_fill_a_pool_by_their_rows():
    blocks = Blocks(np.array([2, 8]), np.array([1, 1]))
    ids = np.append(np.arange(40), np.arange(160) + (1 << LANE_SHIFT))
    order, begins = pooled(ids, shares(), blocks, 50)
    assert sorted(order.tolist()) == ids.tolist()
    sizes = np.diff(begins, append=ids.size)
    assert len(sizes) == 4
    assert sizes.max() <= 50 + 8


@pytest.mark.parametrize("start", [0, 1, 39, 40, 41, 95, 159])
def test_the_order_is_the_same_wherever_one_begins_and_how_much_is_taken(start):
    given = np.arange(160), shares(), blocks_of(8), 40
    whole, begins = pooled(*given)
    assert begins.tolist() == [0, 40, 80, 120]
    found, parts = block_shuffled_ids(*given), []
    for begin in range(start, 160, 17):
        parts.append(found.part(begin, min(begin + 17, 160)))
    assert np.concatenate(parts).tolist() == whole[start:].tolist()


def test_ids_are_taken_piece_by_piece(index, monkeypatch):
    orders = []
    for piece in (1 << 20, 3):
        monkeypatch.setattr(epoch, "_PIECE", piece)
        monkeypatch.setattr(epoch, "_BLOCKS", piece)
        monkeypatch.setattr(index_module, "_PIECE", piece)
        orders.append(
            [by_blocks(index.ids(), shares(), blocks_of(4, width)).tolist() for width in (1, 3)]
        )
    assert orders[0] == orders[1]


@pytest.mark.parametrize("pool_rows", [40, 1000])
def test_the_ids_of_a_block_are_spread_over_their_pool(pool_rows):
    blocks = blocks_of(8)
    ids, begins = pooled(np.arange(160), shares(), blocks, pool_rows)
    for pool in np.split(ids, begins[1:]):
        keys = blocks.keys(pool)
        for key in set(keys.tolist()):
            places = (keys == key).nonzero()[0]
            # One in each eighth of the pool, but for where one ends.
            assert np.abs(places * 8 // pool.size - np.arange(8)).max() <= 1
