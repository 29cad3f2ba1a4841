"""`FrameCache`: frames of one column in device memory, found by their index.

Invariant: a slot holds the frame of its tag; what is not tagged is not cached.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids

_MAX_BYTES = 1 << 26  # of frames that are sent at once
_WORDS = np.int64, np.int32, np.int16, np.uint8  # frames are copied in the longest that fit


@dataclasses.dataclass(slots=True, eq=False)
class Wanted:
    """Frames of a batch: their indices (n,), -1 for one of zeros, and where each may be cached.

    `missing`, ascending, are those that are not, with their `frames` once these were read; frames
    are `fixed` that cannot change any more. None if all are cached.
    """

    indices: Ids
    slots: Ids
    missing: Ids | None
    frames: Array | None = None
    fixed: npt.NDArray[np.bool_] | None = None


class FrameCache:
    """Slots for frames, each part of the column with a ring of its own.

    An entry's slot is its number modulo the length of its part's ring, so the newest entries of a
    part replace its oldest. The tensors are on `device`; `sizes` are the lengths of the rings, one
    or more each. For one thread.
    """

    def __init__(
        self, sizes: Ids, row_shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device
    ) -> None:
        self._sizes, self._begins = sizes, np.cumsum(sizes) - sizes
        self._tags = np.full(int(sizes.sum()), -1, np.int64)
        self._row_shape, self._device = row_shape, device
        self._dtype = torch.from_numpy(np.empty(0, dtype)).dtype
        self._row_bytes = int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize
        # As words: a byte at a time takes several times as long.
        self._word = next(np.dtype(one) for one in _WORDS if not self._row_bytes % one().itemsize)
        self._frames = torch.zeros(
            (self._tags.size, self._row_bytes // self._word.itemsize),
            dtype=torch.from_numpy(np.empty(0, self._word)).dtype,
            device=device,
        )

    @property
    def n_cached(self) -> int:
        """Frames that are cached."""
        return int(np.count_nonzero(self._tags >= 0))

    def clear(self) -> None:
        """Forget all frames."""
        self._tags.fill(-1)

    def _slots(self, indices: Ids) -> Ids:
        parts = indices >> LANE_SHIFT
        out: Ids = indices & ROW_MASK
        out %= self._sizes.take(parts, mode="clip")
        out += self._begins.take(parts, mode="clip")
        return out

    def find(self, indices: Ids) -> Wanted:
        """Look up frames (n,), none of them read yet."""
        slots = self._slots(indices)
        is_there = self._tags.take(slots) == indices
        # A frame of zeros seems to be in a slot that is empty.
        if is_there.all() and (not indices.size or indices.min() >= 0):
            return Wanted(indices, slots, None)
        missing = np.unique(indices[~is_there])
        return Wanted(indices, slots, missing[missing.searchsorted(0) :])

    def put(self, indices: Ids, frames: torch.Tensor) -> None:
        """Keep distinct frames, ascending, as `sent`; not in place of newer ones."""
        slots = self._slots(indices)
        newer = indices > self._tags[slots]
        self._tags[slots[newer]] = indices[newer]
        # Of those that share a slot, the last.
        kept = (newer & (self._tags[slots] == indices)).nonzero()[0]
        if not kept.size:
            return
        if kept.size < slots.size:
            slots, frames = slots[kept], frames.index_select(0, self._on_device(kept))
        self._frames.index_copy_(0, self._on_device(slots), frames)

    def take(self, wanted: Wanted, slots: torch.Tensor) -> torch.Tensor:
        """The frames (n, *row_shape), with what was read, which stays here if it is fixed.

        `slots` are those of the frames, on the device.
        """
        out = self._frames.index_select(0, slots)
        if wanted.missing is not None:
            self._send(out, wanted)
            blank = (wanted.indices < 0).nonzero()[0]
            if blank.size:
                out.index_fill_(0, self._on_device(blank), 0)
        return out.view(self._dtype).view(-1, *self._row_shape)

    def _send(self, out: torch.Tensor, wanted: Wanted) -> None:
        """Send what was read, in pieces, to its places in `out`, and into slots what is fixed."""
        read, frames, fixed = wanted.missing, wanted.frames, wanted.fixed
        if read is None or frames is None or fixed is None or not read.size:
            return
        which = np.minimum(read.searchsorted(wanted.indices), read.size - 1)
        places = (read[which] == wanted.indices).nonzero()[0]
        which = which[places]
        order = which.argsort(kind="stable")
        places, which = places[order], which[order]
        step = max(_MAX_BYTES // self._row_bytes, 1)
        for begin in range(0, read.size, step):
            piece = slice(begin, begin + step)
            sent = self.sent(frames[piece])
            low, high = which.searchsorted((begin, begin + step))
            mine = self._on_device(which[low:high] - begin)
            out.index_copy_(0, self._on_device(places[low:high]), sent.index_select(0, mine))
            stay = fixed[piece].nonzero()[0]
            self.put(read[piece][stay], sent.index_select(0, self._on_device(stay)))

    def sent(self, frames: Array) -> torch.Tensor:
        """Frames (n, *row_shape) on the device, as words."""
        words = frames.reshape(len(frames), -1).view(self._word)
        return torch.from_numpy(words).to(self._device)

    def _on_device(self, numbers: Ids) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device)
