"""Stands in for the indexes of `episode_index` until they are there. To be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmreplay.episode_index import Index, floor_row
from mmreplay.ids import LANE_SHIFT, Ids


class TickIndex:
    n_lanes = 1

    def __init__(self, source: Any, where: Any) -> None:
        self.source, self.version = source, 0

    def load(self, base: int, head: int, capacity: int | None, starts: tuple[int, int]) -> None:
        self.capacity, self.first = capacity, floor_row(base) + bool(base)
        self.extend(base, head, starts)

    def extend(self, base: int, head: int, starts: tuple[int, int]) -> None:
        self.base, self.head, self.version = base, head, self.version + 1
        self.first = min(self.first, head)
        counts = self.source.counts(0, head) if not base else self.source.counts(base, head)
        counts = np.concatenate((np.zeros(base + 1, np.int64), counts))
        if self.capacity is not None:
            while self.first < head and counts[head] - counts[self.first] > self.capacity:
                self.first += 1
        cells = np.arange(self.first * self.source.width, head * self.source.width)
        self._ids = cells[self.source.episodes(cells) >= 0]

    def window(self, lane: int) -> tuple[int, int, int]:
        n = self.source.width
        return self.base * n, self.first * n, self.head * n

    @property
    def n_transitions(self) -> int:
        return self._ids.size

    def n_transitions_of(self, n_lanes: int) -> int:
        return n_lanes and self._ids.size

    def ids(self) -> Ids:
        return self._ids.copy()

    def invalid(self, ids: Ids) -> Any:
        return ~np.isin(ids, self._ids)


class JoinedIndex:
    def __init__(self, parts: Sequence[Index | TickIndex]) -> None:
        self.parts, self.n_lanes = parts, len(parts)

    @property
    def version(self) -> int:
        return sum(part.version for part in self.parts)

    def window(self, lane: int) -> tuple[int, int, int]:
        return self.parts[lane].window(0)

    def resets(self, lane: int) -> Ids:
        return self.parts[lane].resets(0)

    @property
    def n_transitions(self) -> int:
        return self.n_transitions_of(self.n_lanes)

    def n_transitions_of(self, n_lanes: int) -> int:
        return sum(part.n_transitions for part in self.parts[:n_lanes])

    def ids(self) -> Ids:
        return np.concatenate(
            [part.ids() + (lane << LANE_SHIFT) for lane, part in enumerate(self.parts)]
        )

    def invalid(self, ids: Ids) -> Any:
        return ~np.isin(ids, self.ids())
