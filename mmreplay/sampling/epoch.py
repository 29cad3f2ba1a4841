"""Epochs: every transition once, divided over the ranks of a distributed run.

Invariant: over all ranks, an epoch holds each id exactly once; the order depends on the ids, the
seed and the number of the epoch alone, so that all ranks agree on it.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from mmreplay.ids import Ids, distinct
from mmreplay.sampling.blocks import Blocks


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


def block_shuffled_ids(ids: Ids, shares: Shares, blocks: Blocks, pool_rows: int) -> tuple[Ids, Ids]:
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

    Returns:
        the ids, (n / world_size,), and where among them pools begin, ascending from 0.
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
    pools = _pools(rows[mine], pool_rows)
    for low, high in itertools.pairwise([*pools.tolist(), mine.size]):
        part = out[bounds[low] : bounds[high]]
        part[:] = part[_spread(np.diff(bounds[low : high + 1]), random)]
    return out, bounds[pools]


def _spread(sizes: Ids, random: np.random.Generator) -> Ids:
    """An order of the places of blocks of these sizes, which lie one after the other."""
    numbers = np.repeat(np.arange(sizes.size), sizes)
    # The blocks keep their order, and their own places come in any.
    places = (numbers + random.random(numbers.size)).argsort(kind="stable")
    within = np.arange(numbers.size) - np.repeat(sizes.cumsum() - sizes, sizes)
    when = (within + random.random(numbers.size)) / sizes[numbers]
    out: Ids = places[when.argsort(kind="stable")]
    return out


def _by_block(ids: Ids, blocks: Blocks) -> tuple[Ids, Ids, Ids, Ids]:
    """Ids block by block; of each block where it begins, its size, and the rows it may have."""
    keys = blocks.keys(ids)
    if (keys[1:] < keys[:-1]).any():
        order = keys.argsort(kind="stable")
        ids, keys = ids[order], keys[order]
    is_first = np.ones(ids.size, np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    begins = is_first.nonzero()[0]
    return ids, begins, np.diff(begins, append=ids.size), blocks.rows_of(keys[begins])


def _joined(ids: Ids, begins: Ids, bounds: Ids) -> Ids:
    """The ids of blocks, one block after the other, each of as many as its bounds tell."""
    sizes = np.diff(bounds)
    places = np.repeat(begins - (bounds[:-1] - bounds[0]), sizes)
    places += np.arange(places.size)
    out: Ids = ids[places]
    return out


def _pools(rows: Ids, pool_rows: int) -> Ids:
    """The first block of each pool: as many pools as needed, all of about as many rows."""
    before = np.append(0, rows.cumsum())
    total = int(before[-1])
    n_pools = max(-(-total // pool_rows), 1)
    first = before.searchsorted(np.arange(n_pools) * total // n_pools, "left")
    return distinct(np.minimum(first, max(rows.size - 1, 0)))
