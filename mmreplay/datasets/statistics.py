"""`Statistics` of fields: mean, deviation, bounds and quantiles of each element.

Invariants:
- Each transition counts once, with its value before the step. Those that are evicted meanwhile are
  left out.
- Only the requested columns are read, piece by piece; of images only a sample.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_number, whole_number
from mmreplay.batches.batch import Column
from mmreplay.datasets.store_draws import StoreDraws
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.sampling.draws import distinct_ids
from mmreplay.sampling.selection import Selection
from mmreplay.schema import Field

Doubles = npt.NDArray[np.float64]
Part = tuple[int, Callable[[Ids], Ids]]
"""So many transitions, and what gives the ids of those with some numbers."""

_PIECE_BYTES = 1 << 20
_SAMPLE_ROWS = 200_000  # then 0.5 % of rank are 4.5 standard deviations of the median's
_SAMPLE_BYTES = 128 << 20
_IMAGE_NUMBERS, _IMAGE_ROWS = 1024, 1000  # of an image at least, and of a sample at most


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Of one field, by element, over its finite values; NaN for an element that has none.

    Attributes:
        mean: (*shape) float64.
        std: (*shape) float64, of the population; 0 if all values are the same.
        min: (*shape) float64.
        max: (*shape) float64.
        quantiles: (Q, *shape) float64, in the order in which they were given. Of more than 200,000
            transitions they are a seeded sample's, within 0.5 % of rank.
        count: transitions that were read.
        n_nonfinite: (*shape) int64, how many of their values are NaN or infinite.
        sampled: whether only a seeded sample of the transitions was read, as of images.
    """

    mean: Doubles
    std: Doubles
    min: Doubles
    max: Doubles
    quantiles: Doubles
    count: int
    n_nonfinite: Ids
    sampled: bool

    def to_json(self) -> dict[str, Any]:
        """Everything as lists and numbers; None for what is not finite."""
        out = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        for name, one in out.items():
            if isinstance(one, np.ndarray):
                values = one.astype(object)
                values[~np.isfinite(one)] = None
                out[name] = values.tolist()
        return out


def statistics_of(
    live: LiveLanes,
    draws: StoreDraws,
    selection: Selection | None,
    names: Sequence[str] | None,
    quantiles: Sequence[float],
    seed: int,
) -> dict[str, Statistics]:
    """See `Dataset.statistics`."""
    paths, columns = live.schema.field_paths, live.schema.columns()
    names = [*paths] if names is None else names
    if isinstance(names, str) or not {*names} <= paths.keys():
        raise SchemaError(f"fields: expected some of {[*paths]}, found {names!r:.80}")
    for level in quantiles:
        check_number("quantiles", level, 1)
    levels, seed, uuids = np.array(quantiles, float), whole_number("seed", seed, 0), live.uuids
    sample = draws.look(lambda of: distinct_ids(of, min(_SAMPLE_ROWS, of.n_transitions), seed))
    every = live.look(lambda index: _every(index, selection))
    out = {}
    for name in names:
        field, some = columns[paths[name]], sample
        if len(field.shape) > 1 and math.prod(field.shape) >= _IMAGE_NUMBERS:
            some = sample[: max(min(_SAMPLE_BYTES // field.row_bytes, _IMAGE_ROWS), 1)]
        is_part = some.size < sample.size
        some = np.sort(some)
        reader, moments = _Reader(live, uuids, paths[name], field), _Moments(field)
        for rows in reader.rows([(some.size, some.take)] if is_part else every):
            moments.add(rows)
        out[name] = moments.statistics(reader.quantiles(some, levels), sampled=is_part)
    return out


def _every(index: Index, selection: Selection | None) -> list[Part]:
    """All transitions that can be sampled, and entries that are none."""
    if selection is not None:
        now = selection.now(index)
        return [(now.n_transitions, now.at)]
    extents = enumerate(index.extent(lane) for lane in range(index.n_lanes))
    return [
        (stop - start, functools.partial(np.add, (lane << LANE_SHIFT) + start))
        for lane, (start, stop) in extents
    ]


class _Steps(NamedTuple):
    """What is looked up of steps: they know their rows."""

    ids: Ids
    pending: tuple[()] = ()


class _Reader:
    """Reads one column of the lanes with these uuids, a piece at a time; a `Rebuilder`."""

    def __init__(self, live: LiveLanes, uuids: tuple[str, ...], path: str, field: Field) -> None:
        self._live, self._uuids, self._path = live, uuids, path
        self._numbers = math.prod(field.shape)
        self._size = max(_PIECE_BYTES // field.row_bytes, 1)

    def locate(self, _: Index, ids: Ids) -> _Steps:
        """See `Rebuilder`."""
        return _Steps(ids)

    def fetch(self, columns: Mapping[str, Column], steps: _Steps, _: Array | None) -> Array:
        """See `Rebuilder`."""
        return columns[self._path].take(steps.ids)

    def rows(self, parts: Sequence[Part]) -> Iterator[Array]:
        """Those that can still be sampled: (m, numbers) each."""
        for n, ids_of in parts:
            for start in range(0, n, self._size):
                ids = ids_of(np.arange(start, min(start + self._size, n)))
                rows = self._live.gather(functools.partial(self._valid, ids), self)
                yield rows.reshape(len(rows), self._numbers)

    def _valid(self, ids: Ids, index: Index) -> Ids:
        self._live.check_same(self._uuids, "whose statistics are computed", "compute them again")
        return np.asarray(ids[~index.invalid(ids)])

    def quantiles(self, ids: Ids, levels: Doubles) -> Doubles:
        """Of the rows at these ids: (Q, numbers)."""
        out = np.empty((levels.size, self._numbers))
        width = max(_SAMPLE_BYTES // (8 * ids.size), 1)  # numbers that are in memory together
        for first in range(0, self._numbers if levels.size else 0, width):
            values = np.full((min(width, self._numbers - first), ids.size), np.nan)
            stop = 0
            for rows in self.rows([(ids.size, ids.take)]):
                start, stop = stop, stop + len(rows)
                values[:, start:stop] = rows[:, first : first + width].T
            values[~np.isfinite(values)] = np.nan
            values.sort(axis=1)  # NaN comes last
            last = np.maximum(np.isfinite(values).sum(1) - 1, 0)
            share, low = np.modf(levels[:, None] * last)
            lower, upper = (
                np.take_along_axis(values, at.T.astype(np.int64), 1).T
                for at in (low, np.minimum(low + 1, last))
            )
            out[:, first : first + width] = lower * (1 - share) + upper * share
        return out


class _Moments:
    """Mean and squared deviations of numbers, (k,), merged piece by piece.

    Source: Chan, Golub, LeVeque 1983, Algorithms for Computing the Sample Variance, equation 2.1.
    """

    def __init__(self, field: Field) -> None:
        self._shape, k = field.shape, math.prod(field.shape)
        self._count, self._n = 0, np.zeros(k, np.int64)
        self._mean, self._squares = np.zeros((2, k))
        self._low, self._high = np.full(k, np.inf), np.full(k, -np.inf)

    def add(self, rows: Array) -> None:
        """Take the rows (m, k) of one piece."""
        values = rows.T.astype(np.float64, order="C")  # sums along a row are pairwise: precise
        finite: Any = np.isfinite(values)
        n = finite.sum(1)
        finite = True if finite.all() else finite  # which is faster
        np.minimum(self._low, values.min(1, initial=np.inf, where=finite), out=self._low)
        np.maximum(self._high, values.max(1, initial=-np.inf, where=finite), out=self._high)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = values.sum(1, where=finite) / np.maximum(n, 1)
            values -= mean[:, None]
            squares = np.square(values, out=values).sum(1, where=finite)
            step, share = mean - self._mean, n / np.maximum(self._n + n, 1)
            self._mean += step * share
            self._squares += squares + step * share * step * self._n
        self._n += n
        self._count += len(rows)

    def statistics(self, quantiles: Doubles, *, sampled: bool) -> Statistics:
        """With quantiles (Q, k)."""
        is_same = self._low == self._high  # of these without what rounding left
        mean = np.where(is_same, self._low, self._mean)
        std = np.where(is_same, 0, np.sqrt(self._squares / np.maximum(self._n, 1)))
        mean, std, low, high = (
            np.where(self._n > 0, one, np.nan).reshape(self._shape)
            for one in (mean, std, self._low, self._high)
        )
        values = quantiles.reshape(-1, *self._shape)
        odd = (self._count - self._n).reshape(self._shape)
        return Statistics(mean, std, low, high, values, self._count, odd, sampled)
