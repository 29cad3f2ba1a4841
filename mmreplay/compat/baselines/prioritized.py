"""`PrioritizedReplayBuffer` of OpenAI's baselines.

Invariant: a priority reaches the transition that was drawn, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.compat.baselines.uniform import ReplayBuffer
from mmreplay.compat.deferred_store import StorePath
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer as CoreBuffer
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.sampling.prioritized import Prioritization


class PrioritizedReplayBuffer(ReplayBuffer):
    """Transitions sampled by priority; see `ReplayBuffer` for what is not here.

    Args:
        size: most transitions to keep.
        alpha: how much priorities count; 0 is uniform.
        path: the store's directory; None for a temporary one.

    Raises:
        SchemaError: a value out of its range.

    Source: Schaul et al. (2016), "Prioritized Experience Replay".
    """

    _kind = CoreBuffer

    def __init__(self, size: int, alpha: float, path: StorePath = None) -> None:
        Prioritization(alpha)  # checks it, before there is a store
        self._alpha = alpha
        super().__init__(size, path)
        self._drawn = np.zeros(size, np.int64)  # 1 + the id that was drawn, until its update

    def _settings(self) -> dict[str, Any]:
        how = {"stratified": True, "normalize": "buffer"}
        return {"alpha": self._alpha, "beta": 1.0, "epsilon": 0.0, **how}

    def sample(  # type: ignore[override]  # as in the original
        self, batch_size: int, beta: float
    ) -> Any:
        """Draw transitions, one from each of B equal shares of the priorities' mass.

        Args:
            batch_size: B.
            beta: how far the weights make up for the priorities, above 0.

        Returns:
            what `ReplayBuffer.sample` returns; then weights (B,) float64, divided by the largest
            one of the buffer; then positions, a list of B ints: the n-th transition that was
            added, counted from 0, is at n % size.

        Raises:
            EmptyBufferError: there is no transition.
            SchemaError: a beta that is not above 0.
        """
        if not beta > 0:
            raise SchemaError(f"beta: expected a number above 0, found {beta!r}")
        batch = self.core.sample(batch_size)
        places = batch.extras["number"] % self._capacity
        self._drawn[places] = batch.id + 1
        # With a beta of 1 they are the ratios that those of any other are powers of.
        weights = batch.weight.astype(np.float64) ** beta
        drawn = zip(places.tolist(), batch.id.tolist(), strict=True)
        return *self._shaped(batch), weights, [_Drawn(place, row) for place, row in drawn]

    def update_priorities(self, idxes: Sequence[int], priorities: npt.ArrayLike) -> None:
        """Give transitions other priorities.

        Args:
            idxes: positions. Those that `sample` returned mean the transitions that were drawn:
                where another has taken the place since, nothing happens. Of plain numbers, as of
                an array, each means the transition that was drawn there last.
            priorities: as many, above 0.

        Raises:
            InvalidIdError: a position where no transition is.
            SchemaError: a priority that is not above 0, or not as many as positions.
        """
        places, given = np.asarray(idxes, np.int64), np.asarray(priorities, np.float64)
        if not (given > 0).all():
            raise SchemaError(f"priorities: expected numbers above 0, found {given.min()}")
        ranks = len(self) - 1 - (self._n_added - 1 - places) % self._capacity
        wrong = (places < 0) | (places >= self._capacity) | (ranks < 0)
        if wrong.any():
            raise InvalidIdError(f"idxes: there is no transition at {places[wrong][0]}")
        core: Any = self.core
        ids = core.store.live.look(lambda index: index.at(ranks))
        last = self._drawn[places]
        meant = np.where(last > 0, last - 1, ids)
        for at, place in enumerate(idxes):
            if isinstance(place, _Drawn):
                meant[at] = place.row
        core.update_priorities(meant, given)
        # What was drawn and has gone since is remembered: another batch may be out.
        self._drawn[places[meant == ids]] = 0


class _Drawn(int):
    """A position that remembers the id that was drawn there."""

    row: int

    def __new__(cls, place: int, row: int) -> Self:
        out = super().__new__(cls, place)
        out.row = row
        return out

    def __reduce__(self) -> tuple[type[_Drawn], tuple[int, int]]:
        return _Drawn, (int(self), self.row)
