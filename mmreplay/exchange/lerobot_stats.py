"""Statistics of the features of a LeRobot dataset, with which policies normalize their inputs.

Invariant: memory does not grow with the number of steps. Quantiles of numbers are weighted means of
those of blocks of steps, as LeRobot averages those of episodes; quantiles of images are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmreplay.ids import Array

__all__ = ["ImageStats", "NumberStats", "stats_of"]

_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_LEVELS = 256


class NumberStats:
    """Statistics of numbers, for each element of a row.

    Attributes:
        n: rows so far.
        parts: min, max, mean, sum of squared deviations, and the quantiles; (5 + 4, size).
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self.n = 0
        self.parts: Array = np.empty(0)

    def add(self, rows: Array) -> None:
        """Count (n, …) more, n > 0."""
        values = rows.reshape(len(rows), -1).astype(np.float64)
        mean = values.mean(0)
        self._merge(
            len(values),
            np.stack(
                [
                    values.min(0),
                    values.max(0),
                    mean,
                    ((values - mean) ** 2).sum(0),
                    *np.quantile(values, list(_QUANTILES.values()), axis=0),
                ]
            ),
        )

    def merge(self, other: NumberStats) -> None:
        """Count all rows of the other one."""
        self._merge(other.n, other.parts)

    def _merge(self, n: int, parts: Array) -> None:
        """Source: Chan, Golub and LeVeque, Algorithms for Computing the Sample Variance, (2.1)."""
        if not self.n:
            self.n, self.parts = n, parts
            return
        a, b, part = self.parts, parts, n / (self.n + n)
        out = a + (b - a) * part
        out[0], out[1] = np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
        out[3] = a[3] + b[3] + (b[2] - a[2]) ** 2 * (self.n * part)
        self.n, self.parts = self.n + n, out

    def values(self) -> dict[str, Any]:
        """By name, as lists: min, max, mean, std, quantiles and count."""
        low, high, mean, squares, *quantiles = (one.reshape(self._shape) for one in self.parts)
        found = {"min": low, "max": high, "mean": mean, "std": np.sqrt(squares / self.n)}
        found |= dict(zip(_QUANTILES, quantiles, strict=True))
        return {name: one.tolist() for name, one in found.items()} | {"count": [self.n]}


class ImageStats:
    """The same for each channel of images, from 0 to 1, with shape (1, 1) per channel."""

    def __init__(self, channels: int) -> None:
        self.counts, self.n = np.zeros((channels, _LEVELS), np.int64), 0

    def add(self, rows: Array) -> None:
        """See `NumberStats`."""
        self.n += len(rows)
        for number in range(len(self.counts)):
            self.counts[number] += np.bincount(rows[..., number].reshape(-1), minlength=_LEVELS)

    def merge(self, other: ImageStats) -> None:
        """See `NumberStats`."""
        self.counts += other.counts
        self.n += other.n

    def values(self) -> dict[str, Any]:
        """See `NumberStats`."""
        levels = np.arange(_LEVELS) / (_LEVELS - 1)
        n = int(self.counts[0].sum())
        sums = self.counts.cumsum(1)
        mean = self.counts @ levels / n

        def level(count: float) -> Array:
            """The level at which `count` pixels are reached."""
            return levels[[int(one.searchsorted(count)) for one in sums]]

        found = {
            "min": level(1),
            "max": level(n),
            "mean": mean,
            "std": np.sqrt(np.maximum(self.counts @ levels**2 / n - mean**2, 0)),
        } | {name: level(max(part * n, 1)) for name, part in _QUANTILES.items()}
        out = {name: one.reshape(-1, 1, 1).tolist() for name, one in found.items()}
        return out | {"count": [self.n]}


def stats_of(dtype: str, shape: Sequence[int]) -> NumberStats | ImageStats:
    """For a feature as info.json describes it."""
    return ImageStats(shape[-1]) if dtype == "image" else NumberStats(shape)
