"""What could not be converted, with counts.

Invariant: nothing is left out, invented or changed without an entry here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Loss", "Losses"]


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """Something that could not be converted.

    Attributes:
        what: a description.
        count: how often.
    """

    what: str
    count: int

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return dataclasses.asdict(self)


class Losses:
    """Counts the losses of one import or export, in the order of their first occurrence."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count `count` more; 0 adds nothing."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def all(self) -> tuple[Loss, ...]:
        """All losses."""
        return tuple(Loss(what, count) for what, count in self._counts.items())
