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
from mmreplay.errors import ClosedError, InvalidIdError, SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.sampling.draws import check_not_empty
from mmreplay.sampling.priority_variants import MAX_PRIORITY, MIN_PRIORITY, Proportional, RankBased
from mmreplay.schema import as_array
from mmreplay.storage.priority_column import PriorityColumn

Doubles = npt.NDArray[np.float64]

_FIRST_PRIORITY = 1.0
_NONE = np.empty(0, np.int64)
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
    """Draws transitions by priority, and updates priorities, under the store's lock.

    `largest` is the largest priority ever given, at first 1; `n_late` counts updates of evicted
    transitions, `n_batches` the batches returned.
    """

    def __init__(
        self, column: PriorityColumn, how: Prioritization, index: Index, largest: float | None
    ) -> None:
        self.how = how
        self.n_late = self.n_batches = 0
        self.largest = largest or 0.0
        self._column = column
        kind = Proportional if how.variant == "proportional" else RankBased
        self._masses = kind(how.alpha)
        # The lanes whose priorities are sound, and the ids of their rows: [first, stop) of each.
        self._known: tuple[tuple[str, ...], Ids, Ids] = (), _NONE, _NONE
        self._clean(index)
        self._take_over(index)
        self._masses.load(column.values)
        self._generation: int | None = column.generation

    def _clean(self, index: Index) -> None:
        """In new lanes, give transitions without a sound priority the largest, all else 0."""
        uuids, first, stop = self._known
        came = [n for n, uuid in enumerate(self._column.uuids) if uuids[n : n + 1] != (uuid,)]
        largest = self.largest
        for stored, here in self._pieces(index, came):
            sound = stored[here & (stored > 0) & (stored < np.inf)]
            largest = max(largest, float(sound.max(initial=0)))
        self.largest = min(largest, MAX_PRIORITY) or _FIRST_PRIORITY
        for stored, here in self._pieces(index, came):
            is_sound = (stored > 0) & (stored < np.inf)
            kept = np.where(is_sound, stored.clip(MIN_PRIORITY, MAX_PRIORITY), self.largest)
            wanted = np.where(here, kept, 0.0)
            other = (stored != wanted).nonzero()[0]
            stored[other] = wanted[other]  # not the rest: an unwritten page takes no memory
        firsts, stops = (one.copy() for one in index.extents()[:2])
        old = np.setdiff1d(np.arange(len(uuids)), came)
        firsts[old], stops[old] = first[old], stop[old]
        self._known = self._column.uuids, firsts, stops

    def _pieces(
        self, index: Index, lanes: list[int]
    ) -> Iterator[tuple[Doubles, npt.NDArray[np.bool_]]]:
        """Priorities of lanes, and which are of transitions, in pieces: a copy may be large."""
        column, (firsts, stops, _) = self._column, index.extents()
        for lane in lanes:
            begin, end = column.part(lane)
            offset = int(column.lowest[lane]) - begin  # from a position to its id
            for start in range(begin, end, _PIECE):
                stored = column.values[start : min(start + _PIECE, end)]
                here = np.zeros(stored.size, np.bool_)
                low = max(start + offset, int(firsts[lane]))
                high = min(start + offset + stored.size, int(stops[lane]))
                if low < high:
                    places = slice(low - offset - start, high - offset - start)
                    here[places] = index.present(np.arange(low, high))
                yield stored, here

    def _take_over(self, index: Index) -> None:
        firsts, stops, _ = index.extents()
        self._known = self._column.uuids, firsts.copy(), stops.copy()
        self._n = index.n_transitions
        self._index, self._version = index, index.version

    def _follow(self, index: Index) -> None:
        """Give mass to new transitions, and remove that of those that are gone."""
        column = self._column
        if column.is_released:
            raise ClosedError("closed: others may change the priorities by now; open it again")
        if index is self._index and index.version == self._version:
            return
        if index is not self._index:
            column.join(index.window)
            if column.uuids != self._known[0]:
                self._generation = None
                self._clean(index)
        firsts, stops, _ = index.extents()
        column.reach(stops, index.window)
        _, first, stop = self._known
        came = _ranges(np.maximum(stop, firsts), stops)
        gone = _ranges(np.maximum(first, column.lowest), np.minimum(firsts, stop))
        if (stop > stops).any():  # rows that a writer could not recover
            gone = np.concatenate([gone, _ranges(np.maximum(stops, first), stop)])
        positions = column.positions(np.concatenate([came, gone]))
        values = np.zeros(positions.size)
        values[: came.size][index.present(came)] = self.largest
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
        # Of one lane what is past it needs no look: "clip" takes the last position, without any.
        is_one = index.n_lanes == 1
        is_odd = ids.min() < self._known[1][0] if is_one else index.outside(ids).any()
        positions = _NONE if is_odd else self._column.positions(ids)
        if is_odd or not values.take(positions, mode="clip").all():
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


def _ranges(starts: Ids, stops: Ids) -> Ids:
    """All ids of [start, stop) of each lane, (lanes,), that is not empty: (n,)."""
    if starts.size == 1:
        return np.arange(int(starts[0]), int(stops[0]))
    sizes = np.maximum(stops - starts, 0)
    before = sizes.cumsum() - sizes
    out: Ids = np.arange(int(sizes.sum())) + np.repeat(starts - before, sizes)
    return out


def _check(ids: Ids, wrong: npt.NDArray[np.bool_]) -> None:
    """Raise InvalidIdError for the first id that is wrong."""
    if wrong.any():
        one = int(ids[wrong][0])
        raise InvalidIdError(
            f"id {one} (lane {one >> LANE_SHIFT}, row {one & ROW_MASK}) is not a transition; use "
            f"the ids of a batch"
        )
