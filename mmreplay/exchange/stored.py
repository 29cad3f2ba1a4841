"""The episodes of a store as steps, to be written elsewhere.

Invariant: every whole episode comes once, in the order of `Store.episodes`, and no more than a
block of steps is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Frames, Steps, block_steps, frame_dict
from mmreplay.ids import LANE_SHIFT, Array
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Field, Schema

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
        self._firsts = episodes["id"].astype(np.int64)
        self.lengths = episodes["length"].astype(np.int64)
        self.terminated = episodes["terminated"].copy()
        self._stops = np.cumsum(self.lengths)
        self.n_steps = int(self.lengths.sum())
        widths = np.array([reader.width for reader in store.live.readers], np.int64)
        self._strides = widths[self._firsts >> LANE_SHIFT]
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
        return sum(one.row_bytes for one in self.schema.columns().values())

    def runs(self) -> Iterator[Steps]:
        """All steps, a block at a time; a run ends where its episode does."""
        size = block_steps(self.row_bytes)
        for start in range(0, self.n_steps, size):
            stop = min(start + size, self.n_steps)
            yield from self._block(start, stop)
            if self._progress is not None:
                self._progress(stop * self.row_bytes, self.n_steps * self.row_bytes)

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

    def _block(self, start: int, stop: int) -> Iterator[Steps]:
        """Steps [start, stop), counted over all episodes."""
        begins = self._stops - self.lengths
        low = int(self._stops.searchsorted(start, "right"))
        high = int(begins.searchsorted(stop))
        numbers = np.arange(low, high)
        firsts = np.maximum(begins[low:high], start)
        counts = np.minimum(self._stops[low:high], stop) - firsts
        owner = np.repeat(numbers, counts)
        ids = self._firsts[owner] + (np.arange(start, stop) - begins[owner]) * self._strides[owner]
        batch = self._store.transitions(ids, stack=None)
        before, after = _frames(batch.observation), _frames(batch.next_observation)
        at = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            part = slice(at, at + count)
            yield Steps(
                {
                    key: np.concatenate((rows[part], after[key][at + count - 1 : at + count]))
                    for key, rows in before.items()
                },
                batch.action[part],
                batch.reward[part],
                ~batch.non_terminal[part],
                {key: rows[part] for key, rows in batch.extras.items()},
                bool(begins[number] >= start),
                bool(self._stops[number] <= stop),
            )
            at += count


def _frames(observation: Any) -> Frames:
    if isinstance(observation, dict):
        return observation
    out: dict[str, Array] = {FRAME: observation}
    return out
