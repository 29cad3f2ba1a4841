"""`PrioritizedReplayBuffer`: a replay buffer that samples by priority.

Invariant: a priority stays with its transition, by id, until that is evicted; losing priorities
loses no transition.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.windows import FieldWindows, WindowBatch
from mmreplay.datasets.dataset import Seed
from mmreplay.datasets.replay_buffer import BufferOptions, ReplayBuffer
from mmreplay.datasets.store_draws import Draw
from mmreplay.episode_index import Index
from mmreplay.errors import ClosedError, SchemaError
from mmreplay.ids import Ids
from mmreplay.sampling.priority_draws import Prioritization, PrioritizedSampler
from mmreplay.sampling.priority_variants import MAX_PRIORITY
from mmreplay.storage.priority_column import PriorityColumn
from mmreplay.writing.create import give_up

_MOST_BATCHES = 1 << 62


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that samples by priority.

    `sample` draws with replacement, and `Batch.weight` corrects for the priorities; `replace=False`
    and `group=m` are refused.

    New transitions get the largest priority ever given. Priorities are stored by id beside the
    rows: they survive a kill together with their rows, and a power cut as of the last flush. A
    store that was written without them can be opened with this class, and vice versa.

    Args:
        path, capacity, stack, n_step, gamma, seed: as for `ReplayBuffer`.
        alpha, beta, betasteps, epsilon, error_clip, variant, stratified, normalize: see
            `mmreplay.sampling.priority_draws.Prioritization`; each opening may give others.
        of_buffer: frame, action, codec, extras, derived, reward_dtype, env, lanes, padding,
            stack_axis, clip_reward, metadata, resume, flush_s, prefetch and episode, as for
            `ReplayBuffer`. A batch that is read ahead is drawn by the priorities of that time.

    Raises:
        SchemaError, LockedError, DiskFullError, FormatError, CorruptStoreError: as `ReplayBuffer`.

    Source: Schaul et al. (2016), "Prioritized Experience Replay".
    """

    _sampler: PrioritizedSampler | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        capacity: int | None = None,
        stack: int | EllipsisType | None = ...,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: Seed = 0,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        betasteps: int | None = None,
        epsilon: float = 1e-6,
        error_clip: tuple[float, float] | None = None,
        variant: str = "proportional",
        stratified: bool = False,
        normalize: str = "batch",
        **of_buffer: Unpack[BufferOptions],
    ) -> None:
        self._how = Prioritization(
            alpha, beta, betasteps, epsilon, error_clip, variant, stratified, normalize
        )
        super().__init__(path, capacity, stack, n_step, gamma, seed, **of_buffer)
        try:
            self.store.live.look(self._begin)
        except BaseException:
            self.store.close()
            self.writer.files.on_flush = None  # the state that was saved stays
            give_up(self.writer)
            raise

    def _begin(self, index: Index) -> None:
        files = self.writer.files
        base, _, head = index.window(0)
        files.add_priorities()
        self._column = PriorityColumn(files.path, (base, head), files.environments)
        kept = self._restored.get("sampler", {})
        largest, n_batches = kept.get("largest"), kept.get("batches")
        is_sound = isinstance(largest, float) and 0 < largest <= MAX_PRIORITY
        self._sampler = PrioritizedSampler(
            self._column, self._how, index, largest if is_sound else None
        )
        if isinstance(n_batches, int) and 0 <= n_batches < _MOST_BATCHES:
            self._sampler.n_batches = n_batches

    def _saved_state(self) -> dict[str, Any]:
        """See `ReplayBuffer`; with what the sampler has."""
        if self._sampler is None:
            return super()._saved_state()
        kept = {"largest": self._sampler.largest, "batches": self._sampler.n_batches}
        return {**super()._saved_state(), "sampler": kept}

    def after_fork_in_child(self) -> None:
        """In a forked child: the priorities are the parent's."""
        super().after_fork_in_child()
        self._sampler = None

    @property
    def sampler(self) -> PrioritizedSampler:
        """Draws the samples; ClosedError in a forked child."""
        if self._sampler is None:
            raise ClosedError(
                f"{self.store.path}: the priorities belong to the parent of this process; sample "
                f"there, or load the store here"
            )
        return self._sampler

    def state_dict(self) -> dict[str, Any]:
        """See `Source`; with the number of batches, on which beta depends.

        Priorities are not in it: they stay in the store.
        """
        return {**super().state_dict(), "batches": self.sampler.n_batches}

    def _restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """See `Source`; restores beta, too, if the state has it."""
        restore, sampler = super()._restoring(state), self.sampler
        n_batches = whole_number("batches", state.get("batches", sampler.n_batches), 0)

        def both() -> None:
            restore()
            sampler.n_batches = n_batches

        return both

    @property
    def beta(self) -> float:
        """The beta of the next batch's weights."""
        return self._how.beta_at(self.sampler.n_batches)

    @property
    def n_late_updates(self) -> int:
        """Updates since opening that came after their transition had been evicted."""
        return self.sampler.n_late + super().n_late_updates

    def begin_sample(
        self, generator: np.random.Generator, size: int, replace: bool, group: int | None
    ) -> Draw[Batch]:
        """See `Dataset.begin_sample`; raises SchemaError without replacement, or in groups."""
        if not replace:
            raise SchemaError(
                "replace: expected True: the weights are those of draws with replacement; for a "
                "wider spread use stratified=True"
            )
        if group is not None:
            raise SchemaError(
                f"group: expected None: priorities draw each transition separately; found "
                f"{group!r:.80}"
            )
        sampler, how = self.sampler, self._how
        draws = generator.random(size)
        weights: Callable[[float], npt.NDArray[np.float64]]

        def choose(index: Index) -> Ids:
            nonlocal weights
            ids, probabilities = sampler.draw(index, draws)
            weights = sampler.weights(probabilities)
            return ids

        def finish(batch: Batch) -> None:
            batch.weight[:] = weights(how.beta_at(sampler.n_batches))
            sampler.n_batches += 1

        return Draw(self.draws.choose(choose), self.draws.gatherer, finish)

    def begin_windows(
        self, generator: np.random.Generator, size: int, fields: FieldWindows
    ) -> Draw[WindowBatch]:
        """See `Dataset.begin_windows`; raises SchemaError for ``drop``."""
        if fields.boundary == "drop":
            raise SchemaError(
                "boundary: expected 'pad': every step has a priority, and its weight is that of a "
                "draw from all of them; found 'drop'; leave out what batch.mask says"
            )
        return super().begin_windows(generator, size, fields)

    def update_priorities(self, ids: npt.ArrayLike, errors: npt.ArrayLike) -> None:
        """Give transitions the priority |error| + epsilon.

        Updates may come after any number of later batches. Transitions that were evicted are
        skipped and counted in `n_late_updates`.

        Args:
            ids: (B,) of a batch; if an id occurs twice, its last error counts.
            errors: (B,) temporal-difference errors of any sign.

        Raises:
            SchemaError: errors that are not finite, or another number of errors than of ids.
            InvalidIdError: an id that never was a transition.
        """
        wanted = self.store.live.checked_ids(ids)
        priorities = self._how.priorities(errors, wanted.size)
        sampler = self.sampler
        self.store.live.look(lambda index: sampler.update(index, wanted, priorities))

    def priorities(self, ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The priorities of transitions, (B,); raises InvalidIdError for an id that is not one."""
        return self._of_each(ids, PrioritizedSampler.priorities)

    def probabilities(self, ids: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """The probabilities that a draw returns these transitions, (B,); raises as `priorities`."""
        return self._of_each(ids, PrioritizedSampler.probabilities)

    def _of_each(
        self,
        ids: npt.ArrayLike,
        what: Callable[[PrioritizedSampler, Index, Ids], npt.NDArray[np.float64]],
    ) -> npt.NDArray[np.float64]:
        valid, sampler = self.store.live.valid_ids(ids), self.sampler
        return self.store.live.look(lambda index: what(sampler, index, valid(index)))
