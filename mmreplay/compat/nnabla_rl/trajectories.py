"""Buffers of whole episodes.

Invariant: the newest `num_trajectories` count, and of those that went nothing is left in any
length, index or probability.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import numpy as np

from mmreplay.buffers import ReplayBuffer as Buffer
from mmreplay.columns import Ids
from mmreplay.compat.nnabla_rl.buffers import Path, ReplayBuffer
from mmreplay.compat.nnabla_rl.episodes import Episodes
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.reading import checked_count
from mmreplay.compat.nnabla_rl.recording import Open
from mmreplay.episodes import Index
from mmreplay.errors import SchemaError

__all__ = ["TrajectoryReplayBuffer"]

Info = dict[str, Any]

_ALL = 1 << 39
_FEWEST_TO_RECLAIM = 10_000


class TrajectoryReplayBuffer(ReplayBuffer):
    """A buffer that episodes are appended to and drawn from.

    Args:
        num_trajectories: most episodes to keep, the newest; None keeps all.
        path: as for `ReplayBuffer`.
    """

    def __init__(self, num_trajectories: int | None = None, *, path: Path = None) -> None:
        """See the class."""
        super().__init__(num_trajectories, path=path)

    def _opener(self) -> Open:
        # The capacity is one of episodes, which `_reclaim` sees to.
        capacity = None if self._capacity is None else _ALL
        return functools.partial(Buffer, capacity=capacity, stack=self._states().stack)

    def _skipping(self) -> Callable[[Index], int]:
        newest = self._capacity
        return lambda index: index.n_transitions - int(Episodes.of(index, newest).lengths.sum())

    def _now(self) -> Episodes:
        if not len(self):
            return Episodes(np.empty(0, np.int64), np.empty(0, np.int64))
        return Episodes.of(self._recorder.buffer.store.index, self._capacity)

    @property
    def trajectory_num(self) -> int:
        """Episodes that count."""
        return len(self._now())

    def append(self, experience: Experience) -> NoReturn:
        """Not here: NotImplementedError."""
        raise NotImplementedError("append: use append_trajectory, with a whole episode")

    def append_all(self, experiences: Iterable[Experience]) -> NoReturn:
        """Not here: NotImplementedError."""
        raise NotImplementedError("append_all: use append_trajectory, with a whole episode")

    def append_trajectory(self, trajectory: Sequence[Experience]) -> None:
        """Append an episode; the oldest goes if the buffer is full.

        Raises:
            SchemaError: no step, or steps that do not follow one another.
            DiskFullError, FailedStoreError, ClosedError: as the writer.
        """
        self._recorder.append_episode(trajectory)
        if self._capacity is not None:
            self._reclaim()

    def _reclaim(self) -> None:
        """Free the disk of what does not count, once that is more than what does."""
        kept = len(self)
        if len(self._recorder.buffer.store) - kept > max(kept, _FEWEST_TO_RECLAIM):
            self._recorder.open_again(capacity=kept)
            self._recorder.open_again()

    def get_trajectory(self, trajectory_index: int) -> Sequence[Experience]:
        """The experiences of an episode; 0 is the oldest one that counts."""
        return self._part(*self._now().whole(trajectory_index))

    def _part(self, begin: int, length: int) -> Sequence[Experience]:
        return self._reader.at(np.arange(begin, begin + length))

    def sample_trajectories(self, num_samples: int = 1) -> tuple[Any, Info]:
        """Draw episodes uniformly, without replacement; SchemaError if there are not as many.

        Returns:
            an episode, or for more than one a tuple of them; and ``{"weights": ones (B, 1)}``.
        """
        chosen = self._now().choose(num_samples, lambda: self._recorder.buffer.generator)
        return self.sample_indices_trajectory(chosen)

    def sample_indices_trajectory(self, indices: Sequence[int]) -> tuple[Any, Info]:
        """The episodes with these numbers; see `sample_trajectories` and `get_trajectory`."""
        if not len(indices):
            raise SchemaError("indices: expected one or more, found none")
        found = tuple(self.get_trajectory(number) for number in indices)
        return (found if len(found) > 1 else found[0]), {"weights": np.ones((len(found), 1))}

    def sample_trajectories_portion(
        self, num_samples: int = 1, portion_length: int = 1
    ) -> tuple[Any, Info]:
        """Draw an episode by its length, and so many of its steps; B times, with replacement.

        Returns:
            a tuple of B lists of experiences, and ``{"weights": ones (B, 1)}``.

        Raises:
            SchemaError (a ValueError): a number out of its range.
            RuntimeError: no episode is as long.
        """
        checked_count("num_samples", num_samples)
        begins = self._now().draw(
            lambda: self._recorder.buffer.generator.random((2, num_samples)), portion_length
        )
        return self._parts(begins, portion_length)

    def sample_indices_portion(
        self, indices: Sequence[int], portion_length: int = 1
    ) -> tuple[Any, Info]:
        """So many steps from each of these experiences on, or to the end of its episode.

        Returns:
            as `sample_trajectories_portion`.

        Raises:
            SchemaError (a ValueError): no indices, or a number out of its range.
            IndexError: no such experience.
            RuntimeError: its episode is not as long.
        """
        return self._parts(self._now().portions(indices, portion_length), portion_length)

    def _parts(self, begins: Ids, length: int) -> tuple[Any, Info]:
        found = self._reader.at((begins[:, None] + np.arange(length)).ravel())
        parts = tuple(found[i : i + length] for i in range(0, len(found), length))
        return parts, {"weights": np.ones((len(parts), 1))}
