"""Buffers of whole trajectories.

A trajectory is stored as one episode, or as several if its steps do not follow one another; a
column marks its first step.

Invariant: only the newest `num_trajectories` count in any length, index or probability. A
trajectory that was evicted in part does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.recorder import TRAJECTORY_BEGINS, Experience, checked
from mmreplay.compat.nnabla_rl.replay_buffer import ReplayBuffer, checked_indices, episodes_of
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids

Info = dict[str, Any]

_Trajectories = tuple[Ids, Ids]
"""Those that count, oldest first: the ids of their first steps, and their lengths."""

_ALL = 1 << 39
_FEWEST_TO_RECLAIM = 10_000


class TrajectoryReplayBuffer(ReplayBuffer):
    """A buffer of the `num_trajectories` newest trajectories, or of all for None."""

    def __init__(self, num_trajectories: int | None = None, *, path: StorePath = None) -> None:
        self._known: tuple[Index, int, _Trajectories] | None = None
        super().__init__(num_trajectories, path=path)

    def _most(self) -> int | None:
        # The capacity counts trajectories; `_reclaim` applies it.
        return None if self.capacity is None else _ALL

    def _found(self, index: Index) -> _Trajectories:
        """The trajectories that count, again after each change of the index."""
        known = self._known
        if known is not None and known[0] is index and known[1] == index.version:
            return known[2]
        first = index.window(0)[1]
        rows, _, others = episodes_of(index)
        running = (others.whole() & (others.steps > 0)).nonzero()[0]
        rows = np.concatenate((rows[rows >= first], others.firsts(running)))
        if rows.size:
            begins = self.core.store.live.columns[f"extras/{TRAJECTORY_BEGINS}"]
            rows = rows[begins.take(rows)]
        rows = rows[None if self.capacity is None else -self.capacity :]
        found = rows, np.diff(rows, append=first + index.n_transitions)
        self._known = index, index.version, found
        return found

    def _skipped(self, index: Index) -> int:
        return index.n_transitions - int(self._found(index)[1].sum())

    def _trajectories(self) -> _Trajectories:
        if self._core is None and not self._closed:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return self.core.store.live.look(self._found)

    @property
    def trajectory_num(self) -> int:
        """Trajectories that count."""
        return len(self._trajectories()[0])

    def append(self, experience: Experience) -> NoReturn:
        """Not supported: NotImplementedError."""
        raise NotImplementedError("append: use append_trajectory, with a whole trajectory")

    def append_trajectory(self, trajectory: Sequence[Experience]) -> None:
        """Append a trajectory; a full buffer drops the oldest. Raises as `ReplayBuffer.append`."""
        steps = [checked(one) for one in trajectory]
        if not steps:
            raise SchemaError("trajectory: expected one experience or more, found none")
        self._append_trajectory(steps)
        if self.capacity is None:
            return
        kept = len(self)  # looks up all trajectories
        # The disk space of what does not count is freed once that is the majority.
        if len(self.core) - kept <= max(kept, _FEWEST_TO_RECLAIM):
            return
        self._last = None
        # Opened with a small capacity once, which evicts, and then as usual.
        for self._capacity in (kept, _ALL):
            self.core.close()
            self._begin()

    def get_trajectory(self, trajectory_index: int) -> Sequence[Experience]:
        """The experiences of a trajectory; 0 is the oldest one that counts."""
        begins, lengths = self._trajectories()
        if not -len(begins) <= trajectory_index < len(begins):
            raise IndexError(f"trajectory {trajectory_index}: there are {len(begins)}")
        first = begins[trajectory_index]
        return self._whole(np.arange(first, first + lengths[trajectory_index]))

    def _whole(self, ids: Ids) -> Sequence[Experience]:
        """The trajectory of the experiences with these ids."""
        return self._at(ids)

    def _at(self, ids: Ids) -> list[Experience]:
        """The experiences with these ids; InvalidIdError if one was evicted."""
        return self._experiences(self.core.transitions(ids))

    def sample_trajectories(self, num_samples: int = 1) -> tuple[Any, Info]:
        """Draw trajectories without replacement: one, or a tuple of several; and their weights."""
        whole_number("num_samples", num_samples)
        if num_samples > (count := self.trajectory_num):
            raise SchemaError(
                f"num_samples: expected at most {count}, the number of trajectories; found "
                f"{num_samples}"
            )
        generator = self.core.generator
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

        Returns a tuple of B lists of experiences, and ``{"weights": ones (B, 1)}``. RuntimeError if
        every trajectory is shorter.
        """
        whole_number("num_samples", num_samples)
        whole_number("portion_length", portion_length)
        begins, lengths = self._trajectories()
        longest = int(lengths.max(initial=0))
        if longest < portion_length:
            raise _too_short(longest, portion_length)
        stops = np.where(lengths >= portion_length, lengths, 0).cumsum()
        by_length, in_trajectory = self.core.generator.random((2, num_samples))
        chosen = stops.searchsorted((by_length * stops[-1]).astype(np.int64), "right")
        steps = (in_trajectory * (lengths[chosen] - portion_length + 1)).astype(np.int64)
        return self._portions(begins[chosen] + steps, portion_length)

    def sample_indices_portion(
        self, indices: Sequence[int], portion_length: int = 1
    ) -> tuple[Any, Info]:
        """The portions from these experiences on, moved back to end with their trajectory.

        Returns and raises as `sample_trajectories_portion`; IndexError if there is no such
        experience.
        """
        whole_number("portion_length", portion_length)
        begins, lengths = self._trajectories()
        numbers, stops = checked_indices(indices, int(lengths.sum())), lengths.cumsum()
        chosen = stops.searchsorted(numbers, "right")
        begins, lengths = begins[chosen], lengths[chosen]
        if lengths.min() < portion_length:
            raise _too_short(int(lengths.min()), portion_length)
        steps = numbers - (stops[chosen] - lengths)
        return self._portions(begins + np.minimum(steps, lengths - portion_length), portion_length)

    def _portions(self, begins: Ids, length: int) -> tuple[Any, Info]:
        found = self._at((begins[:, None] + np.arange(length)).ravel())
        parts = tuple(found[i : i + length] for i in range(0, len(found), length))
        return parts, {"weights": np.ones((len(parts), 1))}


class AtariTrajectory(Sequence[Experience]):
    """Experiences of a trajectory, each read when it is used; slices are lists."""

    def __init__(self, read: Callable[[Ids], list[Experience]], ids: Ids) -> None:
        self._read, self._ids = read, ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, key: Any) -> Any:
        """An experience, or a list of them; InvalidIdError if the trajectory was evicted."""
        ids = self._ids[key]
        if not isinstance(key, slice):
            return self._read(np.array([ids]))[0]
        return self._read(ids) if len(ids) else []


class MemoryEfficientAtariTrajectoryBuffer(TrajectoryReplayBuffer):
    """A `TrajectoryReplayBuffer` of stacks of four screens, stored once as bytes, read on use."""

    _stacked_frames = 4

    def _whole(self, ids: Ids) -> Sequence[Experience]:
        return AtariTrajectory(self._at, ids)


def _too_short(found: int, length: int) -> RuntimeError:
    return RuntimeError(f"portion_length: a trajectory of {found} steps is shorter than {length}")
