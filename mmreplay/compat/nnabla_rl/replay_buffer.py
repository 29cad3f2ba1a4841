"""The buffer that draws uniformly, which all others derive from, and three variants.

Invariant: index 0 is the oldest experience that counts, ``len(buffer) - 1`` the newest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.experiences import AtariStates, Experience, States
from mmreplay.compat.nnabla_rl.reader import Draw, Reader, checked_count
from mmreplay.compat.nnabla_rl.recorder import Open, Recorder
from mmreplay.datasets.replay_buffer import ReplayBuffer as Buffer
from mmreplay.episode_index import Index


class ReplayBuffer:
    """Experiences (s, a, r, non_terminal, s_next, info), drawn uniformly and without replacement.

    A context manager; docs/compat.md lists the differences from nnabla-rl's.

    Args:
        capacity: most experiences to keep; None keeps all.
        path: of a new or existing store; None for a temporary one, which `close` removes.

    Raises:
        SchemaError: a value out of its range.
        FormatError: the store was made by another class.
        LockedError, CorruptStoreError: as `mmreplay.ReplayBuffer`.
    """

    _replace = False
    _stacked_frames: int | None = None  # screens of an Atari state

    def __init__(self, capacity: int | None = None, *, path: StorePath = None) -> None:
        if capacity is not None:
            checked_count("capacity", capacity)
        self._capacity = capacity
        # Without a reference cycle: a temporary store goes as soon as the buffer is dropped.
        self._recorder = Recorder(path, self._most(), self._kind(), self._states(), self._opener())
        self._reader = Reader(self._recorder, self._skipping())

    def _kind(self) -> str:
        """The name of this class, or of the class of this package that it derives from."""
        room = __name__.rpartition(".")[0]
        return next(c.__name__ for c in type(self).__mro__ if c.__module__.startswith(room))

    def _states(self) -> States:
        if self._stacked_frames is None:
            return States()
        checked_count("stacked_frames", self._stacked_frames)
        return AtariStates(self._stacked_frames)

    def _most(self) -> int | None:
        """The capacity of the store."""
        return self._capacity

    def _opener(self) -> Open:
        return functools.partial(Buffer, stack=self._states().stack)

    def _skipping(self) -> Callable[[Index], int]:
        """A function: how many transitions of an index, from the oldest on, do not count."""
        return lambda _: 0

    def _read(self, draw: Draw) -> list[Any]:
        return self._reader.read(draw)

    def _runs(self, draw: Draw, num_steps: int) -> tuple[Any, dict[str, Any]]:
        found = self._read(draw)
        runs = tuple(found[step::num_steps] for step in range(num_steps))
        return (found if num_steps == 1 else runs), {"weights": np.ones((len(runs[0]), 1))}

    @property
    def capacity(self) -> int | None:
        """Most experiences kept; None for all."""
        return self._capacity

    def append(self, experience: Experience) -> None:
        """Append an experience; the oldest goes if the buffer is full.

        Raises:
            SchemaError: not an experience, or one that does not fit the first one.
            DiskFullError, FailedStoreError, ClosedError: as the writer.
        """
        self._recorder.append(experience)

    def append_all(self, experiences: Iterable[Experience]) -> None:
        """Append experiences in order; see `append`."""
        for experience in experiences:
            self.append(experience)

    def sample(self, num_samples: int = 1, num_steps: int = 1) -> tuple[Any, dict[str, Any]]:
        """Draw experiences, or runs of `num_steps` that follow one another.

        Returns:
            a list of B experiences, or a tuple of `num_steps` such lists; ``{"weights": (B, 1)}``.

        Raises:
            SchemaError (a ValueError): there are too few; a value out of its range.
        """
        draw = self._reader.random(num_samples, num_steps, replace=self._replace)
        return self._runs(draw, num_steps)

    def sample_indices(
        self, indices: Sequence[int], num_steps: int = 1
    ) -> tuple[Any, dict[str, Any]]:
        """The experiences with these indices, or the runs that begin there; see `sample`.

        Raises:
            SchemaError (a ValueError): no indices, or a run across a time limit.
            IndexError: there is no such experience.
        """
        return self._runs(self._reader.indexed(indices, num_steps), num_steps)

    def update_priorities(self, errors: npt.ArrayLike) -> None:
        """Does nothing: draws are uniform."""

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, item: int) -> Any:
        """The experience with this index; -1 is the newest one."""
        return self._read(self._reader.indexed([item], 1))[0]

    def seed(self, seed: int) -> None:
        """Make the draws from here on repeatable."""
        self._recorder.seed(seed)

    def close(self) -> None:
        """Close the store; a temporary one is removed. A second call does nothing."""
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DecorableReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that returns ``decor_fun(experience)`` for each experience.

    Args:
        capacity, path: as for `ReplayBuffer`.
        decor_fun: gets a copy of the experience.
    """

    def __init__(
        self,
        capacity: int | None,
        decor_fun: Callable[[Experience], Any],
        *,
        path: StorePath = None,
    ) -> None:
        super().__init__(capacity, path=path)
        self._decor_fun = decor_fun

    def _read(self, draw: Draw) -> list[Any]:
        return [self._decor_fun(experience) for experience in super()._read(draw)]


class ReplacementSamplingReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that draws with replacement, any number of experiences."""

    _replace = True


class MemoryEfficientAtariBuffer(ReplayBuffer):
    """A `ReplayBuffer` of screens, stacked or single; as floats in [0, 1] or as bytes.

    Args:
        capacity: most experiences to keep.
        stacked_frames: screens per state.
        path: as for `ReplayBuffer`.
    """

    def __init__(self, capacity: int, stacked_frames: int = 4, *, path: StorePath = None) -> None:
        self._stacked_frames = stacked_frames
        super().__init__(capacity, path=path)
