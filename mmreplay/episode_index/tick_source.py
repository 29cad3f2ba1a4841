"""`TickSource`: where the index of a vector lane reads."""

from __future__ import annotations

from typing import Protocol

from mmreplay.ids import Array, Ids


class TickSource(Protocol):
    """The columns of a vector lane that say what is a transition, and of which episode."""

    width: int

    def counts(self, start: int, stop: int) -> Ids:
        """Transitions in ticks 0 to t, for t in [start, stop); a view where the files allow it."""

    def episodes(self, cells: Ids) -> Ids:
        """The numbers of the episodes that cells belong to, of any shape; below 0: of none."""

    def numbers(self, tick: int) -> Ids:
        """The same of all cells of a tick: (width,); a view where the files allow it."""

    def ends(self, cells: Ids) -> Array:
        """Whether the episodes of cells end there, of any shape."""

    def ended(self, start: int, stop: int) -> Array:
        """The same for all cells of ticks [start, stop): (n, width)."""

    def start_ticks(self, numbers: Ids) -> Ids:
        """The ticks of the first steps of episodes, of any shape.

        Raises CorruptStoreError for an episode that there is not.
        """

    def start_envs(self, numbers: Ids) -> Ids:
        """The environments of episodes, of any shape; raises as `start_ticks`."""
