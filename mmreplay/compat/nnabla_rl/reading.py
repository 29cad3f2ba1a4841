"""Experiences by index, or drawn at random: one after another, or runs of several.

Invariant: what a draw chooses is chosen from the index as it is then, and read as of that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.columns import Ids
from mmreplay.compat.nnabla_rl.experiences import Experience
from mmreplay.compat.nnabla_rl.recording import Recorder
from mmreplay.compat.nnabla_rl.windows import Windows
from mmreplay.episodes import Index
from mmreplay.errors import SchemaError
from mmreplay.gather import Batch
from mmreplay.schema import as_array

__all__ = ["Draw", "Reader", "checked_count"]

Draw = Callable[[Index], Ids]


class Reader:
    """Reads experiences of a recorder's buffer.

    Args:
        recorder: to read from.
        offset: transitions of an index, from the oldest on, that do not count.
    """

    def __init__(self, recorder: Recorder, offset: Callable[[Index], int]) -> None:
        """See the class."""
        self._recorder, self._offset = recorder, offset

    def __len__(self) -> int:
        """Experiences that count."""
        if not self._recorder.is_open:
            return 0
        store = self._recorder.buffer.store
        count = len(store)
        return count - self._offset(store.index)

    def windows(self, index: Index, num_steps: int) -> Windows:
        """The runs of so many experiences."""
        return Windows(self._recorder.buffer.store, index, num_steps, self._offset(index))

    def random(self, num_samples: int, num_steps: int, *, replace: bool) -> Draw:
        """Draws runs uniformly.

        Raises:
            SchemaError: a number out of its range; when it draws, if there are not as many.
        """
        checked_count("num_samples", num_samples)
        checked_count("num_steps", num_steps)
        if not len(self):
            raise SchemaError(f"num_samples: found {num_samples}, but the buffer is empty")
        seed = int(self._recorder.buffer.generator.integers(1 << 62))

        def draw(index: Index) -> Ids:
            windows = self.windows(index, num_steps)
            if windows.count < (1 if replace else num_samples):
                raise SchemaError(
                    f"num_samples: expected at most {windows.count:,}, as many as there are runs "
                    f"of num_steps={num_steps} to draw; found {num_samples:,}"
                )
            rng = np.random.default_rng(seed)  # the same draw again if the rows were evicted
            numbers = rng.choice(windows.count, num_samples, replace=replace)
            return windows.ids(index, windows.at(numbers))

        return draw

    def indexed(self, indices: npt.ArrayLike, num_steps: int) -> Draw:
        """Chooses the runs that begin at these indices.

        Raises:
            SchemaError: no indices or steps; when it draws, for a run past a cut.
            IndexError: when it draws, for one past the newest experience.
        """
        wanted = as_array(indices, "indices")
        if wanted.ndim != 1 or not wanted.size or wanted.dtype.kind not in "iu":
            raise SchemaError(f"indices: expected integers, one or more; found {indices!r:.100}")
        checked_count("num_steps", num_steps)
        if not len(self):
            raise IndexError(f"index {wanted[0]}: the buffer is empty")

        def draw(index: Index) -> Ids:
            offset = self._offset(index)
            count = index.n_transitions - offset
            numbers = np.where(wanted < 0, wanted + count, wanted).astype(np.int64)
            wrong = (numbers < 0) | (numbers + num_steps > count)
            if wrong.any():
                raise IndexError(
                    f"index {wanted[wrong][0]}, num_steps {num_steps}: there are {count:,} "
                    f"experiences"
                )
            windows = self.windows(index, num_steps)
            if (cut := windows.cut(numbers + offset)).size:
                raise SchemaError(
                    f"index {cut[0] - offset}, num_steps {num_steps}: expected steps that follow "
                    f"one another, found the end of an episode that no terminal state ended"
                )
            return windows.ids(index, numbers + offset)

        return draw

    def beginning(self, ids: Ids, num_steps: int) -> Draw:
        """Chooses the runs that begin with the experiences of these ids."""

        def draw(index: Index) -> Ids:
            windows = self.windows(index, num_steps)
            return windows.ids(index, windows.ranks(ids))

        return draw

    def read(self, draw: Draw) -> list[Experience]:
        """The experiences that are drawn, in memory of their own."""
        buffer = self._recorder.buffer
        return self.experiences(buffer.store.sample(draw, buffer.store.gatherer(buffer.settings)))

    def at(self, ids: Ids) -> list[Experience]:
        """The experiences with these ids.

        Raises:
            InvalidIdError: one was evicted.
        """
        buffer = self._recorder.buffer
        return self.experiences(buffer.store.batch(ids, buffer.store.gatherer(buffer.settings)))

    def experiences(self, batch: Batch) -> list[Experience]:
        """The experiences of a batch."""
        states = self._recorder.states.states
        return self._recorder.layout.experiences(
            batch, states(batch.observation), states(batch.next_observation)
        )


def checked_count(name: str, value: Any) -> None:
    """Raise SchemaError unless it is 1 or more."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise SchemaError(f"{name}: expected 1 or more, found {value!r}")
