"""`Sources`: what the index reads of the lanes of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mmreplay.ids import Array, Ids


class Column(Protocol):
    """A raw column of numbers over all lanes."""

    def take(self, ids: Ids) -> Array:
        """Values by id, of any shape."""

    def view(self, lane: int, start: int, stop: int) -> Array:
        """Those of rows [start, stop) of one lane."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Columns of entries and of finals; `lost(lane, text)` is the error for a missing final."""

    step: Column
    ends: Column
    resets: Column
    final_ids: Column
    final_firsts: Column
    lost: Callable[[int, str], Exception]
