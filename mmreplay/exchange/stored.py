"""The episodes of a store as steps, for an export.

Invariant: every whole episode comes once, in the order of `Store.episodes`, and only a block of
steps is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Steps
from mmreplay.maintenance.episodes import read_runs, row_bytes
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Field, Schema

__all__ = ["Stored"]


class Stored:
    """A store that is exported.

    Attributes:
        schema: of the store.
        frames: the fields of observations by key, the sole one under `FRAME`.
        metadata: as given to `create`.
        lengths: (n,) int64, steps of each episode.
        n_steps: in all.
    """

    def __init__(
        self, store: Store, losses: Losses, progress: Callable[[int, int], None] | None
    ) -> None:
        self._store, self._progress = store, progress
        self.schema: Schema = store.schema
        frame = store.schema.frame
        self.frames: dict[str, Field] = {FRAME: frame} if isinstance(frame, Field) else dict(frame)
        self.metadata: dict[str, Any] = dict(store.live.readers[0].metadata.get("env") or {})
        # Read once: a writer may add steps meanwhile.
        contents = store.live.contents(returns=False)
        episodes, n_transitions = contents.episodes, sum(contents.n_transitions)
        self._episodes = episodes
        self.lengths = episodes["length"].astype(np.int64)
        self.n_steps = int(self.lengths.sum())
        losses.add(
            "episodes that are still running: exported as truncated",
            int((~episodes["terminated"] & ~episodes["truncated"]).sum()),
        )
        losses.add(
            "steps of episodes whose beginning was evicted: left out",
            max(n_transitions - self.n_steps, 0),
        )

    @property
    def n_episodes(self) -> int:
        """Including running episodes."""
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
        """The runs of each episode, for formats that need whole episodes in memory."""
        runs: list[Steps] = []
        for run in self.runs():
            runs.append(run)
            if run.ends:
                yield runs
                runs = []
