"""Evenly spaced draws in the place of random ones: a sampler's distribution, tested without chance.

A sampler that gives each outcome one stretch of [0, 1) meets it as often as its probability says,
to within one draw; of random draws it would take a hundred times as many to see as much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def even_draws(size: int) -> npt.NDArray[np.float64]:
    """Numbers in the middle of `size` equal parts of [0, 1)."""
    out: npt.NDArray[np.float64] = (np.arange(size) + 0.5) / size
    return out


def assert_counts_fit(
    counts: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
) -> None:
    """Each outcome came as often as its probability says, to within one of all draws."""
    np.testing.assert_allclose(counts, counts.sum() * probabilities, rtol=0, atol=1 + 1e-6)


class EvenGenerator(np.random.Generator):
    """A generator whose `random` gives even draws."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def random(self, size: int) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return even_draws(size)
