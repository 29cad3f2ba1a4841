"""Buffers that differ from `ReplayBuffer` in one thing.

Invariant: what is stored is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmreplay.compat.nnabla_rl.buffers import Path, ReplayBuffer
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.reading import Draw

__all__ = ["DecorableReplayBuffer", "ReplacementSamplingReplayBuffer"]


class DecorableReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` each of whose experiences goes through a function before it comes out.

    Args:
        capacity: as for `ReplayBuffer`.
        decor_fun: from an experience, in memory of its own, to what comes in its place.
        path: as for `ReplayBuffer`.
    """

    def __init__(
        self, capacity: int | None, decor_fun: Callable[[Experience], Any], *, path: Path = None
    ) -> None:
        """See the class."""
        super().__init__(capacity, path=path)
        self._decor_fun = decor_fun

    def _read(self, draw: Draw) -> list[Any]:
        return [self._decor_fun(experience) for experience in super()._read(draw)]


class ReplacementSamplingReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that draws with replacement: more can be drawn than there are."""

    _replace = True
