"""How often values occur in stores, counted in blocks: each value where there are few, else bins.

Invariant: memory does not grow with the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Array
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.reading.store import Store

Numbers = npt.NDArray[np.float64]

MOST_VALUES = 64
"""Different values that are counted each by itself."""
_BINS = 60
_BLOCK = 1 << 18
_LARGEST = 1e300
"""No axis has room for values like these, nor for what is not finite."""


class Tally:
    """The different values in some blocks, as long as they are few, and their range.

    Attributes:
        values: (V,) ascending, and `counts` (V,) how often each occurs; both None if there are more
            than `MOST_VALUES`.
        low, high: the least and the greatest, NaN if there is none.

    Values without a place on an axis are left out.
    """

    def __init__(self) -> None:
        self.values: Numbers | None = np.empty(0)
        self.counts: npt.NDArray[np.int64] | None = np.empty(0, np.int64)
        self.low = self.high = np.nan

    def add(self, block: Array) -> None:
        """Count the values of a block."""
        numbers = drawable(block)
        if not numbers.size:
            return
        self.low = float(np.fmin(self.low, numbers.min()))
        self.high = float(np.fmax(self.high, numbers.max()))
        if self.values is None or self.counts is None:
            return
        values, counts = np.unique(numbers, return_counts=True)
        together, places = np.unique(np.concatenate((self.values, values)), return_inverse=True)
        if len(together) > MOST_VALUES:
            self.values = self.counts = None
            return
        sums = np.bincount(places, np.concatenate((self.counts, counts)), len(together))
        self.values, self.counts = together, sums.astype(np.int64)


def shared_values(tallies: Iterable[Tally], most: int) -> Numbers | None:
    """All different values of some tallies; None if they are more than `most`."""
    parts = [one.values for one in tallies]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    together = np.unique(np.concatenate(known))
    return together if len(together) <= most else None


def shares_of_values(tally: Tally, values: Numbers) -> Numbers:
    """(V,) the share of each of some values, among which are all of the tally."""
    out = np.zeros(len(values))
    if tally.values is not None and tally.counts is not None and len(tally.values):
        out[values.searchsorted(tally.values)] = tally.counts / tally.counts.sum()
    return out


def shared_edges(tallies: Iterable[Tally]) -> Numbers:
    """(bins + 1,) the edges of equal bins from the least of all values to the greatest."""
    ranges = [one for one in tallies if np.isfinite(one.low)]
    low, high = min(one.low for one in ranges), max(one.high for one in ranges)
    return np.linspace(low, high, _BINS + 1)


def shares_in_bins(blocks: Iterable[Array], edges: Numbers) -> Numbers:
    """(bins,) the share of the values of some blocks in each bin."""
    counts = np.zeros(len(edges) - 1, np.int64)
    for block in blocks:
        places = np.searchsorted(edges, drawable(block), "right") - 1
        counts += np.bincount(np.clip(places, 0, len(counts) - 1), minlength=len(counts))
    shares: Numbers = counts / max(counts.sum(), 1)
    return shares


def blocks_of(store: Store, path: str, told: Callable[[int], None]) -> Iterator[Array]:
    """A column of all transitions, (n, ...) each; `told` is called with how many were read."""
    n_transitions = len(store)
    for start in range(0, n_transitions, _BLOCK):
        ranks = np.arange(start, min(start + _BLOCK, n_transitions))

        def read(ranks: npt.NDArray[np.int64] = ranks) -> tuple[JoinedLanes, Array]:
            lanes = store.live.follow()
            there = ranks[ranks < lanes.index.n_transitions]  # a live store may evict meanwhile
            return lanes, lanes.columns[path].take(lanes.index.at(there))

        yield store.live.retrying(read)
        told(len(ranks))


def drawable(values: Array) -> Numbers:
    """(n,) the values that have a place on an axis."""
    numbers = values.astype(np.float64).ravel()
    return numbers[np.abs(numbers) < _LARGEST]
