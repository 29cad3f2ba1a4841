"""What the benchmark asks of every library."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers.steps import Plain, Promise, Step

__all__ = ["Peer", "Setup"]


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """What a buffer is made for.

    Attributes:
        folder: where its files go, if it has some.
        capacity: transitions that it holds.
        shape: of a frame, or of a vector.
        n_envs: environments that step together; 0 for frames of one environment.
        closed: opened only to be sampled; nothing is written any more.
    """

    folder: Path
    capacity: int
    shape: tuple[int, ...]
    n_envs: int = 0
    closed: bool = False

    @property
    def is_frames(self) -> bool:
        """Whether it holds frames, of which stacks are sampled."""
        return self.n_envs == 0


class Peer(Protocol):
    """One library, with one way to use it; made of a `Setup`, its files opened if they are there.

    Attributes:
        promise: in what its batches may differ.
    """

    promise: Promise

    def append(self, step: Step) -> None:
        """Add a step of one environment."""

    def extend(self, tick: tuple[Any, ...]) -> None:
        """Add observations, next observations, actions, rewards and flags of all environments."""

    def sample(self, n: int) -> Any:
        """Draw a batch, in the form that the library gives it."""

    def plain(self, batch: Any) -> Plain:
        """The arrays of a batch, in a common order."""

    def save(self) -> None:
        """Do what the library asks for so that the buffer can be opened again."""

    def __len__(self) -> int:
        """Transitions."""
