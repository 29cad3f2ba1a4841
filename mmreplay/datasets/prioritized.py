"""`PrioritizedDataset`: stores sampled by priority, also while other processes write their rows.

Invariant: a priority stays with its transition, by id, until that is evicted; losing priorities
loses no transition. Of each lane one process changes the priorities.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import FieldWindows, WindowBatch
from mmreplay.datasets.dataset import Dataset, Seed
from mmreplay.datasets.store_draws import Draw
from mmreplay.episode_index import Index
from mmreplay.errors import ClosedError, LockedError, MmreplayError, SchemaError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.store import Store
from mmreplay.sampling.priority_draws import Prioritization, PrioritizedSampler
from mmreplay.sampling.priority_variants import MAX_PRIORITY
from mmreplay.storage import priority_column
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.storage.priority_column import Lane, PriorityColumn
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.create import open_writer

_MOST_BATCHES = 1 << 62
_ATTEMPTS = 3


class ByPriority(Dataset):
    """What a prioritized buffer, and a store loaded by priority, do alike.

    `sample` draws with replacement, and `Batch.weight` corrects for the priorities; `replace=False`
    and `group=m` are refused.
    """

    _how: Prioritization
    _column: PriorityColumn
    _sampler: PrioritizedSampler | None = None

    def _begin(
        self,
        index: Index,
        kept: Mapping[str, Any],
        make: Callable[[AnyPath, int | None], ArraySpec] = priority_column.find_or_make,
    ) -> None:
        """Take the priorities that are there; `kept` may say the largest, and the batches."""
        column = self._column = PriorityColumn(lanes_of(self.store.live), index.window, make)
        largest, n_batches = kept.get("largest"), kept.get("batches")
        is_sound = isinstance(largest, float) and 0 < largest <= MAX_PRIORITY
        try:
            self._sampler = PrioritizedSampler(
                column, self._how, index, largest if is_sound else None
            )
        except BaseException:
            column.release()
            raise
        if isinstance(n_batches, int) and 0 <= n_batches < _MOST_BATCHES:
            self._sampler.n_batches = n_batches

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
        """See `Source`; with the largest priority, and the number of batches for beta.

        Priorities are not in it: they stay in the store.
        """
        sampler = self.sampler
        return {
            **super().state_dict(),
            "batches": sampler.n_batches,
            "largest": sampler.largest,
        }

    def _restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """See `Source`; restores beta and the largest priority, too, if the state has them."""
        restore, sampler = super()._restoring(state), self.sampler
        n_batches = whole_number("batches", state.get("batches", sampler.n_batches), 0)
        largest = state.get("largest", sampler.largest)
        if not (isinstance(largest, float) and 0 < largest <= MAX_PRIORITY):
            raise SchemaError(f"state: largest: expected a priority, found {largest!r:.80}")

        def all_of_it() -> None:
            restore()
            sampler.n_batches = n_batches
            sampler.largest = max(largest, sampler.largest)  # never below those that are there

        return all_of_it

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

    def close(self) -> None:
        """Make priorities durable, let others change them, and close the rest."""
        if self._sampler is not None:
            with contextlib.suppress(MmreplayError):  # under its lock, if it can be read
                self.store.live.look(lambda _: self._column.release())
            self._column.release()
        super().close()


class PrioritizedDataset(ByPriority):
    """Stores loaded by priority; made by ``load(path, prioritized=True)``. A context manager.

    Other processes may write the rows meanwhile, add lanes, and evict. New rows get the largest
    priority ever given, in whichever lane. One process may sample a store so at a time.
    """

    def __init__(
        self, store: Store, settings: Settings, seed: Seed, prefetch: int, how: Prioritization
    ) -> None:
        super().__init__(store, settings, seed, prefetch)
        self._how = how
        try:
            store.live.look(lambda index: self._begin(index, {}, find_or_make))
        except BaseException:
            store.close()
            raise

    def flush(self) -> None:
        """Make priorities and updated values durable."""
        if self._sampler is not None:
            self._column.sync()
        super().flush()

    def __getstate__(self) -> NoReturn:
        """Refuse: one process changes priorities."""
        raise SchemaError(
            f"{self.store.path}: sampled by priority it cannot be pickled, as one process changes "
            f"priorities; load it without prioritized= in the other one"
        )


def lanes_of(live: LiveLanes) -> Callable[[], list[Lane]]:
    """Returns the lanes as they are when it is called, under the lock of the store."""
    return lambda: [Lane(one.path, one.environments, one.metadata["uuid"]) for one in live.readers]


def find_or_make(lane: AnyPath, environments: int | None) -> ArraySpec:
    """As that of `priority_column`; in a closed lane by a writer, which closes it with the column.

    Raises:
        LockedError: somebody opens and closes the lane at this moment.
    """
    for _ in range(_ATTEMPTS):
        with priority_column.making(lane):
            is_there = priority_column.find_spec(lane, environments) is not None
            if is_there or not read_metadata(lane)["closed"]:  # it stays so in here
                return priority_column.found_or_made(lane, environments)
        with contextlib.suppress(LockedError):
            writer = open_writer(lane, {}, 0)
            try:
                writer.files.add_priorities()
            finally:
                writer.close()
    raise LockedError(f"{lane}: it is opened and closed at this moment; try again")
