"""`Blocks`: stretches of steps whose frames are stored, and read, together.

Invariant: each id is in one block, which follows from the layout of its lane alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """How each lane is divided."""

    rows: Ids  # (lanes,) steps of a block
    widths: Ids  # (lanes,) blocks side by side, one per environment; 1 if ids are consecutive

    def keys(self, ids: Ids) -> Ids:
        """The numbers of the blocks of ids, (n,), ascending with the lanes."""
        lanes = ids >> LANE_SHIFT
        rows, widths = self.rows[lanes], self.widths[lanes]
        steps, beside = np.divmod(ids & ROW_MASK, widths)
        out: Ids = (lanes << LANE_SHIFT) + steps // rows * widths + beside
        return out

    def rows_of(self, keys: Ids) -> Ids:
        """The steps of blocks, (n,)."""
        out: Ids = self.rows[keys >> LANE_SHIFT]
        return out

    def members(self, keys: Ids) -> Ids:
        """The ids that blocks may have, (n, most rows), ascending; -1 in shorter ones."""
        lanes = keys >> LANE_SHIFT
        rows, widths = self.rows[lanes], self.widths[lanes]
        number, beside = np.divmod(keys & ROW_MASK, widths)
        steps = np.arange(rows.max(initial=0))
        firsts = (lanes << LANE_SHIFT) + number * rows * widths + beside
        out: Ids = firsts[:, None] + steps * widths[:, None]
        out[steps >= rows[:, None]] = -1
        return out
