"""Blocks in the order of their keys: which block a key belongs to, and which one holds a rank.

Invariant: of two blocks that stand next to each other in a node, one always holds more than a
quarter of what fits into a block, and of two neighbouring nodes one more than a quarter of what
fits into a node. So there are never more than `most_blocks` blocks, whatever comes and goes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Keys = npt.NDArray[np.complex128]
"""Complex numbers -priority + position * i, which numpy compares by priority, then position."""


def most_blocks(n_items: int, width: int, fanout: int) -> int:
    """The number of blocks that `n_items` items never exceed."""
    # Each pair of neighbours in a node holds more than half a block's items, and one block a node
    # may be left over; likewise for the nodes.
    per_block = 2 / (width // 2 + 1)
    return int((n_items * per_block + 1) / (1 - 2 / (fanout // 2 + 1))) + 1


def widen(array: npt.NDArray[Any], used: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """A copy of the first `used` rows with room for more: until written, addresses, not memory."""
    wide = np.zeros(shape, dtype)
    wide[:used] = array[:used]
    return wide


class Directory:
    """A tree of fixed height: one sorted array of nodes, each node a row of blocks.

    To make room in a row or in the array of nodes costs a short move, so that nothing depends on
    the number of items, but for one binary search and one cumulative sum over the nodes, of which
    there are some 2,000 for 10 million items.

    `counts`, (n_blocks + 1,) int64, are the items in each block. Block 0 is none: it fills the
    rows.
    """

    def __init__(self, width: int, fanout: int) -> None:
        """Without room for any block: `grow` makes some, `load` says which there are.

        `width` items fit into a block, `fanout` blocks into a node.
        """
        self._width = width
        self._fanout = fanout
        self._fill = fanout * 3 // 4  # blocks in a node that was just cut
        self.counts: Ints = np.zeros(1, np.int64)
        self._node: Ints = np.zeros(1, np.int64)  # of each block; 0 is no node
        self._blocks: Ints = np.zeros((1, fanout), np.int64)  # of each node, in order, then 0
        self._lows: Keys = np.zeros((1, fanout), np.complex128)  # no key of a block is below it
        self._n_blocks: Ints = np.zeros(1, np.int64)  # of each node
        self._totals: Ints = np.zeros(1, np.int64)  # items in each node
        self._ahead: Ints = np.zeros(1, np.int64)  # items in the nodes before each, if not _stale
        self._order: Ints = np.zeros(0, np.int64)  # the nodes, by key
        self._order_lows: Keys = np.zeros(0, np.complex128)
        self._reached: Ints = np.zeros(0, np.int64)  # items up to each node of `_order`
        self._stale = True
        self._free_blocks: list[int] = []  # numbers below _next_block that are not in use
        self._free_nodes: list[int] = []
        self._next_block = 1
        self._next_node = 1

    def grow(self, n_blocks: int) -> None:
        """Make room for the blocks up to `n_blocks`."""
        n_nodes = 2 * n_blocks // (self._fanout // 2 + 1) + 1
        n, used = n_blocks + 1, self._next_block
        self.counts = widen(self.counts, used, (n,), np.int64)
        self._node = widen(self._node, used, (n,), np.int64)
        n, used = n_nodes + 1, self._next_node
        self._n_blocks = widen(self._n_blocks, used, (n,), np.int64)
        self._totals = widen(self._totals, used, (n,), np.int64)
        self._ahead = widen(self._ahead, used, (n,), np.int64)
        self._blocks = widen(self._blocks, used, (n, self._fanout), np.int64)
        self._lows = widen(self._lows, used, (n, self._fanout), np.complex128)

    def load(self, counts: Ints, lows: Keys) -> None:
        """Start again with the blocks 1 to len(counts), in this order.

        `lows` are the smallest key of each; that of the first does not matter.
        """
        n = len(counts)
        self._next_block, self._next_node = n + 1, 1
        self.counts[1 : n + 1] = counts
        self._order, self._order_lows = self._cut(np.arange(1, n + 1), lows, [])

    def _cut(self, blocks: Ints, lows: Keys, nodes: list[int]) -> tuple[Ints, Keys]:
        """Divide a row of blocks over `nodes` and as many new ones as it takes."""
        n_nodes = -(-len(blocks) // self._fill)
        while len(nodes) < n_nodes:
            if self._free_nodes:
                nodes.append(self._free_nodes.pop())
            else:
                nodes.append(self._next_node)
                self._next_node += 1
        cuts = [i * len(blocks) // n_nodes for i in range(n_nodes + 1)]
        for node, start, stop in zip(nodes, cuts, cuts[1:], strict=False):
            self._set_row(node, blocks[start:stop], lows[start:stop])
        self._stale = True
        return np.array(nodes, np.int64), lows[cuts[:-1]]

    def _set_row(self, node: int, blocks: Ints, lows: Keys) -> None:
        n = len(blocks)
        self._blocks[node, :n] = blocks
        self._blocks[node, n:] = 0
        self._lows[node, :n] = lows
        self._lows[node, n:] = np.inf
        self._lows[node, 0] = -np.inf  # what is below it, though not below the node, is its own
        self._node[blocks] = node
        self._n_blocks[node] = n
        self._totals[node] = self.counts[blocks].sum()

    # ------------------------------------------------------------ asking it

    def __len__(self) -> int:
        return self._next_block - 1 - len(self._free_blocks)

    @property
    def n_used(self) -> int:
        """One more than the highest number that a block has had."""
        return self._next_block

    def find(self, keys: Keys) -> Ints:
        """The block that each key belongs to: (n,)."""
        node = self._order[self._order_lows[1:].searchsorted(keys, "right")]
        rows = self._lows.take(node, axis=0)
        place = np.count_nonzero(rows <= keys[:, None], axis=1) - 1
        return np.asarray(self._blocks[node, place])

    def before(self, blocks: Ints) -> Ints:
        """How many items the blocks before each of these hold: (n,)."""
        self._sum()
        node = self._node[blocks]
        rows = self._blocks.take(node, axis=0)
        reached = self.counts[rows].cumsum(axis=1)
        place = (rows == blocks[:, None]).argmax(axis=1)
        inside = reached[np.arange(len(blocks)), place] - self.counts[blocks]
        return np.asarray(self._ahead[node] + inside)

    def locate(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Where the items are that have `ranks` items before them: block, items before in it."""
        self._sum()
        node = self._order[self._reached.searchsorted(ranks, "right")]
        inside = ranks - self._ahead[node]
        rows = self._blocks.take(node, axis=0)
        reached = self.counts[rows].cumsum(axis=1)
        at = np.arange(len(ranks)), np.count_nonzero(reached <= inside[:, None], axis=1)
        blocks = rows[at]
        return blocks, inside - (reached[at] - self.counts[blocks])

    def _sum(self) -> None:
        if self._stale:
            totals = self._totals[self._order]
            self._reached = totals.cumsum()
            self._ahead[self._order] = self._reached - totals
            self._stale = False

    def holds(self, block: int) -> bool:
        """Whether there is such a block."""
        return bool(self._node[block])

    def neighbours(self, block: int) -> tuple[int, int]:
        """The blocks before and after it in its node, 0 for none."""
        node = int(self._node[block])
        row = self._blocks[node, : self._n_blocks[node]].tolist()
        place = row.index(block)
        return row[place - 1] if place else 0, row[place + 1] if place + 1 < len(row) else 0

    def sparse(self, blocks: Ints) -> Ints:
        """Those of `blocks` that are empty, or have a neighbour with which they fit in half."""
        blocks = blocks[self.counts[blocks] <= self._width // 2]
        if not blocks.size:
            return blocks
        rows = self._blocks.take(self._node[blocks], axis=0)
        place = (rows == blocks[:, None]).argmax(axis=1)
        which = np.arange(len(blocks))
        left = rows[which, np.maximum(place - 1, 0)]
        right = rows[which, np.minimum(place + 1, self._fanout - 1)]
        own = self.counts[blocks]
        fits = own == 0
        for other in (left, right):
            real = (other != blocks) & (other != 0)
            fits |= real & (own + self.counts[other] <= self._width // 2)
        return np.asarray(blocks[fits])

    # ------------------------------------------------------------ changing it

    def add(self, blocks: Ints, n_items: Ints) -> None:
        """Count more items in each of these blocks, or, below 0, fewer. None may be repeated."""
        self.counts[blocks] += n_items  # new blocks are in node 0, which is none, until attached
        np.add.at(self._totals, self._node[blocks], n_items)
        self._stale = True

    def new_blocks(self, n: int) -> list[int]:
        """The numbers of `n` blocks that are not in use; `attach` puts them in their place."""
        kept = max(len(self._free_blocks) - n, 0)
        numbers = self._free_blocks[kept:]
        del self._free_blocks[kept:]
        n -= len(numbers)
        numbers += range(self._next_block, self._next_block + n)
        self._next_block += n
        return numbers

    def attach(self, block: int, blocks: Ints, lows: Keys) -> None:
        """Put new blocks, of `new_blocks`, behind `block`, part of whose items they took.

        Their `counts` are set; `lows` are the smallest key of each.
        """
        node = int(self._node[block])
        n, more = int(self._n_blocks[node]), len(blocks)
        row, low = self._blocks[node], self._lows[node]
        place = row[:n].tolist().index(block) + 1
        if n + more <= self._fanout:
            for array, new in ((row, blocks), (low, lows)):
                array[place + more : n + more] = array[place:n]
                array[place : place + more] = new
            self._node[blocks] = node
            self._n_blocks[node] = n + more
            self._totals[node] += self.counts[blocks].sum()
            self._stale = True
            return
        at = int(np.flatnonzero(self._order == node)[0])
        nodes, node_lows = self._cut(
            np.concatenate((row[:place], blocks, row[place:n])),
            np.concatenate((low[:place], lows, low[place:n])),
            [node],
        )
        self._order = np.insert(self._order, at + 1, nodes[1:])
        self._order_lows = np.insert(self._order_lows, at + 1, node_lows[1:])

    def detach(self, block: int) -> list[int]:
        """Take out a block that has become empty; its keys are its neighbour's from now on.

        Returns blocks that have other neighbours than before, because nodes were joined.
        """
        node = int(self._node[block])
        n = int(self._n_blocks[node])
        row, low = self._blocks[node], self._lows[node]
        place = row[:n].tolist().index(block)
        row[place : n - 1] = row[place + 1 : n]
        low[place : n - 1] = low[place + 1 : n]
        row[n - 1], low[n - 1] = 0, np.inf
        if n > 1:
            low[0] = -np.inf
        self._n_blocks[node] = n - 1
        self._node[block] = 0
        self._free_blocks.append(block)
        return self._join(node) if n - 1 <= self._fanout // 2 else []

    def _join(self, node: int) -> list[int]:
        """Join a node with its neighbours while they fit together in half a node."""
        at = int(np.flatnonzero(self._order == node)[0])
        met: list[int] = []
        while len(self._order) > 1:
            n = self._n_blocks[self._order]
            if at and n[at - 1] + n[at] <= self._fanout // 2:
                at -= 1
            elif at + 1 == len(n) or n[at] + n[at + 1] > self._fanout // 2:
                if n[at]:
                    break
                # Empty between two fuller ones: joined with either, it is gone.
                at -= at > 0
            met += self._absorb(at)
        return met

    def _absorb(self, at: int) -> list[int]:
        """Join the node at `at` of the order with the one behind it."""
        kept, gone = int(self._order[at]), int(self._order[at + 1])
        n, more = int(self._n_blocks[kept]), int(self._n_blocks[gone])
        low = self._lows[gone, :more].copy()
        low[:1] = self._order_lows[at + 1]
        self._set_row(
            kept,
            np.concatenate((self._blocks[kept, :n], self._blocks[gone, :more])),
            np.concatenate((self._lows[kept, :n], low)),
        )
        self._n_blocks[gone] = self._totals[gone] = 0
        self._free_nodes.append(gone)
        self._order = np.delete(self._order, at + 1)
        self._order_lows = np.delete(self._order_lows, at + 1)
        self._stale = True
        return [int(self._blocks[kept, n])] if n and more else []
