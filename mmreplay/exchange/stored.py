"""The episodes of a store as steps, to be written elsewhere.

Invariant: every whole episode comes once, in the order of `Store.episodes`, and no more than a
block of steps is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Steps, frame_dict
from mmreplay.maintenance.episodes import read_runs, row_bytes
from mmreplay.reading.store import Store
from mmreplay.schema import Field, Schema

__all__ = ["Stored"]


class Stored:
    """A store that is exported.

    Attributes:
        schema: what a row holds.
        frames: the fields of observations by key, the sole one under `FRAME`.
        metadata: as given to `create`.
        lengths: (n,) int64, steps of each episode.
        terminated: (n,) bool, whether it ended in a terminal state.
        n_steps: in all.
        has_lost_lives: whether a terminal step may stand in the middle of an episode.
    """

    def __init__(
        self, store: Store, losses: Losses, progress: Callable[[int, int], None] | None
    ) -> None:
        self._store, self._progress = store, progress
        self.schema: Schema = store.schema
        self.frames: dict[str, Field] = frame_dict(store.schema.frame)
        self.metadata: dict[str, Any] = dict(store.live.readers[0].metadata.get("env") or {})
        # In one look: a writer may add steps before the next one.
        contents = store.live.contents(returns=False)
        episodes, n_transitions = contents.episodes, sum(contents.n_transitions)
        self._episodes = episodes
        self.lengths = episodes["length"].astype(np.int64)
        self.terminated = episodes["terminated"].copy()
        self.n_steps = int(self.lengths.sum())
        losses.add(
            "episodes that are still running: they end here as truncated",
            int((~episodes["terminated"] & ~episodes["truncated"]).sum()),
        )
        losses.add(
            "steps of episodes whose beginning was evicted: left out",
            max(n_transitions - self.n_steps, 0),
        )

    @property
    def n_episodes(self) -> int:
        """Whole ones, and those that are running."""
        return len(self.lengths)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, uncompressed."""
        return row_bytes(self.schema)

    def runs(self) -> Iterator[Steps]:
        """All steps, a block at a time; a run ends where its episode does."""
        n_done = 0
        for run in read_runs(self._store, self._episodes):
            yield run
            n_done += len(run)
            if self._progress is not None:
                self._progress(n_done * self.row_bytes, self.n_steps * self.row_bytes)

    def episodes(self) -> Iterator[list[Steps]]:
        """The runs of each episode; the caller takes those of one before it asks for the next.

        Only for formats that need an episode as a whole: it is in memory as one.
        """
        runs: list[Steps] = []
        for run in self.runs():
            runs.append(run)
            if run.ends:
                yield runs
                runs = []
