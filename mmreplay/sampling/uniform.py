"""Uniform sampling with replacement.

Invariant: each transition of the index is drawn with the same probability, by one draw each; no
draw is ever rejected.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import Transitions
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import Ids


def uniform_ids(index: Transitions, draws: npt.NDArray[np.float64], where: str = "") -> Ids:
    """Ids of as many transitions as there are draws: int64 (B,).

    The same draws in [0, 1) give the same transitions of the same index. Raises EmptyBufferError if
    there is no transition yet; its message begins with `where`.
    """
    count = index.n_transitions
    if not count:
        raise EmptyBufferError(
            f"{where}there is no transition to sample yet; a transition needs a reset and a step"
        )
    # A product of doubles, which rounds to `count` for no draw below 1; each transition's share is
    # right to one part in 2^53. `Generator.integers` costs three times as much.
    return index.at((draws * count).astype(np.int64))
