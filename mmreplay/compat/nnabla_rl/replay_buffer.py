"""The buffer that draws uniformly, which all others derive from, and its variants.

Invariants: index 0 is the oldest experience that counts, ``len(buffer) - 1`` the newest. A run
never joins experiences that do not follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.recorder import (
    TRAJECTORY_BEGINS,
    Experience,
    Recorder,
    checked,
    info_of,
)
from mmreplay.datasets.hindsight import Hindsight
from mmreplay.episode_index import Index, LaneEpisodes
from mmreplay.errors import SchemaError
from mmreplay.ids import Array, Ids
from mmreplay.reading.store import Store
from mmreplay.schema import as_array

Draw = Callable[[Index], Ids]
RewardFunction = Callable[[Array, Array, dict[str, Any]], Any]

_STATE_PARTS = 3


class Runs:
    """The runs of `length` experiences that follow one another, without the `offset` oldest."""

    def __init__(self, store: Store, index: Index, length: int, offset: int = 0) -> None:
        self._index, self._length = index, length
        self._first, self._cuts = index.window(0)[1], np.empty(0, np.int64)
        if length > 1:
            firsts, steps, _ = episodes_of(index)
            begins = (firsts + steps)[firsts + steps < index.window(0)[2]]  # of the next episodes
            # A run goes on after a terminal state, and where its trajectory continues.
            cut = store.live.columns["non_terminals"].take(begins - 1) != 0
            if TRAJECTORY_BEGINS in store.schema.extras:
                cut &= store.live.columns[f"extras/{TRAJECTORY_BEGINS}"].take(begins)
            self._cuts = (begins - self._first)[cut]
        inner = self._cuts[self._cuts > offset]
        bounds = np.concatenate(([offset], inner, [index.n_transitions]))
        self._begins = bounds[:-1]
        self._stops = np.maximum(np.diff(bounds) - length + 1, 0).cumsum()
        self.count = int(self._stops[-1])

    def numbered(self, numbers: Ids) -> Ids:
        """The ids of these runs, 0 <= number < count, one after the other: (B * length,)."""
        run = self._stops.searchsorted(numbers, "right")
        return self.ids(self._begins[run] + numbers - np.concatenate(([0], self._stops))[run])

    def begin(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Whether a run begins at each of these: bool (B,)."""
        ranks = ids - self._first
        fits = ranks + self._length <= self._index.n_transitions
        return fits & ~self.crosses(ranks)

    def crosses(self, ranks: Ids) -> npt.NDArray[np.bool_]:
        """Whether a run from each of these would cross a cut: bool (B,)."""
        inside = self._cuts.searchsorted(ranks, "right")
        last = self._cuts.searchsorted(ranks + (self._length - 1), "right")
        return np.asarray(inside != last, np.bool_)

    def ids(self, ranks: Ids) -> Ids:
        """The ids of the runs that begin after `ranks` experiences: (B * length,), one by one."""
        return self._index.at((ranks[:, None] + np.arange(self._length)).ravel())

    def ids_from(self, ids: Ids) -> Ids:
        """The ids of the runs that begin at these."""
        return self.ids(ids - self._first)


def episodes_of(index: Index) -> tuple[Ids, Ids, LaneEpisodes]:
    """The first rows (here also ids) and steps of the ended episodes, (E,) each; all episodes."""
    found = index.episodes(0)
    return *index.ended(0, np.arange(found.start, found.stop)), found


def checked_indices(indices: npt.ArrayLike, count: int, num_steps: int = 1) -> Ids:
    """Indices of runs among `count` experiences; a negative one counts from the newest."""
    wanted = as_array(indices, "indices")
    if wanted.ndim != 1 or not wanted.size or wanted.dtype.kind not in "iu":
        raise SchemaError(f"indices: expected integers, one or more; found {indices!r:.100}")
    numbers = np.where(wanted < 0, wanted + count, wanted).astype(np.int64)
    wrong = (numbers < 0) | (numbers + num_steps > count)
    if wrong.any():
        raise IndexError(
            f"index {wanted[wrong][0]}, num_steps {num_steps}: there are {count:,} experiences"
        )
    return numbers


class ReplayBuffer(Recorder):
    """Experiences (s, a, r, non_terminal, s_next, info), drawn uniformly and without replacement.

    Keeps the newest `capacity`, or all for None. `path` is of a new or existing store; None for a
    temporary one. FormatError if another class made the store, else as `mmreplay.ReplayBuffer`.
    """

    _replace = False

    def __init__(self, capacity: int | None = None, *, path: StorePath = None) -> None:
        self._wanted = None if capacity is None else whole_number("capacity", capacity)
        super().__init__(path, self._most())

    @property
    def capacity(self) -> int | None:
        """As given."""
        return self._wanted

    def _most(self) -> int | None:
        """The capacity of the store."""
        return self._wanted

    def _skipped(self, index: Index) -> int:  # noqa: ARG002  all count
        """How many transitions of an index, from the oldest on, do not count."""
        return 0

    def append(self, experience: Experience) -> None:
        """Append an experience; SchemaError if it does not fit the first one."""
        self._append(experience)

    def append_all(self, experiences: Iterable[Experience]) -> None:
        """Append experiences in order; see `append`."""
        for experience in experiences:
            self.append(experience)

    def sample(self, num_samples: int = 1, num_steps: int = 1) -> tuple[Any, dict[str, Any]]:
        """Draw experiences, or runs of `num_steps` that follow one another.

        Returns a list of B experiences, or a tuple of `num_steps` such lists, and ``{"weights": (B,
        1)}``. SchemaError, a ValueError, if there are too few.
        """
        whole_number("num_samples", num_samples)
        whole_number("num_steps", num_steps)
        if not len(self):
            raise SchemaError(f"num_samples: found {num_samples}, but the buffer is empty")
        seed = int(self.core.generator.integers(1 << 62))

        def draw(index: Index) -> Ids:
            runs = self._found_runs(index, num_steps)
            if runs.count < (1 if self._replace else num_samples):
                raise SchemaError(
                    f"num_samples: expected at most {runs.count:,}, the number of runs of "
                    f"num_steps={num_steps}; found {num_samples:,}"
                )
            rng = np.random.default_rng(seed)  # the same if it is drawn again
            return runs.numbered(rng.choice(runs.count, num_samples, replace=self._replace))

        return self._runs(draw, num_steps)

    def sample_indices(
        self, indices: Sequence[int], num_steps: int = 1
    ) -> tuple[Any, dict[str, Any]]:
        """The experiences with these indices, or the runs that begin there; see `sample`.

        SchemaError, a ValueError, without indices, or for a run across a time limit; IndexError if
        there is no such experience.
        """
        return self._runs(self._indexed(indices, num_steps), num_steps)

    def _indexed(self, indices: npt.ArrayLike, num_steps: int) -> Draw:
        whole_number("num_steps", num_steps)
        if not len(self):
            checked_indices(indices, 0)

        def draw(index: Index) -> Ids:
            offset = self._skipped(index)
            ranks = checked_indices(indices, index.n_transitions - offset, num_steps) + offset
            runs = self._found_runs(index, num_steps)
            if (cut := ranks[runs.crosses(ranks)]).size:
                raise SchemaError(
                    f"index {cut[0] - offset}, num_steps {num_steps}: expected steps that follow "
                    f"one another, found the end of an episode that did not end in a terminal state"
                )
            return runs.ids(ranks)

        return draw

    def _found_runs(self, index: Index, num_steps: int) -> Runs:
        return Runs(self.core.store, index, num_steps, self._skipped(index))

    def _runs(self, draw: Draw, num_steps: int) -> tuple[Any, dict[str, Any]]:
        found = self._read(draw)
        runs = tuple(found[step::num_steps] for step in range(num_steps))
        return (found if num_steps == 1 else runs), {"weights": np.ones((len(runs[0]), 1))}

    def _read(self, draw: Draw) -> list[Any]:
        """The drawn experiences, as copies."""
        live = self.core.store.live
        return self._experiences(live.gather(draw, live.gatherer(self.core.settings)))

    def update_priorities(self, errors: npt.ArrayLike) -> None:
        """Does nothing: draws are uniform."""

    def __len__(self) -> int:
        if self._core is None and not self._closed:
            return 0
        return self.core.store.live.look(lambda index: index.n_transitions - self._skipped(index))

    def __getitem__(self, item: int) -> Any:
        """The experience with this index; -1 is the newest one."""
        return self._read(self._indexed([item], 1))[0]


class DecorableReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that returns ``decor_fun(experience)``, of a copy, for each experience."""

    def __init__(
        self, capacity: int | None, decor_fun: Callable[[Any], Any], *, path: StorePath = None
    ) -> None:
        super().__init__(capacity, path=path)
        self._decor_fun = decor_fun

    def _read(self, draw: Draw) -> list[Any]:
        return [self._decor_fun(experience) for experience in super()._read(draw)]


class ReplacementSamplingReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that draws with replacement, any number of experiences."""

    _replace = True


class MemoryEfficientAtariBuffer(ReplayBuffer):
    """A `ReplayBuffer` of screens as floats in [0, 1] or bytes, `stacked_frames` per state."""

    def __init__(self, capacity: int, stacked_frames: int = 4, *, path: StorePath = None) -> None:
        self._stacked_frames = stacked_frames
        super().__init__(capacity, path=path)


class HindsightReplayBuffer(ReplayBuffer):
    """Samples a share of the experiences with a goal that the same episode reached later.

    States are tuples (observation, desired_goal, achieved_goal). `reward_function(achieved_goal,
    desired_goal, info)` gets the goal achieved after a step, the new desired goal, and the info of
    the experience; `hindsight_prob` is the share.

    Source: Andrychowicz et al. 2017, Hindsight Experience Replay: strategy "future".
    """

    def __init__(
        self,
        reward_function: RewardFunction,
        hindsight_prob: float = 0.8,
        capacity: int | None = None,
        *,
        path: StorePath = None,
    ) -> None:
        self._reward_function, self._probability = reward_function, hindsight_prob
        self._hindsight: Hindsight | None = None
        super().__init__(capacity, path=path)

    def append(self, experience: Experience) -> None:
        """See `ReplayBuffer.append`; RuntimeError if the state is not a tuple of three."""
        s, action, reward, non_terminal, s_next, info = checked(experience)
        if not isinstance(s, tuple) or len(s) != _STATE_PARTS:
            raise RuntimeError(
                "state: expected a tuple (observation, desired_goal, achieved_goal), found "
                f"{type(s).__name__}"
            )
        if np.size(reward) != 1:
            raise SchemaError(f"reward: expected one number, found {reward!r:.100}")
        value = float(np.asarray(reward).reshape(()))
        super().append((s, action, value, non_terminal, s_next, info))

    def _runs(self, draw: Draw, num_steps: int) -> tuple[Any, dict[str, Any]]:
        if num_steps > 1:
            raise NotImplementedError("num_steps: expected 1, as goals are of one step each")
        if self._hindsight is None:
            function = self._reward_function  # not `self`: that would be a cycle

            def rewards(achieved: Array, desired: Array, extras: dict[str, Array]) -> Array:
                pairs = enumerate(zip(achieved, desired, strict=True))
                return np.array([float(function(*pair, info_of(extras, i))) for i, pair in pairs])

            self._hindsight = Hindsight(
                self.core, rewards, "future", self._probability, achieved_goal="2", desired_goal="1"
            )
        batch = self._hindsight.relabel(self.core.store.live.look(draw))
        return self._experiences(batch), {"weights": np.ones((len(batch), 1))}


class BufferIterator:
    """Goes through a buffer in batches; raises StopIteration at the end of each epoch.

    An epoch has each experience that the buffer holds when it begins. With `shuffle` the order
    comes from numpy's global generator. With `repeat` the last batch is filled from the next epoch,
    which continues from there; otherwise it is shorter, and iteration ends.
    """

    def __init__(
        self, buffer: ReplayBuffer, batch_size: int, shuffle: bool = True, repeat: bool = True
    ) -> None:
        self._buffer, self._batch_size = buffer, whole_number("batch_size", batch_size)
        self._shuffle, self._repeat = shuffle, repeat
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self._is_new_epoch = False
        self._left: Ids = np.arange(len(self._buffer))
        if self._shuffle:
            # As the original, which draws from numpy's global generator.
            self._left = np.random.permutation(self._left)  # noqa: NPY002

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Any, dict[str, Any]]:
        """The next batch, as from `sample_indices`; StopIteration once after each epoch."""
        if self._is_new_epoch:
            self._is_new_epoch = False
            raise StopIteration
        if self._repeat and not len(self._left):
            self.reset()
        chosen = self._take(self._batch_size)
        if not len(chosen):
            raise StopIteration
        missing = self._batch_size - len(chosen)
        if self._repeat and missing:
            self.reset()
            chosen = np.concatenate((chosen, self._take(missing)))
        self._is_new_epoch = missing > 0 or not len(self._left)
        return self._buffer.sample_indices(chosen.tolist())

    next = __next__

    def is_new_epoch(self) -> bool:
        """Whether the previous batch was the last one of an epoch."""
        return self._is_new_epoch

    def _take(self, count: int) -> Ids:
        taken, self._left = self._left[:count], self._left[count:]
        return taken
