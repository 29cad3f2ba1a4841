"""Prioritized sampling: transitions in proportion to how surprising they were.

Source: Schaul et al. (2016), "Prioritized Experience Replay": probabilities (equation 1), the
proportional and the rank-based variant (section 3.3), importance weights (section 3.4).

Invariant: a row has mass if and only if it is a transition that can be sampled; new ones have the
largest priority ever given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_number, low_and_high, whole_number_or_none
from mmreplay.episode_index import Index
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.sampling.draws import check_not_empty
from mmreplay.sampling.priority_variants import MAX_PRIORITY, MIN_PRIORITY, Proportional, RankBased
from mmreplay.schema import as_array
from mmreplay.storage.priority_column import PriorityColumn

Doubles = npt.NDArray[np.float64]

_FIRST_PRIORITY = 1.0
_PIECE = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Prioritization:
    """How priorities become probabilities and weights.

    Args:
        alpha: how much priorities count, usually in [0, 1]; 0 is uniform.
        beta: how far weights correct for the probabilities, in [0, 1], at the first batch.
        betasteps: batches after which beta is 1, linearly; None keeps it constant.
        epsilon: added to the absolute error, so that each transition can be drawn again; 0 or more.
        error_clip: (low, high) to which errors are clipped first; None for no clipping.
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
        check_number("alpha", self.alpha)
        check_number("beta", self.beta, 1)
        check_number("epsilon", self.epsilon)
        whole_number_or_none("betasteps", self.betasteps)
        if self.error_clip is not None:
            low_and_high("error_clip", self.error_clip)
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
        """Priorities from errors: (size,) float64, above 0."""
        given = as_array(errors, "errors")
        if given.shape != (size,) or given.dtype.kind not in "iufb":
            raise SchemaError(
                f"errors: expected numbers ({size},), one per id; found {given.dtype} {given.shape}"
            )
        if self.error_clip is not None:
            given = np.clip(given, *self.error_clip)
        out: Doubles = np.abs(given, dtype=np.float64)
        out += self.epsilon
        if out.size and not out.max() <= MAX_PRIORITY:  # or nan
            wrong = (~np.isfinite(out)).nonzero()[0]
            if wrong.size:
                found = f"{given[wrong[0]]} at {wrong[0]}"
                raise SchemaError(f"errors: expected finite numbers, found {found}")
            np.minimum(out, MAX_PRIORITY, out=out)
        return out if self.epsilon >= MIN_PRIORITY else np.maximum(out, MIN_PRIORITY)


class PrioritizedSampler:
    """Draws transitions of a lane by priority, and updates priorities, under the store's lock.

    `largest` is the largest priority ever given, at first 1; `n_late` counts updates of evicted
    transitions, `n_batches` the batches returned.
    """

    def __init__(
        self, column: PriorityColumn, how: Prioritization, index: Index, largest: float | None
    ) -> None:
        self.how = how
        self.n_late = self.n_batches = 0
        self._column = column
        kind = Proportional if how.variant == "proportional" else RankBased
        self._masses = kind(how.alpha)
        self._clean(index, largest or 0.0)
        self._take_over(index)
        self._masses.load(column.values)
        self._generation: int | None = column.generation

    def _clean(self, index: Index, largest: float) -> None:
        """Give transitions without a sound priority the largest one, and all else 0."""
        for stored, here in self._pieces(index):
            sound = stored[here & (stored > 0) & (stored < np.inf)]
            largest = max(largest, float(sound.max(initial=0)))
        self.largest = min(largest, MAX_PRIORITY) or _FIRST_PRIORITY
        for stored, here in self._pieces(index):
            is_sound = (stored > 0) & (stored < np.inf)
            kept = np.where(is_sound, stored.clip(MIN_PRIORITY, MAX_PRIORITY), self.largest)
            wanted = np.where(here, kept, 0.0)
            other = (stored != wanted).nonzero()[0]
            stored[other] = wanted[other]  # not the rest: an unwritten page takes no memory

    def _pieces(self, index: Index) -> Iterator[tuple[Doubles, npt.NDArray[np.bool_]]]:
        """All priorities, and which are of transitions, in pieces: a copy may take gigabytes."""
        first, stop = index.extent(0)
        values, offset = self._column.values, int(self._column.positions(np.zeros(1, np.int64))[0])
        for start in range(0, values.size, _PIECE):
            stored = values[start : start + _PIECE]
            here = np.zeros(stored.size, np.bool_)
            low = max(start - offset, first)
            high = min(start - offset + stored.size, stop)
            if low < high:
                here[low + offset - start : high + offset - start] = index.present(0, low, high)
            yield stored, here

    def _take_over(self, index: Index) -> None:
        self._first, self._stop = index.extent(0)
        self._n = index.n_transitions
        self._index, self._version = index, index.version

    def _follow(self, index: Index) -> None:
        """Give mass to new transitions, and remove that of evicted ones."""
        if index is self._index and index.version == self._version:
            return
        column = self._column
        base, _, head = index.window(0)
        column.reach((base, head))
        first, stop = index.extent(0)
        start = min(max(self._stop, first), stop)
        came = np.arange(start, stop)
        gone = np.arange(max(self._first, column.lowest), min(first, self._stop))
        positions = column.positions(np.concatenate([came, gone]))
        values = np.zeros(positions.size)
        values[: came.size][index.present(0, start, stop)] = self.largest
        # An interrupt leaves the rest to the next call, which loads all masses.
        generation, self._generation = self._generation, None
        column.values[positions] = values
        if column.generation != generation:
            self._masses.load(column.values)
            # The file was made again, with what was kept.
            self.largest = max(self.largest, float(column.values.max()))
        elif positions.size:
            self._masses.set(positions, values)
        self._take_over(index)
        self._generation = column.generation

    def draw(self, index: Index, draws: Doubles) -> tuple[Ids, Doubles]:
        """Ids of transitions and their probabilities, (B,) each, by `draws` (B,) in [0, 1).

        Raises EmptyBufferError, and DiskFullError without room for the priorities of new rows.
        """
        self._follow(index)
        check_not_empty(index)
        if self.how.stratified:
            draws = (np.arange(draws.size) + draws) / draws.size
        positions, probabilities = self._masses.draw(draws)
        return self._column.ids(positions), probabilities

    def weights(self, probabilities: Doubles) -> Callable[[float], Doubles]:
        """Importance weights, (B,), of the last draw, by beta: (N * P) ** -beta, normalized."""
        products = self._n * probabilities
        least = self._n * self._masses.least() if self.how.normalize == "buffer" else None

        def by_beta(beta: float) -> Doubles:
            out: Doubles = products**-beta
            out /= out.max() if least is None else least**-beta
            return out

        return by_beta

    def update(self, index: Index, ids: Ids, priorities: Doubles) -> None:
        """Set priorities, above 0; evicted transitions are skipped and counted.

        Of a repeated id the last priority counts. Raises InvalidIdError, and changes nothing, for
        an id that never was a transition; DiskFullError as `draw`.
        """
        if not ids.size:
            return
        self._follow(index)
        values = self._column.values
        positions = self._column.positions(ids)
        # "clip" takes the last position, which never has a priority.
        if ids.min() < self._first or not values.take(positions, mode="clip").all():
            late = index.evicted(ids)
            _check(ids, index.invalid(ids) & ~late)
            self.n_late += int(np.count_nonzero(late))
            ids, priorities = ids[~late], priorities[~late]
            if not ids.size:
                return
            positions = self._column.positions(ids)
        known = self._version, self._generation
        self._version, self._generation = -1, None  # see `_follow`
        values[positions] = priorities
        self._masses.set(positions, priorities)
        self.largest = max(self.largest, float(priorities.max()))
        self._version, self._generation = known
        # Here instead of in the next draw, for which a training loop waits.
        self._masses.settle()

    def priorities(self, index: Index, ids: Ids) -> Doubles:
        """The priorities of transitions, (B,); raises InvalidIdError, and DiskFullError."""
        positions = self._checked(index, ids)  # first: it may replace the array of values
        return self._column.values[positions]

    def probabilities(self, index: Index, ids: Ids) -> Doubles:
        """The probabilities of these transitions, (B,); raises as `priorities`."""
        return self._masses.probabilities(self._checked(index, ids))

    def _checked(self, index: Index, ids: Ids) -> Ids:
        """The positions of valid transitions."""
        self._follow(index)
        _check(ids, index.invalid(ids))
        return self._column.positions(ids)


def _check(ids: Ids, wrong: npt.NDArray[np.bool_]) -> None:
    """Raise InvalidIdError for the first id that is wrong."""
    if wrong.any():
        one = int(ids[wrong][0])
        raise InvalidIdError(
            f"id {one} (lane {one >> LANE_SHIFT}, row {one & ROW_MASK}) is not a transition; use "
            f"the ids of a batch"
        )
