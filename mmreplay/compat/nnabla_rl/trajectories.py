"""Buffers of whole trajectories.

A trajectory is stored as one episode, or as several if its steps do not all follow one another; a
column tells where it begins.

Invariant: the newest `num_trajectories` count, and of those that went nothing is left in any
length, index or probability. A trajectory that was evicted in part does not count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.reader import checked_count, episodes_of
from mmreplay.compat.nnabla_rl.recorder import TRAJECTORY_BEGINS, Recorder
from mmreplay.compat.nnabla_rl.replay_buffer import ReplayBuffer
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.schema import as_array

Info = dict[str, Any]
Found = TypeVar("Found")

_ALL = 1 << 39
_FEWEST_TO_RECLAIM = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Trajectories:
    """The trajectories of a store of one lane that count, oldest first.

    Attributes:
        begins: (E,) how many transitions of the index come before each.
        lengths: (E,) how many steps each has.
    """

    begins: Ids
    lengths: Ids

    @classmethod
    def of(
        cls, index: Index, is_first: Callable[[Ids], npt.NDArray[np.bool_]], most: int | None
    ) -> Self:
        """The newest `most` whole ones; None for all.

        `is_first` tells of rows whether a trajectory begins with them.
        """
        first = index.window(0)[1]
        rows, _, others = episodes_of(index)
        running = (others.whole() & (others.steps > 0)).nonzero()[0]
        rows = np.concatenate((rows[rows >= first], others.firsts(running)))
        if rows.size:
            rows = rows[is_first(rows)]
        begins = rows[None if most is None else -most :] - first
        return cls(begins, np.diff(begins, append=index.n_transitions))

    def __len__(self) -> int:
        return len(self.begins)

    def whole(self, number: int) -> Ids:
        """The places of a trajectory's steps in the index; IndexError if there are not as many."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"trajectory {number}: there are {len(self)}")
        return np.arange(self.begins[number], self.begins[number] + self.lengths[number])

    def choose(self, count: int, generator: Callable[[], np.random.Generator]) -> list[int]:
        """So many numbers, drawn without replacement; SchemaError if there are not as many."""
        checked_count("num_samples", count)
        if count > len(self):
            raise SchemaError(
                f"num_samples: expected at most {len(self)}, as many as there are trajectories; "
                f"found {count}"
            )
        numbers: list[int] = generator().choice(len(self), count, replace=False).tolist()
        return numbers

    def draw(self, draws: Callable[[], npt.NDArray[np.float64]], length: int) -> Ids:
        """The first places of parts: a trajectory by its length, then a place in it.

        `draws` gives (2, B) in [0, 1), for the one and the other. Raises RuntimeError if no
        trajectory has `length` steps.
        """
        checked_count("portion_length", length)
        stops = np.where(self.lengths >= length, self.lengths, 0).cumsum()
        if not stops.size or not stops[-1]:
            raise RuntimeError(_too_short(int(self.lengths.max(initial=0)), length))
        by_length, in_trajectory = draws()
        chosen = stops.searchsorted((by_length * stops[-1]).astype(np.int64), "right")
        room = self.lengths[chosen] - length + 1
        return np.asarray(self.begins[chosen] + (in_trajectory * room).astype(np.int64), np.int64)

    def portions(self, indices: npt.ArrayLike, length: int) -> Ids:
        """The first places of the parts from these experiences on, moved back to fit if need be.

        Raises SchemaError without indices or length, IndexError if there is no such experience,
        RuntimeError if its trajectory is not as long.
        """
        checked_count("portion_length", length)
        wanted = as_array(indices, "indices")
        if wanted.ndim != 1 or not wanted.size or wanted.dtype.kind not in "iu":
            raise SchemaError(f"indices: expected integers, one or more; found {indices!r:.100}")
        stops = self.lengths.cumsum()
        total = int(self.lengths.sum())
        numbers = np.where(wanted < 0, wanted + total, wanted).astype(np.int64)
        wrong = (numbers < 0) | (numbers >= total)
        if wrong.any():
            raise IndexError(f"index {wanted[wrong][0]}: there are {total:,} experiences")
        chosen = stops.searchsorted(numbers, "right")
        lengths = self.lengths[chosen]
        if lengths.min() < length:
            raise RuntimeError(_too_short(int(lengths.min()), length))
        steps = numbers - (stops[chosen] - lengths)
        return np.asarray(self.begins[chosen] + np.minimum(steps, lengths - length), np.int64)


class Finder:
    """The `most` newest trajectories of a recorder's store; looked up again once it has changed."""

    def __init__(self, recorder: Recorder, most: int | None) -> None:
        self._recorder, self._most = recorder, most
        self._known: tuple[Index, int, Trajectories] | None = None

    def find(self, index: Index) -> Trajectories:
        """Those of an index, whose lock the caller holds."""
        known = self._known
        if known is None or known[0] is not index or known[1] != index.version:
            column = self._recorder.core.store.live.columns[f"extras/{TRAJECTORY_BEGINS}"]
            known = index, index.version, Trajectories.of(index, column.take, self._most)
            self._known = known
        return known[2]

    def skipped(self, index: Index) -> int:
        """How many of an index's transitions, from the oldest on, do not count."""
        return index.n_transitions - int(self.find(index).lengths.sum())


class TrajectoryReplayBuffer(ReplayBuffer):
    """A buffer that trajectories are appended to and drawn from.

    Args:
        num_trajectories: most trajectories to keep, the newest; None keeps all.
        path: as for `ReplayBuffer`.
    """

    def __init__(self, num_trajectories: int | None = None, *, path: StorePath = None) -> None:
        super().__init__(num_trajectories, path=path)

    def _most(self) -> int | None:
        # The capacity is one of trajectories, which `_reclaim` sees to.
        return None if self._capacity is None else _ALL

    def _skipping(self) -> Callable[[Index], int]:
        self._finder = Finder(self._recorder, self._capacity)
        return self._finder.skipped

    def _look(self, read: Callable[[Callable[[Ids], Ids], Trajectories], Found]) -> Found:
        """What `read` finds in the trajectories as they are now; it also gets `Index.at`."""
        if not self._recorder.is_open:
            return read(np.asarray, Trajectories(np.empty(0, np.int64), np.empty(0, np.int64)))
        find = self._finder.find
        return self._recorder.core.store.live.look(lambda index: read(index.at, find(index)))

    @property
    def trajectory_num(self) -> int:
        """Trajectories that count."""
        return self._look(lambda _, found: len(found))

    def append(self, experience: Experience) -> NoReturn:
        """Not here: NotImplementedError."""
        raise NotImplementedError("append: use append_trajectory, with a whole trajectory")

    def append_all(self, experiences: Iterable[Experience]) -> NoReturn:
        """Not here: NotImplementedError."""
        raise NotImplementedError("append_all: use append_trajectory, with a whole trajectory")

    def append_trajectory(self, trajectory: Sequence[Experience]) -> None:
        """Append a trajectory; the oldest goes if the buffer is full.

        Raises:
            SchemaError: no step, or one that is not like the first.
            DiskFullError, FailedStoreError, ClosedError: as the writer.
        """
        self._recorder.append_trajectory(trajectory)
        if self._capacity is not None:
            self._reclaim()

    def _reclaim(self) -> None:
        """Free the disk of what does not count, once that is more than what does."""
        kept = len(self)
        if len(self._recorder.core.store) - kept > max(kept, _FEWEST_TO_RECLAIM):
            self._recorder.open_again(kept)

    def get_trajectory(self, trajectory_index: int) -> Sequence[Experience]:
        """The experiences of a trajectory; 0 is the oldest one that counts."""
        return self._whole(self._look(lambda at, found: at(found.whole(trajectory_index))))

    def _whole(self, ids: Ids) -> Sequence[Experience]:
        """The trajectory of the experiences with these ids."""
        return self._reader.at(ids)

    def sample_trajectories(self, num_samples: int = 1) -> tuple[Any, Info]:
        """Draw trajectories uniformly, without replacement; SchemaError if there are not as many.

        Returns:
            a trajectory, or for more than one a tuple of them; and ``{"weights": ones (B, 1)}``.
        """
        return self.sample_indices_trajectory(
            self._look(
                lambda _, found: found.choose(num_samples, lambda: self._recorder.core.generator)
            )
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
        """Draw a trajectory by its length, and so many of its steps; B times, with replacement.

        Returns:
            a tuple of B lists of experiences, and ``{"weights": ones (B, 1)}``.

        Raises:
            SchemaError (a ValueError): a number out of its range.
            RuntimeError: no trajectory is as long.
        """
        checked_count("num_samples", num_samples)

        def draws() -> npt.NDArray[np.float64]:
            return self._recorder.core.generator.random((2, num_samples))

        return self._parts(lambda found: found.draw(draws, portion_length), portion_length)

    def sample_indices_portion(
        self, indices: Sequence[int], portion_length: int = 1
    ) -> tuple[Any, Info]:
        """So many steps from each of these experiences on, or to the end of its trajectory.

        Returns:
            as `sample_trajectories_portion`.

        Raises:
            SchemaError (a ValueError): no indices, or a number out of its range.
            IndexError: no such experience.
            RuntimeError: its trajectory is not as long.
        """
        return self._parts(lambda found: found.portions(indices, portion_length), portion_length)

    def _parts(self, begins: Callable[[Trajectories], Ids], length: int) -> tuple[Any, Info]:
        def look(at: Callable[[Ids], Ids], trajectories: Trajectories) -> Ids:
            return at((begins(trajectories)[:, None] + np.arange(length)).ravel())

        found = self._reader.at(self._look(look))
        parts = tuple(found[i : i + length] for i in range(0, len(found), length))
        return parts, {"weights": np.ones((len(parts), 1))}


def _too_short(found: int, length: int) -> str:
    return f"portion_length: a trajectory of {found} steps is shorter than {length}; ask for less"
