"""`Steps`: transitions, and how to get from each of them to its neighbours in its episode.

Invariant: only this module knows where, seen from a step, the other steps of its episode and
their frames are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Ids

Pending = tuple[tuple[int, int], ...]
"""Live lanes whose pending row is read, each with the length of its log of finals as known then."""


@dataclass(slots=True, eq=False)  # not frozen: one is made for each batch, and that takes longer
class Steps:
    """Steps of episodes, B of them, and up to `ahead` steps from each one on.

    The frame of a step is the one before it; the frame after the last step is a final, and columns
    of frames have further parts for these.

    Attributes:
        ids: (B,) of the steps.
        stride: ids from a step to the next one of its episode: a number, or (B,).
        back: (B,) steps of the episode before this one; None if their frames are not needed.
        left: (B,) steps of the episode from this one on, at most `ahead`; a number if all have
            that many.
        until: (B,) steps to the last, or newest, one of the episode, counting this one; if larger
            than `ahead`, any larger number, or 0 if `ahead` is 1. A number if it is for all.
        over: (m,) indices of those that end within `ahead` steps and have a final.
        finals: (m,) the indices of these in columns of frames.
        runs: (k,) indices of those whose episode runs, with its newest step within `ahead` steps.
        pending: the pending rows of live lanes that are among the frames.
    """

    ids: Ids
    stride: int | Ids
    back: Ids | None
    left: int | Ids
    until: int | npt.NDArray[Any]
    over: Ids
    finals: Ids
    runs: Ids
    pending: Pending

    def ahead(self, offsets: Ids) -> Ids:
        """The ids of the steps that follow: (n, B), for `offsets` (n, 1) from 0 on.

        The last or newest step of the episode stands for those past it.
        """
        inside: Ids = offsets if type(self.left) is int else np.minimum(offsets, self.left - 1)
        if type(self.stride) is not int or self.stride != 1:
            inside = inside * self.stride
        return self.ids + inside  # the other way round takes twice as long

    def at(self, offsets: Ids) -> Ids:
        """The ids of the steps at these distances: (B, n), for `offsets` (n,) or (B, n)."""
        stride = self.stride
        if isinstance(stride, np.ndarray):
            return self.ids[:, None] + offsets * stride[:, None]
        if stride != 1:
            offsets = offsets * stride
        if offsets.ndim == 1:
            return self.ids[:, None] + offsets
        out = _each(self.ids, offsets)
        out += offsets
        return out

    def frames(self, offsets: Ids) -> Ids:
        """The indices of frames: (B, n), for `offsets` (n,) or (B, n); 0 is that before the step.

        Before the episode's first frame they are that of the first one.
        """
        out = self.at(offsets)
        if self.back is not None:
            is_one = type(self.stride) is int and self.stride == 1
            firsts = self.ids - (self.back if is_one else self.back * self.stride)
            np.maximum(out, _each(firsts, out), out=out)
        if self.over.size:
            until = self.until[self.over, None]  # type: ignore[index]
            where = offsets if offsets.ndim == 1 else offsets[self.over]
            rows, columns = (where == until).nonzero()
            out[self.over[rows], columns] = self.finals[rows]
        return out

    def frames_after(self, ids: Ids, which: Ids) -> Ids:
        """The indices of the frames after steps `ids` (b, n), around the steps `which` (b,)."""
        stride = self.stride
        step = stride[which, None] if isinstance(stride, np.ndarray) else stride
        out = ids + step
        if self.over.size:
            finals = np.full(self.ids.size, -1)
            finals[self.over] = self.finals
            lasts = self.ids + (self.until - 1) * stride
            rows, columns = ((ids == lasts[which, None]) & (finals[which, None] >= 0)).nonzero()
            out[rows, columns] = finals[which[rows]]
        return out

    def missing(self, offsets: Ids) -> npt.NDArray[np.bool_]:
        """Which frames lie before the episode's first one: (B, n), for `offsets` as of `frames`."""
        out: npt.NDArray[np.bool_] = offsets < -self.back[:, None]  # type: ignore[index]
        return out


def _each(values: Ids, like: Ids) -> Ids:
    """(B,) as (B, n): numpy goes through that in one loop, and needs one for each row without."""
    out: Ids = values.repeat(like.shape[1]).reshape(like.shape)
    return out


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Steps with all of their episodes: (B,) steps `back`, and `left` counting the step itself.

    `oldest`: (B,) how many steps before it can be sampled.
    """

    steps: Steps
    back: Ids
    oldest: Ids
    left: Ids

    @property
    def pending(self) -> Pending:
        """As of `Steps`."""
        return self.steps.pending
