"""`FrameCache`: frames of one column in device memory, found by their index.

Invariant: a slot holds the frame of its tag; what is not tagged is not cached.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids

_MAX_BYTES = 1 << 26  # of frames that are sent at once


class FrameCache:
    """Slots for frames, each part of the column with a ring of its own.

    An entry's slot is its number modulo the length of its part's ring, so the newest entries of a
    part replace its oldest. The tensors are on `device`; `sizes` are the lengths of the rings.
    """

    def __init__(
        self, sizes: Ids, row_shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device
    ) -> None:
        self._sizes, self._begins = sizes, np.cumsum(sizes) - sizes
        self._tags = np.full(int(sizes.sum()), -1, np.int64)
        self._row_shape, self._device = row_shape, device
        self._dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
        # As bytes: not every device copies every dtype.
        self._frames = torch.zeros(
            (self._tags.size, self._row_bytes), dtype=torch.uint8, device=device
        )

    def clear(self) -> None:
        """Forget all frames."""
        self._tags.fill(-1)

    def _slots(self, indices: Ids) -> Ids:
        parts = indices >> LANE_SHIFT
        out: Ids = self._begins[parts] + (indices & ROW_MASK) % self._sizes[parts]
        return out

    def lacks(self, indices: Ids) -> npt.NDArray[np.bool_]:
        """Which of these frames are not cached: (n,)."""
        if not self._tags.size:
            return np.ones(indices.shape, np.bool_)
        out: npt.NDArray[np.bool_] = self._tags[self._slots(indices)] != indices
        return out

    def put(self, indices: Ids, frames: torch.Tensor) -> None:
        """Keep distinct frames: (n, bytes of a frame) uint8, on the device."""
        if not (indices.size and self._tags.size):
            return
        slots = self._slots(indices)
        self._tags[slots] = indices
        if np.unique(slots).size < slots.size:  # the last of those that share a slot
            kept = (self._tags[slots] == indices).nonzero()[0]
            slots, frames = slots[kept], frames.index_select(0, self._on_device(kept))
        self._frames.index_copy_(0, self._on_device(slots), frames)

    def take(
        self, indices: Ids, read: Ids, frames: Array, kept: npt.NDArray[np.bool_]
    ) -> torch.Tensor:
        """The frames (*indices.shape, *row_shape), zeros where an index is -1.

        `read` (n,), ascending, are those that were not cached, with their `frames`, and `kept` says
        which of these stay here from now on.
        """
        wanted = indices.reshape(-1)
        if read.size == 0 and self._tags.size:
            slots = self._slots(np.maximum(wanted, 0))
            out = self._frames.index_select(0, self._on_device(slots))
        else:
            shape = wanted.size, self._row_bytes
            out = torch.empty(shape, dtype=torch.uint8, device=self._device)
            where = np.minimum(read.searchsorted(wanted), max(read.size - 1, 0))
            is_read = read[where] == wanted
            self._fill(out, (~is_read).nonzero()[0], wanted)
            self._send(out, is_read.nonzero()[0], where[is_read], read, frames, kept)
        blank = (wanted < 0).nonzero()[0]
        if blank.size:
            out.index_fill_(0, self._on_device(blank), 0)
        return out.view(self._dtype).view(*indices.shape, *self._row_shape)

    def _fill(self, out: torch.Tensor, places: Ids, wanted: Ids) -> None:
        """Copy what is cached."""
        places = places[wanted[places] >= 0]
        if places.size:
            slots = self._on_device(self._slots(wanted[places]))
            out.index_copy_(0, self._on_device(places), self._frames.index_select(0, slots))

    def _send(
        self,
        out: torch.Tensor,
        places: Ids,
        which: Ids,
        read: Ids,
        frames: Array,
        kept: npt.NDArray[np.bool_],
    ) -> None:
        """Send what was read, in pieces, to its places in `out`, and into slots what is kept."""
        order = which.argsort(kind="stable")
        places, which = places[order], which[order]
        step = max(_MAX_BYTES // self._row_bytes, 1)
        for begin in range(0, read.size, step):
            piece = slice(begin, begin + step)
            sent = self.sent(frames[piece])
            low, high = which.searchsorted((begin, begin + step))
            mine = self._on_device(which[low:high] - begin)
            out.index_copy_(0, self._on_device(places[low:high]), sent.index_select(0, mine))
            stay = kept[piece].nonzero()[0]
            self.put(read[piece][stay], sent.index_select(0, self._on_device(stay)))

    def sent(self, frames: Array) -> torch.Tensor:
        """Frames (n, *row_shape) as bytes on the device."""
        return torch.from_numpy(frames.reshape(len(frames), -1).view(np.uint8)).to(self._device)

    def _on_device(self, numbers: Ids) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)
