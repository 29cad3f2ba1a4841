"""Prioritized sampling: transitions in proportion to how surprising they were.

Source: Schaul et al. (2016), "Prioritized Experience Replay": probabilities (equation 1), the
proportional and the rank-based variant (section 3.3), importance weights (section 3.4).

Invariant: a row has mass if and only if it is a transition that can be sampled; one that came since
has the largest priority that was ever given, one that went has none.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmreplay.columns import Ids
from mmreplay.episodes import Index
from mmreplay.errors import EmptyBufferError, InvalidIdError, SchemaError
from mmreplay.format import LANE_SHIFT
from mmreplay.priorities import PriorityColumn
from mmreplay.samplers.ranked import RankDistribution, RankedPriorities
from mmreplay.samplers.tree import SumTree
from mmreplay.schema import as_array

__all__ = ["Prioritization", "PrioritizedSampler"]

Doubles = npt.NDArray[np.float64]

_ROW_MASK = (1 << LANE_SHIFT) - 1
_FIRST_PRIORITY = 1.0
_LEAST = float(np.finfo(np.float64).tiny)  # a priority of 0 would mean that the row is gone


@dataclasses.dataclass(frozen=True, slots=True)
class Prioritization:
    """How priorities become probabilities and weights.

    Args:
        alpha: how much priorities count, in [0, 1] as a rule; 0 is uniform.
        beta: how far weights make up for the probabilities, in [0, 1]; at the first batch.
        betasteps: batches after which beta has come to 1, linearly; None leaves it as it is.
        epsilon: added to an error's size, so that no transition is lost for ever; above 0.
        error_clip: (low, high) that errors are clipped to first; None for no clipping.
        variant: ``proportional`` (to priority ** alpha) or ``rank`` (to (1 / rank) ** alpha).
        stratified: one draw from each of B equal shares of the mass, instead of B free ones.
        normalize: weights are divided by the largest one of the ``batch``, or of the ``buffer``.

    Raises:
        SchemaError: a value out of its range.
    """

    alpha: float = 0.6
    beta: float = 0.4
    betasteps: int | None = None
    epsilon: float = 1e-6
    error_clip: tuple[float, float] | None = None
    variant: str = "proportional"
    stratified: bool = False
    normalize: str = "batch"

    def __post_init__(self) -> None:
        """Check what the user gave."""
        for name, value, least, most in (
            ("alpha", self.alpha, 0, math.inf),
            ("beta", self.beta, 0, 1),
            ("epsilon", self.epsilon, 0, math.inf),
        ):
            if not _is_number(value) or not least <= value <= most or math.isinf(value):
                text = "of 0 or more" if math.isinf(most) else f"in [{least}, {most}]"
                raise SchemaError(f"{name}: expected a number {text}, found {value!r}")
        steps: Any = self.betasteps
        if steps is not None and (not isinstance(steps, (int, np.integer)) or steps < 1):
            raise SchemaError(f"betasteps: expected 1 or more, or None; found {steps!r}")
        clip: Any = self.error_clip
        if clip is not None and (
            not isinstance(clip, (tuple, list))
            or [*map(_is_number, clip)] != [True, True]
            or not clip[0] < clip[1]
        ):
            raise SchemaError(f"error_clip: expected (low, high), or None; found {clip!r}")
        for name, text, known in (
            ("variant", self.variant, ("proportional", "rank")),
            ("normalize", self.normalize, ("batch", "buffer")),
        ):
            if text not in known:
                raise SchemaError(f"{name}: expected one of {', '.join(known)}; found {text!r}")

    def beta_at(self, n_batches: int) -> float:
        """Beta after that many batches."""
        if self.betasteps is None:
            return self.beta
        return self.beta + (1 - self.beta) * min(n_batches / self.betasteps, 1.0)

    def priorities(self, errors: npt.ArrayLike, size: int) -> Doubles:
        """Priorities from errors: (size,) float64, above 0.

        Raises:
            SchemaError: no numbers, or not finite, or not as many.
        """
        found = as_array(errors, "errors")
        if found.shape != (size,) or found.dtype.kind not in "iufb":
            raise SchemaError(
                f"errors: expected numbers ({size},), one an id; found {found.dtype} {found.shape}"
            )
        if self.error_clip is not None:
            found = np.clip(found, *self.error_clip)
        out: Doubles = np.abs(found, dtype=np.float64)
        out += self.epsilon
        if out.size and not math.isfinite(out.max()):
            wrong = (~np.isfinite(out)).argmax()
            raise SchemaError(f"errors: expected finite numbers, found {found[wrong]} at {wrong}")
        return out if self.epsilon else np.maximum(out, _LEAST)


class Masses(Protocol):
    """What makes probabilities of priorities, by position."""

    def load(self, priorities: Doubles) -> None:
        """Take all priorities, (n,); 0 where there is none."""

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """Take some, (B,); the last one of a position that comes twice."""

    def settle(self) -> None:
        """Do what is left to do of the sets before."""

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """Positions and their probabilities, (B,) each, for draws in [0, 1)."""

    def least(self) -> float:
        """The smallest probability of a position that can be drawn."""


class Proportional:
    """P(i) = p_i ** alpha / sum."""

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self._tree = SumTree(np.zeros(0))

    def _masses(self, priorities: Doubles) -> Doubles:
        out: Doubles = priorities**self._alpha
        if not 0 < self._alpha <= 1:  # 0 ** 0 is 1, and a tiny mass must not vanish
            out = np.where(priorities > 0, np.maximum(out, _LEAST), 0.0)
        return out

    def load(self, priorities: Doubles) -> None:
        """See `Masses`."""
        self._tree = SumTree(self._masses(priorities))

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """See `Masses`."""
        self._tree.set(positions, self._masses(priorities))

    def settle(self) -> None:
        """See `Masses`."""
        self._tree.settle()

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """See `Masses`."""
        positions, masses = self._tree.draw(draws)
        return positions, masses / self._tree.total

    def least(self) -> float:
        """See `Masses`."""
        masses = self._tree.masses
        return float(masses[masses > 0].min()) / self._tree.total


class RankBased:
    """P(i) = rank(i) ** -alpha / sum, the largest priority having rank 1."""

    def __init__(self, alpha: float) -> None:
        self._distribution = RankDistribution(alpha)
        self._ranked = RankedPriorities.from_arrays(np.zeros(0))

    def load(self, priorities: Doubles) -> None:
        """See `Masses`."""
        self._ranked = RankedPriorities.from_arrays(priorities)

    def set(self, positions: Ids, priorities: Doubles) -> None:
        """See `Masses`."""
        self._ranked.set(positions, priorities)

    def settle(self) -> None:
        """See `Masses`: nothing is put off."""

    def draw(self, draws: Doubles) -> tuple[Ids, Doubles]:
        """See `Masses`."""
        ranks = self._distribution.draw(len(self._ranked), draws)
        return self._ranked.at(ranks), self._distribution.probability(ranks, len(self._ranked))

    def least(self) -> float:
        """See `Masses`."""
        n = len(self._ranked)
        return float(self._distribution.probability(np.array([n]), n)[0])


class PrioritizedSampler:
    """Draws transitions by priorities, and takes new ones.

    Args:
        column: where the priorities stand.
        how: the settings.
        index: of the store, as it is now.
        largest: the largest priority ever given, if it is known; else that of the column.

    Attributes:
        how: the settings.
        largest: the largest priority ever given; 1 until one was.
        n_late: updates that came too late: their transitions had been evicted.
    """

    def __init__(
        self, column: PriorityColumn, how: Prioritization, index: Index, largest: float | None
    ) -> None:
        self.how = how
        self.n_late = 0
        self._column = column
        self._masses: Masses = (
            Proportional(how.alpha) if how.variant == "proportional" else RankBased(how.alpha)
        )
        self._lock = threading.RLock()
        self._windows = [index.window(lane) for lane in range(column.n_lanes)]
        self._index, self._version = index, index.version
        self._load(index, largest)

    def _load(self, index: Index, largest: float | None) -> None:
        """Take what the column holds of the transitions that there are."""
        column = self._column
        ids = index.ids()
        ids = ids[ids >> LANE_SHIFT < column.n_lanes]
        positions = column.positions(ids)
        found = column.values[positions]
        # Whatever is no priority was never given, or was damaged.
        found[~((found > 0) & (found < np.inf))] = 0
        self.largest = max(largest or 0.0, float(found.max(initial=0)))
        if not self.largest:
            self.largest = _FIRST_PRIORITY
        found[found == 0] = self.largest
        column.values[:] = 0
        column.values[positions] = found
        self._set_bounds()
        self._masses.load(column.values)

    def leave_parent(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    # ------------------------------------------------------------ following the store

    def _set_bounds(self) -> None:
        lanes = range(len(self._windows))
        shifted = np.array([lane << LANE_SHIFT for lane in lanes], np.int64)
        self._first = shifted + np.array([first for _, first, _ in self._windows])
        self._stop = shifted + np.array([max(head - 1, 0) for _, _, head in self._windows])

    def _follow(self, index: Index) -> None:
        """Give mass to the transitions that came, and none to those that went."""
        if index is self._index and index.version == self._version:
            return
        windows = [index.window(lane) for lane in range(len(self._windows))]
        column = self._column
        before = column.generation
        column.reach([(base, head) for base, _, head in windows])
        changed, priorities = [], []
        for lane, (known, (_, first, head)) in enumerate(zip(self._windows, windows, strict=True)):
            _, old_first, old_head = known
            start, stop = max(old_head - 1, first, 0), max(head - 1, 0)
            came = np.arange(start, max(stop, start))
            new = np.full(came.size, self.largest)
            # A row before a reset is the last of its episode: no transition.
            new[index.resets_between(lane, start + 1, stop + 1) - 1 - start] = 0
            gone = np.arange(max(old_first, column.lowest(lane)), min(first, old_head - 1))
            for rows, values in ((came, new), (gone, np.zeros(gone.size))):
                if rows.size:
                    changed.append(rows + column.position(lane, 0))
                    priorities.append(values)
        self._windows = windows
        self._index, self._version = index, index.version
        self._set_bounds()
        if changed:
            positions, values = np.concatenate(changed), np.concatenate(priorities)
            column.values[positions] = values
            if column.generation == before:
                self._masses.set(positions, values)
        if column.generation != before:
            self._masses.load(column.values)

    # ------------------------------------------------------------ drawing

    def draw(self, index: Index, draws: Doubles) -> tuple[Ids, Doubles]:
        """Ids of transitions and their probabilities, (B,) each.

        Args:
            index: of the store, as it is now.
            draws: (B,) in [0, 1).

        Raises:
            EmptyBufferError: there is no transition yet.
        """
        if not index.n_transitions:
            raise EmptyBufferError(
                "there is no transition to sample yet; a transition needs a reset and a step"
            )
        with self._lock:
            self._follow(index)
            if self.how.stratified:
                draws = (np.arange(draws.size) + draws) / draws.size
            positions, probabilities = self._masses.draw(draws)
            return self._column.ids(positions), probabilities

    def weights(self, index: Index, probabilities: Doubles, beta: float) -> Doubles:
        """Importance weights, (B,): (N * P) ** -beta, divided by the largest one."""
        out: Doubles = (index.n_transitions * probabilities) ** -beta
        if self.how.normalize == "batch":
            largest = out.max()
        else:
            with self._lock:
                largest = (index.n_transitions * self._masses.least()) ** -beta
        out /= largest
        return out

    # ------------------------------------------------------------ updating

    def update(self, index: Index, ids: Ids, priorities: Doubles) -> int:
        """Give transitions other priorities; those that were evicted since are left out.

        Args:
            index: of the store, as it is now.
            ids: (B,) int64.
            priorities: (B,), above 0.

        Returns:
            how many were left out.

        Raises:
            InvalidIdError: an id that never was a transition.
        """
        with self._lock:
            self._follow(index)
            late = self._late(index, ids)
            if late is not None:
                ids, priorities = ids[~late], priorities[~late]
            n_late = 0 if late is None else int(np.count_nonzero(late))
            self.n_late += n_late
            if ids.size:
                positions = self._column.positions(ids)
                self._column.values[positions] = priorities
                self._masses.set(positions, priorities)
                self.largest = max(self.largest, float(priorities.max()))
                # Here and not when the next batch is drawn, which many a loop waits for.
                self._masses.settle()
            return n_late

    def _late(self, index: Index, ids: Ids) -> npt.NDArray[np.bool_] | None:
        """Which of the ids are of transitions that are gone; None if none is."""
        if len(self._first) == 1:
            inside = bool(ids.size) and ids.min() >= self._first[0] and ids.max() < self._stop[0]
        else:
            lanes = (ids >> LANE_SHIFT).clip(0, len(self._first) - 1)
            inside = bool(((ids >= self._first[lanes]) & (ids < self._stop[lanes])).all())
        if inside and self._column.values.take(self._column.positions(ids)).all():
            return None
        lanes = ids >> LANE_SHIFT
        known = (ids >= 0) & (lanes < len(self._first))
        late: npt.NDArray[np.bool_] = known & (ids < self._first[np.where(known, lanes, 0)])
        wrong = index.invalid(ids) & ~late
        if wrong.any():
            raise _no_transition(int(ids[wrong][0]))
        return late

    def priorities(self, index: Index, ids: Ids) -> Doubles:
        """The priorities of valid transitions, (B,).

        Raises:
            InvalidIdError: an id that is none.
        """
        with self._lock:
            self._follow(index)
            wrong = index.invalid(ids)
            if wrong.any():
                raise _no_transition(int(ids[wrong][0]))
            return self._column.values[self._column.positions(ids)]


def _no_transition(wrong: int) -> InvalidIdError:
    return InvalidIdError(
        f"id {wrong} (lane {wrong >> LANE_SHIFT}, row {wrong & _ROW_MASK}) is no transition; use "
        f"the ids that a batch came with"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
