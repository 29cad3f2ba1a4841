"""Statistics of the features of a LeRobot dataset, with which policies normalize their inputs.

Invariant: memory does not grow with the number of steps. Quantiles are weighted means of those of
blocks of steps, as LeRobot averages those of episodes; of images, a sample of each block counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mmreplay.ids import Array

_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_IMAGES = 16
"""Most images of a block that are looked at."""


class Stats:
    """For each element of a row, or each channel of images from 0 to 1.

    `parts` is (4 + 5, elements): min, max, mean, variance times n, and the quantiles.
    """

    def __init__(self, dtype: str, shape: Sequence[int]) -> None:
        self._is_image = dtype == "image"
        self._shape = (shape[-1], 1, 1) if self._is_image else tuple(shape)
        self.n = 0
        self.parts: Array = np.empty(0)

    def add(self, rows: Array) -> None:
        """Count (n, …) more, n > 0."""
        n = len(rows)
        if self._is_image:
            values = rows[:: -(-n // _IMAGES)].reshape(-1, self._shape[0]) / 255
        else:
            values = rows.reshape(n, -1).astype(np.float64)
        quantiles = np.quantile(values, list(_QUANTILES.values()), axis=0)
        parts = values.min(0), values.max(0), values.mean(0), values.var(0) * n, *quantiles
        self._merge(n, np.stack(parts))

    def merge(self, other: Stats) -> None:
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
