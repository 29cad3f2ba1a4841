"""`PrioritizedReplayBuffer` of OpenAI's baselines.

Invariant: a position means the transition that is there now, as in the original.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.compat.baselines.uniform import ReplayBuffer
from mmreplay.compat.deferred_store import StorePath
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer as CoreBuffer
from mmreplay.errors import InvalidIdError, SchemaError
from mmreplay.sampling.priority_draws import Prioritization


class PrioritizedReplayBuffer(ReplayBuffer):
    """Transitions sampled by priority; otherwise as `ReplayBuffer`.

    Args:
        size: most transitions to keep.
        alpha: exponent of the priorities; 0 is uniform.
        path: the store's directory; None for a temporary one.

    Raises:
        SchemaError: a value out of its range.

    Source: Schaul et al. (2016), "Prioritized Experience Replay".
    """

    _kind = CoreBuffer

    def __init__(self, size: int, alpha: float, path: StorePath = None) -> None:
        how = Prioritization(alpha, 1.0, epsilon=0.0, stratified=True, normalize="buffer")
        self._settings = dataclasses.asdict(how)
        super().__init__(size, path)

    def sample(  # type: ignore[override]  # as in the original
        self, batch_size: int, beta: float
    ) -> Any:
        """Draw transitions, one from each of B equal shares of the priorities' mass.

        Args:
            batch_size: B.
            beta: exponent of the weights, above 0.

        Returns:
            what `ReplayBuffer.sample` returns; then weights (B,) float64, divided by the largest
            one of the buffer; then positions, a list of B ints: transition n, counted from 0 in
            the order of `add`, is at n % size.

        Raises:
            EmptyBufferError: the buffer is empty.
            SchemaError: a beta that is not above 0.
        """
        if not beta > 0:
            raise SchemaError(f"beta: expected a number above 0, found {beta!r}")
        batch = self.core.sample(batch_size)
        weights = batch.weight.astype(np.float64) ** beta  # the store draws with beta = 1
        return *self._shaped(batch), weights, (batch.extras["number"] % self._capacity).tolist()

    def update_priorities(self, idxes: Sequence[int], priorities: npt.ArrayLike) -> None:
        """Set priorities.

        Args:
            idxes: positions; each means the transition that is there now.
            priorities: one for each, above 0.

        Raises:
            InvalidIdError: a position without a transition.
            SchemaError: a priority that is not above 0, or not one for each position.
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
        core.update_priorities(ids, given)
