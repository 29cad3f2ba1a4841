"""The buffers that draw by priority, of whole states and of Atari games.

Invariant: an error goes to the experience that was drawn, whatever was appended since.

Source: Schaul et al. (2016), "Prioritized Experience Replay".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.compat.deferred_store import StorePath
from mmreplay.compat.nnabla_rl.replay_buffer import ReplayBuffer
from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer as Buffer
from mmreplay.datasets.replay_buffer import ReplayBuffer as CoreBuffer
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import Ids
from mmreplay.sampling.priority_draws import Prioritization
from mmreplay.sampling.priority_variants import MAX_PRIORITY, MIN_PRIORITY

_VARIANTS = {"proportional": "proportional", "rank_based": "rank"}
_ROUNDS = 1000

Clip = tuple[float, float] | None


class Prioritized(ReplayBuffer):
    """Draws by priority; `first_mass` is the priority ** alpha of experiences without an error."""

    def __init__(
        self,
        capacity: int,
        path: StorePath,
        how: tuple[Any, ...],
        first_mass: float = 1.0,
        by_batch: bool = False,
    ) -> None:
        settings = Prioritization(*how)
        self._how = dataclasses.replace(settings, stratified=True, normalize="buffer")
        self._first_mass, self._by_batch = first_mass, by_batch
        self._drawn: Ids | None = None
        super().__init__(whole_number("capacity", capacity), path=path)

    def _begin(self, kind: type[CoreBuffer] = Buffer, **settings: Any) -> None:
        how = self._how
        super()._begin(kind, **settings, **dataclasses.asdict(how))
        if how.alpha and not len(self):  # no experience has an error yet
            with np.errstate(over="ignore"):
                priority = np.power(self._first_mass, 1 / how.alpha)
            self._buffer.sampler.largest = float(np.clip(priority, MIN_PRIORITY, MAX_PRIORITY))

    @property
    def _buffer(self) -> Buffer:
        return cast("Buffer", self.core)

    def sample(self, num_samples: int = 1, num_steps: int = 1) -> tuple[Any, dict[str, Any]]:
        """Draw by priority, one from each of B equal shares; see `ReplayBuffer.sample`.

        RuntimeError if every run is shorter, or the last sample's priorities were not updated.
        """
        whole_number("num_samples", num_samples)
        whole_number("num_steps", num_steps)
        self._check_updated()
        if num_samples > (count := len(self)):
            raise SchemaError(f"num_samples: expected at most {count}, found {num_samples}")
        buffer, beta = self._buffer, self._buffer.beta
        batch = buffer.sample(num_samples)
        ids, weights = batch.id, batch.weight.astype(np.float64)
        if num_steps == 1:
            found: Any = self._experiences(batch)
        else:
            buffer.store.live.look(lambda index: self._redraw(index, ids, weights, num_steps, beta))
            found, _ = self._runs(
                lambda index: self._found_runs(index, num_steps).ids_from(ids), num_steps
            )
        return self._given(found, ids, weights)

    def _redraw(
        self, index: Index, ids: Ids, weights: npt.NDArray[Any], num_steps: int, beta: float
    ) -> None:
        """Replace experiences at which no run begins by others, drawn by priority."""
        runs, sampler = self._found_runs(index, num_steps), self._buffer.sampler
        if not runs.count:
            raise RuntimeError(f"num_steps: there is no run of {num_steps}")
        for _ in range(_ROUNDS):
            wrong = (~runs.begin(ids)).nonzero()[0]
            if not wrong.size:
                return
            drawn, chances = sampler.draw(index, self._buffer.generator.random(wrong.size))
            ids[wrong], weights[wrong] = drawn, sampler.weights(chances)(beta)
        raise RuntimeError(f"num_steps: runs of {num_steps} are too rare to be drawn by priority")

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
            return ids, sampler.weights(sampler.probabilities(index, ids))(beta)

        return self._given(found, *self._buffer.store.live.look(look))

    def _given(self, found: Any, ids: Ids, weights: npt.NDArray[Any]) -> tuple[Any, dict[str, Any]]:
        self._drawn = ids.copy()
        if self._by_batch:
            weights = weights / weights.max()
        return found, {"weights": weights[:, None]}

    def _check_updated(self) -> None:
        if self._drawn is not None:
            raise RuntimeError("expected update_priorities(errors) before the next sample")

    def update_priorities(self, errors: npt.ArrayLike) -> None:
        """Set the priorities of the last sample's experiences, or the first of each run.

        Takes (B,) or (B, 1) temporal-difference errors; fewer are for the first experiences of the
        sample. SchemaError for more errors, or for NaN and infinity; RuntimeError without a sample.
        """
        if self._drawn is None:
            raise RuntimeError("expected a sample before update_priorities(errors)")
        found = np.asarray(errors).reshape(-1)
        self._buffer.update_priorities(self._drawn[: found.size], found)
        self._drawn = None


class PrioritizedReplayBuffer(Prioritized):
    """Experiences drawn by priority, proportional or rank based; both intervals have no effect."""

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        betasteps: int = 10000,
        error_clip: Clip = (-1, 1),
        epsilon: float = 1e-8,
        reset_segment_interval: int = 1000,  # noqa: ARG002  see the class
        sort_interval: int = 1000000,  # noqa: ARG002  see the class
        variant: str = "proportional",
        *,
        path: StorePath = None,
    ) -> None:
        if variant not in _VARIANTS:
            raise SchemaError(f"variant: expected one of {[*_VARIANTS]}, found {variant!r}")
        how = alpha, beta, betasteps, epsilon, error_clip, _VARIANTS[variant]
        super().__init__(capacity, path, how)


class ProportionalPrioritizedReplayBuffer(Prioritized):
    """Experiences drawn in proportion to priority ** alpha; see `PrioritizedReplayBuffer`.

    `init_max_error` is the priority ** alpha of an experience without an error. Weights are divided
    by the largest of the buffer, ``buffer_max``, or of the batch, ``batch_max``.
    """

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        betasteps: int = 10000,
        error_clip: Clip = (-1, 1),
        epsilon: float = 1e-8,
        init_max_error: float = 1.0,
        normalization_method: str = "buffer_max",
        *,
        path: StorePath = None,
    ) -> None:
        if normalization_method not in ("batch_max", "buffer_max"):
            raise SchemaError(
                f"normalization_method: expected 'batch_max' or 'buffer_max', found "
                f"{normalization_method!r}"
            )
        if not 0 < init_max_error < np.inf:
            raise SchemaError(
                f"init_max_error: expected a finite number above 0, found {init_max_error!r}"
            )
        how = alpha, beta, betasteps, epsilon, error_clip
        super().__init__(capacity, path, how, init_max_error, normalization_method == "batch_max")


class RankBasedPrioritizedReplayBuffer(Prioritized):
    """Experiences drawn in proportion to rank ** -alpha; see `PrioritizedReplayBuffer`."""

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.7,
        beta: float = 0.5,
        betasteps: int = 10000,
        error_clip: Clip = (-1, 1),
        reset_segment_interval: int = 1000,  # noqa: ARG002  see the class
        sort_interval: int = 1000000,  # noqa: ARG002  see the class
        *,
        path: StorePath = None,
    ) -> None:
        super().__init__(capacity, path, (alpha, beta, betasteps, 1e-6, error_clip, "rank"))


class ProportionalPrioritizedAtariBuffer(ProportionalPrioritizedReplayBuffer):
    """A `ProportionalPrioritizedReplayBuffer` of states of `stacked_frames` screens."""

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        betasteps: int = 50000000,
        error_clip: Clip = (-1, 1),
        epsilon: float = 1e-8,
        normalization_method: str = "buffer_max",
        stacked_frames: int = 4,
        *,
        path: StorePath = None,
    ) -> None:
        self._stacked_frames = stacked_frames
        settings = alpha, beta, betasteps, error_clip
        super().__init__(
            capacity, *settings, epsilon, normalization_method=normalization_method, path=path
        )


class RankBasedPrioritizedAtariBuffer(RankBasedPrioritizedReplayBuffer):
    """A `RankBasedPrioritizedReplayBuffer` of states of `stacked_frames` screens."""

    def __init__(
        self,
        capacity: int,
        alpha: float = 0.7,
        beta: float = 0.5,
        betasteps: int = 50000000,
        error_clip: Clip = (-1, 1),
        reset_segment_interval: int = 1000,  # noqa: ARG002  see the class
        sort_interval: int = 1000000,  # noqa: ARG002  see the class
        stacked_frames: int = 4,
        *,
        path: StorePath = None,
    ) -> None:
        self._stacked_frames = stacked_frames
        super().__init__(capacity, alpha, beta, betasteps, error_clip, path=path)
