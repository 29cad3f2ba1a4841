"""Statistics of the features of a LeRobot dataset, by which policies scale what they are given.

Invariant: nothing but sums is kept, however many steps there are. Quantiles of numbers are means
of those of blocks of steps, by their lengths, as LeRobot's own are of those of episodes; those of
images are exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mmreplay.ids import Array

__all__ = ["ImageStats", "NumberStats", "Stats", "stats_of"]

_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_LEVELS = 256


class Stats(Protocol):
    """What is known of some steps."""

    def add(self, rows: Array) -> None:
        """Count (n, …) more, n > 0."""

    def merge(self, other: Any) -> None:
        """Count all that the other one did."""

    def values(self) -> dict[str, Any]:
        """By name, as lists: min, max, mean, std, count and quantiles."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Sums:
    """Of n rows: for each element of them, and of quantiles one row each."""

    n: int
    low: Array
    high: Array
    mean: Array
    squares: Array
    quantiles: Array

    def and_those_of(self, other: _Sums) -> _Sums:
        """Source: Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, (2.1)."""
        n = self.n + other.n
        part = other.n / n
        apart = other.mean - self.mean
        return _Sums(
            n,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + apart * part,
            self.squares + other.squares + apart**2 * (self.n * part),
            self.quantiles + (other.quantiles - self.quantiles) * part,
        )


class NumberStats:
    """Of numbers, each element of a row on its own."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self.sums: _Sums | None = None

    def add(self, rows: Array) -> None:
        """See `Stats`."""
        values = np.sort(rows.reshape(len(rows), -1).astype(np.float64), axis=0)
        places = np.array(list(_QUANTILES.values())) * (len(values) - 1)
        below, above = np.floor(places).astype(np.int64), np.ceil(places).astype(np.int64)
        part = (places - below)[:, None]
        quantiles = values[below] * (1 - part) + values[above] * part
        mean: Array = values.mean(0)
        squares = ((values - mean) ** 2).sum(0)
        self._count(_Sums(len(values), values[0], values[-1], mean, squares, quantiles))

    def merge(self, other: NumberStats) -> None:
        """See `Stats`."""
        if other.sums is not None:
            self._count(other.sums)

    def _count(self, sums: _Sums) -> None:
        self.sums = sums if self.sums is None else self.sums.and_those_of(sums)

    def values(self) -> dict[str, Any]:
        """See `Stats`."""
        sums = self.sums
        if sums is None:
            return {}
        found = {
            "min": sums.low,
            "max": sums.high,
            "mean": sums.mean,
            "std": np.sqrt(sums.squares / sums.n),
        } | dict(zip(_QUANTILES, sums.quantiles, strict=True))
        out = {name: one.reshape(self._shape).tolist() for name, one in found.items()}
        return out | {"count": [sums.n]}


class ImageStats:
    """Of images, each channel on its own, from 0 to 1; a channel's are (1, 1)."""

    def __init__(self, channels: int) -> None:
        self.counts, self.n = np.zeros((channels, _LEVELS), np.int64), 0

    def add(self, rows: Array) -> None:
        """See `Stats`."""
        self.n += len(rows)
        for number in range(len(self.counts)):
            self.counts[number] += np.bincount(rows[..., number].reshape(-1), minlength=_LEVELS)

    def merge(self, other: ImageStats) -> None:
        """See `Stats`."""
        self.counts += other.counts
        self.n += other.n

    def values(self) -> dict[str, Any]:
        """See `Stats`."""
        levels = np.arange(_LEVELS) / (_LEVELS - 1)
        n = max(int(self.counts[0].sum()), 1)
        sums = self.counts.cumsum(1)
        mean = self.counts @ levels / n

        def level(count: float) -> Array:
            """The level at which so many pixels are reached."""
            return levels[[int(one.searchsorted(count)) for one in sums]]

        found = {
            "min": level(1),
            "max": level(n),
            "mean": mean,
            "std": np.sqrt(np.maximum(self.counts @ levels**2 / n - mean**2, 0)),
        } | {name: level(max(part * n, 1)) for name, part in _QUANTILES.items()}
        out = {name: one.reshape(-1, 1, 1).tolist() for name, one in found.items()}
        return out | {"count": [self.n]}


def stats_of(dtype: str, shape: Sequence[int]) -> Stats:
    """For a feature as info.json describes it."""
    return ImageStats(shape[-1]) if dtype == "image" else NumberStats(shape)
