"""Rank-based priorities: every position's exact rank.

Invariant: the present positions stand in one total order, by descending priority and, where
priorities are equal, by ascending position. It depends on the priorities alone, not on how they
came about: a structure built anew gives the same ranks.

Source: Schaul et al. 2016, "Prioritized Experience Replay", section 3.3, rank-based variant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.sampling.rank_blocks import Directory, Ints, Keys, Reals, most_blocks, widen

_AT_ONCE = 4096  # positions of one pass: bounds the memory that a long call takes


class RankedPriorities:
    """Priorities of positions, and their ranks.

    The items lie in blocks of at most `width`, in no order inside a block, so that a change touches
    a few places only; a directory keeps the blocks in order. A full block is cut in pieces, and
    two that fit in half a block are joined: the worst call costs the same for any number of items.
    An interrupted `set` leaves it unsound; build it again from the priorities then.

    Memory: 12 bytes for each place of a block and 4 for each position (16 and 8 from some 500
    million positions on). Blocks are a half to three quarters full as a rule, and never less than
    a quarter on average: 20 to 33 bytes a position, at most 53.
    """

    def __init__(self, size: int, *, width: int = 256, fanout: int = 32) -> None:
        """None of the positions 0 to size - 1 is present.

        `width` items fit into a block, `fanout` blocks, 4 or more, into a node of the directory.
        """
        self._width = width
        self._fanout = fanout
        self._fill = width * 3 // 4  # items in a block that was just cut
        self._slots: npt.NDArray[Any] = np.empty(0, np.int64)  # block * width + place
        self._positions: npt.NDArray[Any] = np.zeros((1, width), np.int64)
        self._priorities: Reals = np.zeros((1, width), np.float64)  # 0 in a free place
        self._n_present = 0
        self._directory = Directory(width, fanout)
        self._make_room(size)
        self._directory.load(np.zeros(1, np.int64), np.full(1, -np.inf, np.complex128))

    @classmethod
    def from_arrays(
        cls, priorities: npt.NDArray[np.float64], *, width: int = 256, fanout: int = 32
    ) -> RankedPriorities:
        """A structure with these priorities, (size,), in the time that it takes to sort them.

        0 for a position that is absent. Raises SchemaError if one is negative, infinite or NaN.
        """
        priorities = np.asarray(priorities, np.float64)
        _check_priorities(priorities)
        self = cls(len(priorities), width=width, fanout=fanout)
        positions = np.flatnonzero(priorities)
        n = self._n_present = len(positions)
        if n:
            values = priorities[positions]
            order = np.argsort(-values, kind="stable")
            values, positions = values[order], positions[order]
            n_blocks = -(-n // self._fill)
            starts = np.arange(n_blocks) * n // n_blocks
            # Of different sizes, so that they do not all become full at the same time.
            spread = max(self._width // 8, 1)
            steps = np.arange(1, n_blocks)
            starts[1:] += steps * (steps + 1) // 2 % spread - spread // 2
            counts = np.diff(starts, append=n)
            self._directory.load(counts, _keys(values[starts], positions[starts]))
            self._write(np.arange(1, n_blocks + 1), starts, counts, values, positions)
        return self

    def _make_room(self, size: int) -> None:
        n_blocks = max(most_blocks(size, self._width, self._fanout), len(self._positions) - 1)
        small = (n_blocks + 1) * self._width < np.iinfo(np.int32).max
        dtype = np.int32 if small else np.int64
        slots = np.full(size, -1, dtype)
        slots[: len(self._slots)] = self._slots
        self._slots = slots
        shape = (n_blocks + 1, self._width)
        used = self._directory.n_used
        self._positions = widen(self._positions, used, shape, dtype)
        self._priorities = widen(self._priorities, used, shape, np.float64)
        self._directory.grow(n_blocks)

    def resize(self, size: int) -> None:
        """Change the number of positions. Those from `size` on are removed, new ones are absent.

        Growing copies everything once: do it by doubling.
        """
        if size < len(self._slots):
            gone = np.arange(size, len(self._slots))
            self.set(gone, np.zeros(len(gone)))
            self._slots = self._slots[:size].copy()
        elif size > len(self._slots):
            self._make_room(size)

    # ------------------------------------------------------------ asking it

    @property
    def size(self) -> int:
        """Positions, present or not."""
        return len(self._slots)

    def __len__(self) -> int:
        """Positions that are present."""
        return self._n_present

    def get(self, positions: npt.NDArray[np.int64]) -> Reals:
        """The priority of each position, 0 where it is absent: float64 (n,)."""
        slots = self._slots[self._known(positions)]
        return np.where(slots < 0, 0.0, self._priorities.reshape(-1)[slots])

    def ranks(self, positions: npt.NDArray[np.int64]) -> Ints:
        """The rank of each position: int64 (n,), from 1 for the largest priority.

        Raises SchemaError if a position is absent, or not one of 0 to size - 1.
        """
        positions = self._known(positions)
        slots = self._slots[positions]
        if (slots < 0).any():
            raise SchemaError(
                f"position {positions[slots < 0][0]} has no rank, because it has no priority; "
                "ask for positions with a priority above 0 only"
            )
        ranks = np.empty(len(positions), np.int64)
        for start in range(0, len(positions), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            ranks[some] = self._ranks(positions[some], slots[some])
        return ranks

    def _ranks(self, positions: Ints, slots: Ints) -> Ints:
        blocks = slots // self._width
        own = self._priorities.reshape(-1)[slots][:, None]
        rows = self._priorities.take(blocks, axis=0)
        earlier = rows > own
        tied = rows == own
        tied &= self._positions.take(blocks, axis=0) < positions[:, None]
        earlier |= tied
        inside: Ints = np.count_nonzero(earlier, axis=1)
        return self._directory.before(blocks) + inside + 1

    def at(self, ranks: npt.NDArray[np.int64]) -> Ints:
        """The position of each rank: int64 (n,), the inverse of `ranks`."""
        ranks = np.asarray(ranks, np.int64)
        if ranks.size and (ranks.min() < 1 or ranks.max() > self._n_present):
            raise SchemaError(
                f"ranks from {ranks.min()} to {ranks.max()} were asked for, of {self._n_present} "
                f"positions that have a priority; a rank is at least 1 and at most their number"
            )
        positions = np.empty(len(ranks), np.int64)
        for start in range(0, len(ranks), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            positions[some] = self._at(ranks[some])
        return positions

    def _at(self, ranks: Ints) -> Ints:
        blocks, before = self._directory.locate(ranks - 1)
        which = np.arange(len(ranks))
        rows = self._priorities.take(blocks, axis=0)
        value = np.sort(rows, axis=1)[which, self._width - 1 - before][:, None]
        same = rows == value
        positions: Ints = self._positions[blocks, same.argmax(axis=1)].astype(np.int64)
        tied = np.flatnonzero(np.count_nonzero(same, axis=1) > 1)
        if tied.size:
            candidates = self._positions.take(blocks[tied], axis=0)
            candidates[~same[tied]] = np.iinfo(candidates.dtype).max
            candidates.sort(axis=1)
            higher = np.count_nonzero(rows[tied] > value[tied], axis=1)
            positions[tied] = candidates[np.arange(len(tied)), before[tied] - higher]
        return positions

    def _known(self, positions: npt.NDArray[np.int64]) -> Ints:
        positions = np.asarray(positions, np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= len(self._slots)):
            raise SchemaError(
                f"positions from {positions.min()} to {positions.max()} were given; "
                f"expected 0 to {len(self._slots) - 1}"
            )
        return positions

    # ------------------------------------------------------------ changing it

    def set(self, positions: npt.NDArray[np.int64], priorities: npt.NDArray[np.float64]) -> None:
        """Give positions (n,) their priorities (n,); those with 0 are absent from now on.

        Of a position that is repeated, the last priority counts. Raises SchemaError, and changes
        nothing, if a position or priority is out of its range.
        """
        positions = self._known(positions)
        priorities = np.asarray(priorities, np.float64)
        if positions.shape != priorities.shape:
            raise SchemaError(
                f"{positions.shape} positions but {priorities.shape} priorities were given; "
                "expected one priority for each position"
            )
        _check_priorities(priorities)
        for start in range(0, len(positions), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            self._set(positions[some], priorities[some])

    def _set(self, positions: Ints, priorities: Reals) -> None:
        order = np.argsort(positions, kind="stable")
        positions = positions[order]
        last = np.ones(len(positions), np.bool_)
        np.not_equal(positions[1:], positions[:-1], out=last[:-1])
        positions, priorities = positions[last], priorities[order[last]]
        slots = self._slots[positions]
        present = slots >= 0
        if present.any():
            self._remove(positions[present], np.sort(slots[present]).astype(np.int64))
        # By key: stable, and the positions ascend already.
        order = np.argsort(-priorities, kind="stable")[: np.count_nonzero(priorities)]
        if order.size:
            self._insert(positions[order], priorities[order])

    def _remove(self, positions: Ints, slots: Ints) -> None:
        """Take out present positions; `slots` are theirs, ascending.

        The last items of a block move into the places that become free before them.
        """
        values, held = self._priorities.reshape(-1), self._positions.reshape(-1)
        n = len(slots)
        self._slots[positions] = -1
        values[slots] = 0
        starts, in_block = _runs(slots // self._width)
        blocks = slots[starts] // self._width
        counts = self._directory.counts[blocks] - in_block
        ends = np.repeat(blocks * self._width + counts, in_block)
        tails = ends + np.arange(n) - np.repeat(starts, in_block)
        # A block has as many free places before its new end as it has items behind it.
        holes = slots[slots < ends]
        tails = tails[values[tails] > 0]
        moved = held[tails]
        values[holes], held[holes], self._slots[moved] = values[tails], moved, holes
        values[tails] = 0
        self._directory.add(blocks, -in_block)
        self._n_present -= n
        self._fold(self._directory.sparse(blocks).tolist())

    def _fold(self, blocks: list[int]) -> None:
        """Join blocks with a neighbour until none is empty, or fits with one in half a block."""
        counts = self._directory.counts
        while blocks:
            block = blocks.pop()
            if not self._directory.holds(block):
                continue
            n = int(counts[block])
            left, right = self._directory.neighbours(block)
            if left and (not n or n + counts[left] <= self._width // 2):
                kept, gone = left, block
            elif right and (not n or n + counts[right] <= self._width // 2):
                kept, gone = block, right
            elif n or len(self._directory) == 1:
                continue
            else:
                kept, gone = 0, block  # alone in its node
            if kept:
                self._join(kept, gone)
                blocks.append(kept)
            blocks += self._directory.detach(gone)

    def _join(self, kept: int, gone: int) -> None:
        n, more = int(self._directory.counts[kept]), int(self._directory.counts[gone])
        self._priorities[kept, n : n + more] = self._priorities[gone, :more]
        self._priorities[gone, :more] = 0
        self._positions[kept, n : n + more] = self._positions[gone, :more]
        self._slots[self._positions[gone, :more]] = kept * self._width + np.arange(n, n + more)
        self._directory.counts[kept] = n + more
        self._directory.counts[gone] = 0

    def _insert(self, positions: Ints, priorities: Reals) -> None:
        """Put in absent positions, which are sorted by key."""
        n = len(positions)
        block_of_each = self._directory.find(_keys(priorities, positions))
        starts, in_block = _runs(block_of_each)
        blocks = block_of_each[starts]
        counts = self._directory.counts[blocks]
        self._n_present += n
        slots = np.repeat(blocks * self._width + counts - starts, in_block) + np.arange(n)
        full = counts + in_block > self._width
        if not full.any():
            self._directory.add(blocks, in_block)
            self._put(slots, positions, priorities)
            return
        self._directory.add(blocks[~full], in_block[~full])
        split = np.repeat(full, in_block)
        self._put(slots[~split], positions[~split], priorities[~split])
        self._cut(blocks[full], in_block[full], positions[split], priorities[split])

    def _cut(self, blocks: Ints, in_block: Ints, positions: Ints, priorities: Reals) -> None:
        """Divide the items of full blocks, and what is new in them, over new blocks."""
        directory = self._directory
        rows = self._priorities[blocks]
        there = rows > 0
        values = np.concatenate((rows[there], priorities))
        held = np.concatenate((self._positions[blocks][there], positions))
        self._priorities[blocks] = 0
        # The blocks come by key, so one sort by key leaves the items of each together.
        keys = _keys(values, held)
        order = keys.argsort()
        starts: list[int] = []
        pieces: list[int] = []
        cuts: list[slice] = []
        first = 0
        n_items = (directory.counts[blocks] + in_block).tolist()
        for block, n in zip(blocks.tolist(), n_items, strict=True):
            n_pieces = -(-n // self._fill)
            cuts.append(slice(len(pieces) + 1, len(pieces) + n_pieces))
            pieces += [block, *directory.new_blocks(n_pieces - 1)]
            starts += [first + i * n // n_pieces for i in range(n_pieces)]
            first += n
        numbers, begins = np.array(pieces), np.array(starts)
        counts = np.array([*starts[1:], first]) - begins
        directory.add(numbers, counts - directory.counts[numbers])
        self._write(numbers, begins, counts, values[order], held[order])
        lows = keys[order[begins]]
        for block, new in zip(blocks.tolist(), cuts, strict=True):
            directory.attach(block, numbers[new], lows[new])

    def _write(
        self, blocks: Ints, starts: Ints, counts: Ints, priorities: Reals, positions: Ints
    ) -> None:
        """Fill empty blocks, each with `counts` items that begin at `starts`."""
        slots = np.repeat(blocks * self._width - starts, counts) + np.arange(len(positions))
        self._put(slots, positions, priorities)

    def _put(self, slots: Ints, positions: Ints, priorities: Reals) -> None:
        self._priorities.reshape(-1)[slots] = priorities
        self._positions.reshape(-1)[slots] = positions
        self._slots[positions] = slots


def _keys(priorities: Reals, positions: Ints) -> Keys:
    keys = np.empty(len(positions), np.complex128)
    keys.real = -priorities
    keys.imag = positions
    return keys


def _runs(values: Ints) -> tuple[Ints, Ints]:
    """Where runs of equal values begin, and how long they are."""
    borders = np.flatnonzero(values[1:] != values[:-1]) + 1
    starts = np.zeros(len(borders) + 1, np.int64)
    starts[1:] = borders
    lengths = np.full(len(starts), len(values))
    lengths[:-1] = borders
    lengths -= starts
    return starts, lengths


def _check_priorities(priorities: Reals) -> None:
    # NaN is not smaller than infinity either.
    wrong = ~((priorities >= 0) & (priorities < np.inf))
    if wrong.any():
        raise SchemaError(
            f"a priority is {priorities[wrong][0]}; expected finite numbers of at least 0"
        )
