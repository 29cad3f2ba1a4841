"""Which episodes of a store count as trajectories, and where parts of them lie.

Invariant: an episode that was evicted in part is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt

from mmreplay.columns import Ids
from mmreplay.compat.nnabla_rl.reading import checked_count
from mmreplay.episodes import Index
from mmreplay.errors import SchemaError
from mmreplay.schema import as_array

__all__ = ["Episodes"]


@dataclasses.dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes of a store of one lane, oldest first.

    Attributes:
        begins: (E,) their first rows.
        lengths: (E,) how many steps each has.
    """

    begins: Ids
    lengths: Ids

    @classmethod
    def of(cls, index: Index, newest: int | None) -> Self:
        """The newest so many whole ones; None for all."""
        _, first, head = index.window(0)
        begins = index.resets(0)
        lengths = np.diff(begins, append=head) - 1
        whole = (begins >= first) & (lengths > 0)
        kept = slice(None if newest is None else -newest, None)
        return cls(begins[whole][kept], lengths[whole][kept])

    def __len__(self) -> int:
        """E."""
        return len(self.begins)

    def whole(self, number: int) -> tuple[int, int]:
        """The first row and the length of an episode.

        Raises:
            IndexError: there are not as many.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"trajectory {number}: there are {len(self)}")
        return int(self.begins[number]), int(self.lengths[number])

    def choose(self, count: int, generator: Callable[[], np.random.Generator]) -> list[int]:
        """The numbers of so many episodes, drawn without replacement.

        Raises:
            SchemaError: there are not as many.
        """
        checked_count("num_samples", count)
        if count > len(self):
            raise SchemaError(
                f"num_samples: expected at most {len(self)}, as many as there are trajectories; "
                f"found {count}"
            )
        numbers: list[int] = generator().choice(len(self), count, replace=False).tolist()
        return numbers

    def draw(self, draws: Callable[[], npt.NDArray[np.float64]], length: int) -> Ids:
        """The first rows of parts: an episode by its length, then a place in it.

        Args:
            draws: gives (2, B) in [0, 1): for the episodes and for the places.
            length: steps a part.

        Raises:
            RuntimeError: no episode is as long.
        """
        checked_count("portion_length", length)
        stops = np.where(self.lengths >= length, self.lengths, 0).cumsum()
        if not stops.size or not stops[-1]:
            raise RuntimeError(_too_short(int(self.lengths.max(initial=0)), length))
        which, where = draws()
        chosen = stops.searchsorted((which * stops[-1]).astype(np.int64), "right")
        room = self.lengths[chosen] - length + 1
        return np.asarray(self.begins[chosen] + (where * room).astype(np.int64), np.int64)

    def portions(self, indices: npt.ArrayLike, length: int) -> Ids:
        """The first rows of the parts from these experiences on, moved back to fit if need be.

        Raises:
            SchemaError: no indices, or no length.
            IndexError: no such experience.
            RuntimeError: an episode that is not as long.
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


def _too_short(found: int, length: int) -> str:
    return f"portion_length: a trajectory of {found} steps is shorter than {length}; ask for less"
