"""Epochs: every transition once, over all ranks."""

import numpy as np
import pytest

from mmreplay.episode_index import RowIndex
from mmreplay.sampling.epoch import epoch_ids


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 100])
def test_over_all_ranks_an_epoch_holds_each_transition_exactly_once(index, shuffle, world_size):
    parts = [
        epoch_ids(index.ids(), seed=3, epoch=5, shuffle=shuffle, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sorted(np.concatenate(parts).tolist()) == index.ids().tolist()


def test_the_order_depends_on_the_seed_and_the_number_of_the_epoch_alone(index):
    def order(seed, epoch, **changes):
        given = {"shuffle": True, "rank": 0, "world_size": 1, **changes}
        return epoch_ids(index.ids(), seed=seed, epoch=epoch, **given).tolist()

    assert order(1, 0) == order(1, 0)
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    whole = order(1, 4)
    assert order(1, 4, rank=1, world_size=3) == whole[1::3]
    assert order(1, 0, shuffle=False) == order(2, 7, shuffle=False) == index.ids().tolist()


def test_an_epoch_of_nothing_is_empty():
    assert (
        epoch_ids(RowIndex(1).ids(), seed=0, epoch=0, shuffle=True, rank=0, world_size=1).tolist()
        == []
    )
