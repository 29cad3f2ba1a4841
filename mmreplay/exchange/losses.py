"""What could not be carried over, counted and said in words.

Invariant: nothing is left out, made up or changed without a line here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Loss", "Losses"]


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """Something that is not carried over as it was.

    Attributes:
        what: in words.
        count: how often.
    """

    what: str
    count: int

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return dataclasses.asdict(self)


class Losses:
    """Counts losses of one import or export, in the order in which they were met first."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count some; 0 of them is no loss."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def all(self) -> tuple[Loss, ...]:
        """What was counted."""
        return tuple(Loss(what, count) for what, count in self._counts.items())
