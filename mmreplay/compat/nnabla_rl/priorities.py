"""What the buffers that draw by priority have in common.

Invariant: an error goes to the experience that was drawn, by id, whatever was appended since.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mmreplay.columns import Ids
from mmreplay.compat.nnabla_rl.buffers import Path, ReplayBuffer
from mmreplay.compat.nnabla_rl.reading import checked_count
from mmreplay.compat.nnabla_rl.recording import Open
from mmreplay.episodes import Index
from mmreplay.errors import SchemaError
from mmreplay.prioritized import PrioritizedReplayBuffer as Buffer

__all__ = ["Prioritized"]

_ROUNDS = 16


class Prioritized(ReplayBuffer):
    """Draws by priority, and takes the errors of what it drew.

    Args:
        capacity: most experiences to keep.
        how: alpha, beta, betasteps, error_clip, epsilon and variant of
            `mmreplay.PrioritizedReplayBuffer`.
        path: as for `ReplayBuffer`.
        by_batch: weights are divided by the largest one of the batch instead of the buffer.
    """

    def __init__(
        self, capacity: int, how: dict[str, Any], *, path: Path, by_batch: bool = False
    ) -> None:
        """See the class."""
        checked_count("capacity", capacity)
        self._how, self._by_batch = how, by_batch
        self._drawn: Ids | None = None
        super().__init__(capacity, path=path)

    def _opener(self) -> Open:
        return functools.partial(
            Buffer,
            capacity=self._capacity,
            stack=self._states().stack,
            stratified=True,
            normalize="buffer",
            **self._how,
        )

    @property
    def _buffer(self) -> Buffer:
        return cast("Buffer", self._recorder.buffer)

    def sample(self, num_samples: int = 1, num_steps: int = 1) -> tuple[Any, dict[str, Any]]:
        """Draw by priority, one from each of B equal shares; see `ReplayBuffer.sample`.

        Raises:
            SchemaError (a ValueError): there are not as many; a value out of its range.
            RuntimeError: no run is as long, or the last sample's priorities were not updated.
        """
        checked_count("num_samples", num_samples)
        checked_count("num_steps", num_steps)
        self._check_updated()
        if num_samples > (count := len(self)):
            raise SchemaError(f"num_samples: expected at most {count}, found {num_samples}")
        buffer, beta = self._buffer, self._buffer.beta
        batch = buffer.sample(num_samples)
        ids, weights = batch.id, batch.weight.astype(np.float64)
        if num_steps == 1:
            found: Any = self._reader.experiences(batch)
        else:
            buffer.store.look(lambda index: self._redraw(index, ids, weights, num_steps, beta))
            draw = self._reader.beginning(ids, num_steps)
            found, _ = self._runs(draw, num_steps)
        return self._given(found, ids, weights)

    def _redraw(
        self, index: Index, ids: Ids, weights: npt.NDArray[Any], num_steps: int, beta: float
    ) -> None:
        """Put others in the place of experiences that no run begins with, drawn among the rest."""
        windows, sampler = self._reader.windows(index, num_steps), self._buffer.sampler
        if not windows.count:
            raise RuntimeError(f"num_steps: there is no run of {num_steps}; ask for less")
        for _ in range(_ROUNDS):
            wrong = (~windows.begin(ids)).nonzero()[0]
            if not wrong.size:
                return
            drawn, chances = sampler.draw(index, self._buffer.generator.random(wrong.size))
            ids[wrong], weights[wrong] = drawn, sampler.weights(chances, beta)
        # Few begin a run: take all masses, which takes time in proportion to their number.
        wrong = (~windows.begin(ids)).nonzero()[0]
        every = index.ids()
        chances = sampler.probabilities(index, every)
        begins = np.where(windows.begin(every), chances, 0)
        chosen = self._buffer.generator.choice(len(every), wrong.size, p=begins / begins.sum())
        ids[wrong], weights[wrong] = every[chosen], sampler.weights(chances[chosen], beta)

    def sample_indices(
        self, indices: Sequence[int], num_steps: int = 1
    ) -> tuple[Any, dict[str, Any]]:
        """See `ReplayBuffer.sample_indices`; with weights."""
        self._check_updated()
        found, _ = super().sample_indices(indices, num_steps)
        sampler, beta = self._buffer.sampler, self._buffer.beta
        numbers = np.asarray(indices, np.int64)

        def look(index: Index) -> tuple[Ids, npt.NDArray[Any]]:
            ids = index.at(numbers % index.n_transitions)
            return ids, sampler.weights(sampler.probabilities(index, ids), beta)

        return self._given(found, *self._buffer.store.look(look))

    def _given(self, found: Any, ids: Ids, weights: npt.NDArray[Any]) -> tuple[Any, dict[str, Any]]:
        self._drawn = ids.copy()
        if self._by_batch:
            weights = weights / weights.max()
        return found, {"weights": weights[:, None]}

    def _check_updated(self) -> None:
        if self._drawn is not None:
            raise RuntimeError("expected update_priorities(errors) before the next sample")

    def update_priorities(self, errors: npt.ArrayLike) -> None:
        """Give the experiences of the last sample, with which its runs begin, new priorities.

        Args:
            errors: (B,) or (B, 1) temporal-difference errors; SchemaError if they are others.

        Raises:
            RuntimeError: nothing was sampled since the last call.
        """
        if self._drawn is None:
            raise RuntimeError("expected a sample before update_priorities(errors)")
        self._buffer.update_priorities(self._drawn, np.asarray(errors).reshape(-1))
        self._drawn = None
