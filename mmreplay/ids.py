"""Ids of rows: the lane in the upper bits, the row in the lower ones; and the types of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LANE_SHIFT = 40
"""An id is lane << LANE_SHIFT | row."""
ROW_MASK = (1 << LANE_SHIFT) - 1

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
