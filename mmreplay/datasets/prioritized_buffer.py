"""`PrioritizedReplayBuffer`: a replay buffer that samples by priority.

Invariant: it is a `ReplayBuffer` whose draws are those of `ByPriority`.
"""

from __future__ import annotations

import os
from types import EllipsisType
from typing import Any, Unpack

from mmreplay.datasets.dataset import Seed
from mmreplay.datasets.prioritized import ByPriority
from mmreplay.datasets.replay_buffer import BufferOptions, ReplayBuffer
from mmreplay.sampling.priority_draws import Prioritization
from mmreplay.writing.create import give_up


class PrioritizedReplayBuffer(ByPriority, ReplayBuffer):
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
            self.writer.files.add_priorities()
            kept = self._restored.get("sampler", {})
            self.store.live.look(lambda index: self._begin(index, kept))
        except BaseException:
            self.store.close()
            self.writer.files.on_flush = None  # the state that was saved stays
            give_up(self.writer)
            raise

    def _saved_state(self) -> dict[str, Any]:
        """See `ReplayBuffer`; with what the sampler has."""
        if self._sampler is None:
            return super()._saved_state()
        kept = {"largest": self._sampler.largest, "batches": self._sampler.n_batches}
        return {**super()._saved_state(), "sampler": kept}
