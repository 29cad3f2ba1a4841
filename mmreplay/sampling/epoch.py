"""Epochs: every transition once, divided over the ranks of a distributed run.

Invariant: over all ranks, an epoch holds each id exactly once; the order depends on the ids, the
seed and the number of the epoch alone, so that all ranks agree on it.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mmreplay.ids import Ids, distinct
from mmreplay.sampling.blocks import Blocks

_DRAWS = 2  # numbers that an id of a pool takes
_PIECE, _BLOCKS = 1 << 20, 1 << 13  # ids and blocks at a time


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """An epoch's number, the seed of its order, and which share of it is this rank's."""

    seed: int
    epoch: int
    rank: int
    world_size: int


def ordered_ids(ids: Ids, shares: Shares) -> Ids:
    """One rank's share of all ids, in their order: every `world_size`-th."""
    return ids[shares.rank :: shares.world_size]


def shuffled_ids(ids: Ids, shares: Shares) -> Ids:
    """One rank's share of all ids, each of which may come anywhere in the epoch."""
    return ordered_ids(np.random.default_rng([shares.seed, shares.epoch]).permutation(ids), shares)


def block_shuffled_ids(ids: Ids, shares: Shares, blocks: Blocks, pool_rows: int) -> PooledIds:
    """One rank's share of all ids, so that its blocks are read once, with few rows in memory.

    The blocks come in random order. The first of them, of `pool_rows` rows together, are the first
    pool, and so on. In a pool, each id may come anywhere, but those of one block are spread over
    it: a block of n ids has one in each n-th of the pool. Where a rank's share ends within a block,
    the next one goes on with the rest of it, which is drawn.

    Args:
        ids: (n,) all there are, distinct.
        shares: which of them.
        blocks: how they lie together.
        pool_rows: rows of a pool, 1 or more; its last block may exceed it.
    """
    ids, begins, sizes, rows = _by_block(ids, blocks)
    random = np.random.default_rng([shares.seed, shares.epoch])
    order = random.permutation(sizes.size)
    bounds = np.append(0, sizes[order].cumsum())
    start = ids.size * shares.rank // shares.world_size
    stop = ids.size * (shares.rank + 1) // shares.world_size
    first = int(bounds.searchsorted(start, "right")) - 1
    last = int(bounds.searchsorted(stop, "left"))
    mine, bounds = order[first:last], bounds[first : last + 1]
    out = _joined(ids, begins[mine], bounds)
    for place in {0, mine.size - 1} if mine.size else ():
        low, high = int(bounds[place]), int(bounds[place + 1])
        if low < start or high > stop:  # in the same way by all ranks that share it
            shared = np.random.default_rng([shares.seed, shares.epoch, int(mine[place])])
            shared.shuffle(out[low - bounds[0] : high - bounds[0]])
    out = out[start - bounds[0] :][: stop - start]
    bounds = np.clip(bounds, start, stop) - start
    return PooledIds(out, bounds, _pools(rows[mine], pool_rows), random)


class PooledIds:
    """Ids in the order of their blocks, which are shuffled pool by pool, once they are reached.

    Attributes:
        begins: where pools begin, ascending from 0.
    """

    def __init__(self, ids: Ids, bounds: Ids, pools: Ids, random: np.random.Generator) -> None:
        """Ids (n,), where their blocks begin and end, the first block of each pool, and chance."""
        self._ids, self._bounds, self._random = ids, bounds, random
        self._pools = np.append(pools, bounds.size - 1)
        self._n_shuffled: int | None = None  # pools
        self.begins: Ids = bounds[pools]

    def __len__(self) -> int:
        """Ids."""
        return self._ids.size

    def part(self, start: int, stop: int) -> Ids:
        """Ids [start, stop) in their order; no part begins before another one that was asked for.

        The numbers that earlier pools would take are left out, so that it is the same order
        wherever one begins.
        """
        if self._n_shuffled is None:
            self._n_shuffled = max(int(self.begins.searchsorted(start, "right")) - 1, 0)
            before = int(self.begins[self._n_shuffled]) if self.begins.size else 0
            self._random.bit_generator.advance(_DRAWS * before)  # type: ignore[attr-defined]
        last = int(self.begins.searchsorted(min(stop, len(self)), "left"))
        for number in range(self._n_shuffled, last):
            low, high = self._pools[number : number + 2].tolist()
            pool = self._ids[self._bounds[low] : self._bounds[high]]
            pool[:] = pool[_spread(np.diff(self._bounds[low : high + 1]), self._random)]
        self._n_shuffled = max(last, self._n_shuffled)
        return self._ids[start:stop]


def _spread(sizes: Ids, random: np.random.Generator) -> Ids:
    """An order of the places of blocks of these sizes, which lie one after the other.

    It takes `_DRAWS` numbers for each.
    """
    numbers = np.repeat(np.arange(sizes.size), sizes)
    # The blocks keep their order, and their own places come in any.
    places = (numbers + random.random(numbers.size)).argsort(kind="stable")
    within = np.arange(numbers.size) - np.repeat(sizes.cumsum() - sizes, sizes)
    when = (within + random.random(numbers.size)) / sizes[numbers]
    out: Ids = places[when.argsort(kind="stable")]
    return out


def _by_block(ids: Ids, blocks: Blocks) -> tuple[Ids, Ids, Ids, Ids]:
    """Ids block by block; of each block where it begins, its size, and the rows it may have.

    Piece by piece, as there may be very many ids.
    """
    begins, keys = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    last = -1
    for start in range(0, ids.size, _PIECE):
        here = blocks.keys(ids[start : start + _PIECE])
        steps = np.diff(here, prepend=last)
        if steps.min() < 0:  # blocks lie side by side
            return _by_block(ids[blocks.keys(ids).argsort(kind="stable")], blocks)
        last = here[-1]
        first = steps.nonzero()[0]
        begins.append(first + start)
        keys.append(here[first])
    every = np.concatenate(begins)
    return ids, every, np.diff(every, append=ids.size), blocks.rows_of(np.concatenate(keys))


def _joined(ids: Ids, begins: Ids, bounds: Ids) -> Ids:
    """The ids of blocks, one block after the other, each of as many as its bounds tell."""
    out = np.empty(int(bounds[-1] - bounds[0]), np.int64)
    for first in range(0, begins.size, _BLOCKS):
        low = bounds[first : first + _BLOCKS + 1]
        sizes = np.diff(low)
        places = np.repeat(begins[first : first + _BLOCKS] - (low[:-1] - low[0]), sizes)
        places += np.arange(places.size)
        out[low[0] - bounds[0] : low[-1] - bounds[0]] = ids[places]
    return out


def _pools(rows: Ids, pool_rows: int) -> Ids:
    """The first block of each pool: as many pools as needed, all of about as many rows."""
    before = np.append(0, rows.cumsum())
    total = int(before[-1])
    n_pools = max(-(-total // pool_rows), 1)
    first = before.searchsorted(np.arange(n_pools) * total // n_pools, "left")
    return distinct(np.minimum(first, max(rows.size - 1, 0)))
