"""`Steps`: transitions, and how to come from each of them to its neighbours in its episode.

Invariant: nobody but this module knows where, seen from a step, the other steps of its episode and
their frames are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.ids import Ids

UNKNOWN = 1 << 40
"""As many steps back, or more: nobody knows any more where the episode began."""


@dataclass(slots=True, eq=False)  # not frozen: one is made for each batch, and that takes longer
class Steps:
    """Steps of episodes, B of them.

    In a lane of one environment the step after row i is row i + 1, and the frame of a row is that
    before its step. In a vector lane the step after a cell is `stride` cells away, and the frame of
    a cell is that after its step, which `lag` is 1 for; an episode's first frame has a place of its
    own. Where a store has both kinds of lanes, these are arrays.

    Attributes:
        ids: (B,) of the steps.
        stride: from a step to the next one of its episode: a number, or (B,).
        lag: steps between a frame and the id under which it is stored: a number, or (B,).
        starts: (B,) the place of the first frame of the episode; None if it is that of its first
            step, as in all lanes of one environment.
        back: (B,) steps of the episode before this one, `UNKNOWN` or more if its beginning is not
            known any more; None if nobody asks for frames before the step's own, and `starts` is
            None.
        left: (B,) steps of the episode from this one on, itself included, at most as many as were
            asked for; None if that was one.
        until: (B,) steps up to the end of the episode, this one included, which is the last one
            known of those that were cut off; any other number where that comes later than was asked
            for, or the episode still runs. 1 or another if one step was asked for. None if nobody
            asks.
        running: (B,) those whose last step known is the newest of a live lane, of which rows do not
            tell whether they were cut off there; None if there is none.
    """

    ids: Ids
    stride: int | Ids
    lag: int | Ids
    starts: Ids | None
    back: Ids | None
    left: Ids | None
    until: npt.NDArray[Any] | None = None
    running: npt.NDArray[np.bool_] | None = None

    def at(self, offsets: Ids) -> Ids:
        """The ids of the steps so many steps away: (B, n), for `offsets` (n,) or (B, n)."""
        if self.starts is None:  # of rows
            return self.ids[:, None] + offsets
        return self.ids[:, None] + offsets * _column(self.stride)

    def frames(self, offsets: Ids) -> Ids:
        """The places of frames: (B, n), for `offsets` (n,) or (B, n).

        0 is the frame before the step, 1 the one after it. Of those before the episode's first
        frame the place is that of the first one.
        """
        if self.starts is None:  # of rows: ids and offsets are the same
            out = self.ids[:, None] + offsets
            if self.back is not None:
                np.maximum(out, (self.ids - self.back)[:, None], out=out)
            return out
        out = self.ids[:, None] + (offsets - _column(self.lag)) * _column(self.stride)
        is_first = offsets <= -self.back[:, None]  # type: ignore[index]
        np.copyto(out, self.starts[:, None], where=is_first)
        return out

    def frames_after(self, ids: Ids, which: Ids) -> Ids:
        """The places of the frames after steps `ids` (b, n), around those that `which` (b,) are."""
        if self.starts is None:
            return ids + 1
        after = np.broadcast_to((1 - self.lag) * self.stride, self.ids.shape)
        return ids + _column(after[which])

    def missing(self, offsets: Ids) -> npt.NDArray[np.bool_]:
        """Which frames lie before the episode's first one: (B, n), for `offsets` as of `frames`."""
        out: npt.NDArray[np.bool_] = offsets < -self.back[:, None]  # type: ignore[index]
        return out


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Steps, and how much of their episodes there is around them, (B,) each.

    Attributes:
        steps: the steps.
        back: as of `Steps`.
        oldest: how many steps before this one can be sampled, of its episode.
        left: steps of the episode from this one on, itself included: all there are.
    """

    steps: Steps
    back: Ids
    oldest: Ids
    left: Ids


def _column(number: int | Ids) -> int | Ids:
    """The same for each step, to go with (B, n)."""
    return number[:, None] if isinstance(number, np.ndarray) else number
