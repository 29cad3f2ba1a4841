"""Epochs: every transition once, divided over ranks; and `Blocks`, steps stored together.

Invariant: over all ranks, an epoch holds each id exactly once; the order depends on the ids, the
seed and the number of the epoch alone, so all ranks agree on it. Each id is in one block.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids, distinct

_DRAWS = 2  # random numbers per id of a pool
_PIECE, _BLOCKS = 1 << 20, 1 << 13  # ids and blocks at a time
_ONE_BOUND, _NO_POOL = np.zeros(1, np.int64), np.empty(0, np.int64)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Stretches of steps whose frames are stored, and read, together: how each lane is divided."""

    rows: Ids  # (lanes,) steps of a block
    widths: Ids  # (lanes,) blocks side by side, one per environment; 1 if ids are consecutive

    def keys(self, ids: Ids) -> Ids:
        """The numbers of the blocks of ids, (n,), ascending with the lanes."""
        lanes = ids >> LANE_SHIFT
        rows, widths = self.rows[lanes], self.widths[lanes]
        steps, beside = np.divmod(ids & ROW_MASK, widths)
        out: Ids = (lanes << LANE_SHIFT) + steps // rows * widths + beside
        return out

    def members(self, keys: Ids) -> Ids:
        """The ids that blocks may have, (n, most rows), ascending; -1 in shorter ones."""
        lanes = keys >> LANE_SHIFT
        rows, widths = self.rows[lanes], self.widths[lanes]
        number, beside = np.divmod(keys & ROW_MASK, widths)
        steps = np.arange(rows.max(initial=0))
        firsts = (lanes << LANE_SHIFT) + number * rows * widths + beside
        out: Ids = firsts[:, None] + steps * widths[:, None]
        out[steps >= rows[:, None]] = -1
        return out


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """The seed of an epoch's order, its number, and which share of it is this rank's."""

    seed: int
    epoch: int
    rank: int
    world_size: int


def ordered_ids(ids: Ids, shares: Shares) -> PooledIds:
    """One rank's share of all ids, in their order: every `world_size`-th."""
    return PooledIds(ids[shares.rank :: shares.world_size])


def shuffled_ids(ids: Ids, shares: Shares) -> PooledIds:
    """One rank's share of all ids, each of which may come anywhere in the epoch."""
    return ordered_ids(np.random.default_rng([shares.seed, shares.epoch]).permutation(ids), shares)


def block_shuffled_ids(ids: Ids, shares: Shares, blocks: Blocks, pool_rows: int) -> PooledIds:
    """One rank's share of all distinct `ids` (n,), in an order that reads each block once.

    The blocks come in random order. The first of them, of `pool_rows` rows together (the last block
    may exceed that), are the first pool, and so on. In a pool, each id may come anywhere, but those
    of one block are spread over it: a block of n ids has one in each n-th of the pool. Where a
    rank's share ends within a block, the next rank continues with the rest of it, which is drawn.
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
    for number in {0, mine.size - 1} if mine.size else ():
        low, high = int(bounds[number]), int(bounds[number + 1])
        if low < start or high > stop:  # all ranks that share the block shuffle it alike
            shared = np.random.default_rng([shares.seed, shares.epoch, int(mine[number])])
            shared.shuffle(out[low - bounds[0] : high - bounds[0]])
    out = out[start - bounds[0] :][: stop - start]
    bounds = np.clip(bounds, start, stop) - start
    return PooledIds(out, bounds, _pools(rows[mine], pool_rows), random)


class PooledIds:
    """Ids in the order of their blocks; each pool is shuffled once it is reached."""

    def __init__(
        self,
        ids: Ids,
        bounds: Ids = _ONE_BOUND,
        pools: Ids = _NO_POOL,
        random: np.random.Generator | None = None,
    ) -> None:
        """Ids (n,), the bounds of their blocks, the first block of each pool, and a generator."""
        self._ids, self._random, self._bounds = ids, random, bounds
        self._pools = np.append(pools, bounds.size - 1)
        self._n_shuffled: int | None = None  # pools
        self.begins: Ids = bounds[pools]  # of pools, ascending from 0

    def __len__(self) -> int:
        return self._ids.size

    def part(self, start: int, stop: int) -> Ids:
        """Ids [start, stop) in their order; parts are requested in ascending order of `start`.

        The numbers that earlier pools would take are skipped, so the order is the same wherever
        the first part begins.
        """
        if self._random is None or not self.begins.size:
            return self._ids[start:stop]
        if self._n_shuffled is None:
            self._n_shuffled = int(self.begins.searchsorted(start, "right")) - 1
            before = int(self.begins[self._n_shuffled])
            self._random.bit_generator.advance(_DRAWS * before)  # type: ignore[attr-defined]
        last = int(self.begins.searchsorted(min(stop, len(self)), "left"))
        for number in range(self._n_shuffled, last):
            low, high = self._pools[number : number + 2].tolist()
            pool = self._ids[self._bounds[low] : self._bounds[high]]
            pool[:] = pool[_spread(np.diff(self._bounds[low : high + 1]), self._random)]
        self._n_shuffled = max(last, self._n_shuffled)
        return self._ids[start:stop]


def _spread(sizes: Ids, random: np.random.Generator) -> Ids:
    """A shuffled order of the ids of adjacent blocks of these sizes, from `_DRAWS` numbers each."""
    numbers = np.repeat(np.arange(sizes.size), sizes)
    # Shuffled within each block.
    inside = (numbers + random.random(numbers.size)).argsort(kind="stable")
    within = np.arange(numbers.size) - np.repeat(sizes.cumsum() - sizes, sizes)
    when = (within + random.random(numbers.size)) / sizes[numbers]
    out: Ids = inside[when.argsort(kind="stable")]
    return out


def _by_block(ids: Ids, blocks: Blocks) -> tuple[Ids, Ids, Ids, Ids]:
    """Ids block by block, and where each block begins, its size, and its rows at most."""
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
    every, rows = np.concatenate(begins), blocks.rows[np.concatenate(keys) >> LANE_SHIFT]
    return ids, every, np.diff(every, append=ids.size), rows


def _joined(ids: Ids, begins: Ids, bounds: Ids) -> Ids:
    """The ids of blocks that begin at `begins`, one after the other, with these bounds."""
    out = np.empty(int(bounds[-1] - bounds[0]), np.int64)
    for first in range(0, begins.size, _BLOCKS):
        low = bounds[first : first + _BLOCKS + 1]
        sizes = np.diff(low)
        sources = np.repeat(begins[first : first + _BLOCKS] - (low[:-1] - low[0]), sizes)
        sources += np.arange(sources.size)
        out[low[0] - bounds[0] : low[-1] - bounds[0]] = ids[sources]
    return out


def _pools(rows: Ids, pool_rows: int) -> Ids:
    """The first block of each pool; pools have about the same number of rows."""
    before = np.append(0, rows.cumsum())
    total = int(before[-1])
    n_pools = max(-(-total // pool_rows), 1)
    first = before.searchsorted(np.arange(n_pools) * total // n_pools, "left")
    return distinct(np.minimum(first, max(rows.size - 1, 0)))
