"""Ids: the lane in the upper bits, row * N + environment in the lower ones; types of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LANE_SHIFT = 40
"""An id is lane << LANE_SHIFT | row * N + environment."""
ROW_MASK = (1 << LANE_SHIFT) - 1

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]


def environments(ids: Ids, counts: Sequence[int]) -> Ids:
    """The environment of each id, counted over all lanes, with `counts` in each: (n,)."""
    n = np.array(counts, np.int64)
    lanes = ids >> LANE_SHIFT
    out: Ids = (np.cumsum(n) - n)[lanes] + (ids & ROW_MASK) % n[lanes]
    return out


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each value of (n,) once, ascending.

    `numpy.unique` would import `numpy.ma`, which may deadlock in a forked child.
    """
    ordered: Array = np.sort(values)
    is_first = np.ones(ordered.size, bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    out: Array = ordered[is_first]
    return out
