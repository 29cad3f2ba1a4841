"""Buffers of whole trajectories.

A trajectory is stored as one episode, or as several if its steps do not follow one another; a
column marks its first step.

Invariant: only the newest `num_trajectories` count in any length, index or probability. A
trajectory that was evicted in part does not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, overload

import numpy as np

from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.reader import checked_count, checked_indices, episodes_of
from mmreplay.compat.nnabla_rl.recorder import TRAJECTORY_BEGINS, Recorder
from mmreplay.compat.nnabla_rl.replay_buffer import ReplayBuffer
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids

Info = dict[str, Any]

_ALL = 1 << 39
_FEWEST_TO_RECLAIM = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Trajectories:
    """The trajectories that count, oldest first: ids of their first steps, and their lengths."""

    begins: Ids
    lengths: Ids

    def __len__(self) -> int:
        return len(self.begins)

    def whole(self, number: int) -> Ids:
        """The ids of a trajectory's steps."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"trajectory {number}: there are {len(self)}")
        return np.arange(self.begins[number], self.begins[number] + self.lengths[number])

    def portions(self, indices: Sequence[int], length: int) -> Ids:
        """The first ids of the portions at these experiences, moved back to fit if necessary."""
        stops, total = self.lengths.cumsum(), int(self.lengths.sum())
        numbers = checked_indices(indices, total)
        chosen = stops.searchsorted(numbers, "right")
        lengths = self.lengths[chosen]
        if lengths.min() < length:
            raise _too_short(int(lengths.min()), length)
        steps = numbers - (stops[chosen] - lengths)
        return np.asarray(self.begins[chosen] + np.minimum(steps, lengths - length), np.int64)


class Finder:
    """Finds the `most` newest trajectories of a recorder's store, again after each change."""

    def __init__(self, recorder: Recorder, most: int | None) -> None:
        self._recorder, self._most = recorder, most
        self._known: tuple[Index, int, Trajectories] | None = None

    def find(self, index: Index) -> Trajectories:
        """The trajectories of an index, whose lock the caller holds."""
        known = self._known
        if known is None or known[0] is not index or known[1] != index.version:
            known = self._known = index, index.version, self._found(index)
        return known[2]

    def _found(self, index: Index) -> Trajectories:
        first = index.window(0)[1]
        rows, _, others = episodes_of(index)
        running = (others.whole() & (others.steps > 0)).nonzero()[0]
        rows = np.concatenate((rows[rows >= first], others.firsts(running)))
        if rows.size:
            begins = self._recorder.core.store.live.columns[f"extras/{TRAJECTORY_BEGINS}"]
            rows = rows[begins.take(rows)]
        rows = rows[None if self._most is None else -self._most :]
        return Trajectories(rows, np.diff(rows, append=first + index.n_transitions))

    def skipped(self, index: Index) -> int:
        """How many transitions of an index, from the oldest on, do not count."""
        return index.n_transitions - int(self.find(index).lengths.sum())


class TrajectoryReplayBuffer(ReplayBuffer):
    """A buffer of trajectories.

    Args:
        num_trajectories: most trajectories to keep, the newest; None keeps all.
        path: as for `ReplayBuffer`.
    """

    def __init__(self, num_trajectories: int | None = None, *, path: StorePath = None) -> None:
        super().__init__(num_trajectories, path=path)

    def _most(self) -> int | None:
        # The capacity counts trajectories; `_reclaim` applies it.
        return None if self._capacity is None else _ALL

    def _skipping(self) -> Callable[[Index], int]:
        self._finder = Finder(self._recorder, self._capacity)
        return self._finder.skipped

    def _trajectories(self) -> Trajectories:
        if not self._recorder.is_open:
            return Trajectories(np.empty(0, np.int64), np.empty(0, np.int64))
        return self._recorder.core.store.live.look(self._finder.find)

    @property
    def trajectory_num(self) -> int:
        """Trajectories that count."""
        return len(self._trajectories())

    def append(self, experience: Experience) -> NoReturn:
        """Not supported: NotImplementedError."""
        raise NotImplementedError("append: use append_trajectory, with a whole trajectory")

    def append_all(self, experiences: Iterable[Experience]) -> NoReturn:
        """Not supported: NotImplementedError."""
        raise NotImplementedError("append_all: use append_trajectory, with a whole trajectory")

    def append_trajectory(self, trajectory: Sequence[Experience]) -> None:
        """Append a trajectory; a full buffer drops the oldest.

        Raises:
            SchemaError: an empty trajectory, or a step that does not fit.
            DiskFullError, FailedStoreError, ClosedError: as the writer.
        """
        self._recorder.append_trajectory(trajectory)
        if self._capacity is not None:
            self._reclaim()

    def _reclaim(self) -> None:
        """Free the disk space of what does not count, once that is the majority."""
        kept = len(self)
        if len(self._recorder.core.store) - kept > max(kept, _FEWEST_TO_RECLAIM):
            self._recorder.open_again(kept)

    def get_trajectory(self, trajectory_index: int) -> Sequence[Experience]:
        """The experiences of a trajectory; 0 is the oldest one that counts."""
        return self._whole(self._trajectories().whole(trajectory_index))

    def _whole(self, ids: Ids) -> Sequence[Experience]:
        """The trajectory of the experiences with these ids."""
        return self._reader.at(ids)

    def sample_trajectories(self, num_samples: int = 1) -> tuple[Any, Info]:
        """Draw trajectories uniformly, without replacement.

        Returns:
            a trajectory, or for more than one a tuple of them; and ``{"weights": ones (B, 1)}``.

        Raises:
            SchemaError (a ValueError): there are fewer than `num_samples`.
        """
        checked_count("num_samples", num_samples)
        if num_samples > (count := self.trajectory_num):
            raise SchemaError(
                f"num_samples: expected at most {count}, the number of trajectories; found "
                f"{num_samples}"
            )
        generator = self._recorder.core.generator
        return self.sample_indices_trajectory(
            generator.choice(count, num_samples, replace=False).tolist()
        )

    def sample_indices_trajectory(self, indices: Sequence[int]) -> tuple[Any, Info]:
        """The trajectories with these numbers; see `sample_trajectories` and `get_trajectory`."""
        if not len(indices):
            raise SchemaError("indices: expected one or more, found none")
        found = tuple(self.get_trajectory(number) for number in indices)
        return (found if len(found) > 1 else found[0]), {"weights": np.ones((len(found), 1))}

    def sample_trajectories_portion(
        self, num_samples: int = 1, portion_length: int = 1
    ) -> tuple[Any, Info]:
        """Draw trajectories by length, with replacement, and a portion of each.

        Returns:
            a tuple of B lists of experiences, and ``{"weights": ones (B, 1)}``.

        Raises:
            SchemaError (a ValueError): a number out of its range.
            RuntimeError: every trajectory is shorter.
        """
        checked_count("num_samples", num_samples)
        checked_count("portion_length", portion_length)
        found = self._trajectories()
        longest = int(found.lengths.max(initial=0))
        if longest < portion_length:
            raise _too_short(longest, portion_length)
        stops = np.where(found.lengths >= portion_length, found.lengths, 0).cumsum()
        by_length, in_trajectory = self._recorder.core.generator.random((2, num_samples))
        chosen = stops.searchsorted((by_length * stops[-1]).astype(np.int64), "right")
        room = found.lengths[chosen] - portion_length + 1
        steps = (in_trajectory * room).astype(np.int64)
        return self._portions(found.begins[chosen] + steps, portion_length)

    def sample_indices_portion(
        self, indices: Sequence[int], portion_length: int = 1
    ) -> tuple[Any, Info]:
        """The portions from these experiences on, moved back to end with their trajectory.

        Returns:
            as `sample_trajectories_portion`.

        Raises:
            SchemaError (a ValueError): no indices, or a number out of its range.
            IndexError: there is no such experience.
            RuntimeError: its trajectory is shorter.
        """
        checked_count("portion_length", portion_length)
        begins = self._trajectories().portions(indices, portion_length)
        return self._portions(begins, portion_length)

    def _portions(self, begins: Ids, length: int) -> tuple[Any, Info]:
        found = self._reader.at((begins[:, None] + np.arange(length)).ravel())
        parts = tuple(found[i : i + length] for i in range(0, len(found), length))
        return parts, {"weights": np.ones((len(parts), 1))}


class AtariTrajectory(Sequence[Experience]):
    """Experiences of a trajectory, each read when it is used; slices are lists."""

    def __init__(self, read: Callable[[Ids], list[Experience]], ids: Ids) -> None:
        self._read, self._ids = read, ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, key: int) -> Experience: ...
    @overload
    def __getitem__(self, key: slice) -> list[Experience]: ...
    def __getitem__(self, key: int | slice) -> Experience | list[Experience]:
        """An experience, or a list of them; InvalidIdError if the trajectory was evicted."""
        ids = self._ids[key]
        if not isinstance(key, slice):
            return self._read(np.array([ids]))[0]
        return self._read(ids) if len(ids) else []


class MemoryEfficientAtariTrajectoryBuffer(TrajectoryReplayBuffer):
    """A `TrajectoryReplayBuffer` of stacked screens, each stored once, as bytes.

    Experiences are read when they are used. States have four screens. A step that does not continue
    the previous one begins a game, whose first stack is one screen repeated.

    Args:
        num_trajectories, path: as for `TrajectoryReplayBuffer`.
    """

    _stacked_frames = 4

    def _whole(self, ids: Ids) -> Sequence[Experience]:
        return AtariTrajectory(self._reader.at, ids)


def _too_short(found: int, length: int) -> RuntimeError:
    return RuntimeError(f"portion_length: a trajectory of {found} steps is shorter than {length}")
