"""The episodes of a store as steps, for an export.

Invariant: every whole episode comes once, in the order of `Store.episodes`, and only a block of
steps is in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mmreplay.batches.runs import Steps
from mmreplay.exchange.fields import PREFIX
from mmreplay.exchange.losses import Losses
from mmreplay.ids import Array
from mmreplay.maintenance.episode_runs import read_runs, row_bytes
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.texts import Text


class Stored:
    """A store that is exported: `lengths` has the steps of each episode, `fields` its fields."""

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
        self._episodes, self.fields = episodes, dict(store.live.fields)
        self.lengths = episodes["length"].astype(np.int64)
        self.n_steps, self.n_episodes = int(self.lengths.sum()), len(episodes)
        self.row_bytes = row_bytes(store.schema)  # uncompressed
        losses.add_names(
            "derived columns: exported as extra columns, which cannot be updated",
            self.schema.derived,
        )
        losses.add(
            "episodes that are still running: exported as truncated",
            int((~episodes["terminated"] & ~episodes["truncated"]).sum()),
        )
        losses.add(
            "steps of episodes whose beginning was evicted: left out",
            max(n_transitions - self.n_steps, 0),
        )

    def runs(self) -> Iterator[Steps]:
        """All steps, a block at a time; a run ends where its episode does."""
        n_done = 0
        for run in read_runs(self._store, self._episodes):
            yield dataclasses.replace(
                run, observation={key: rows[:] for key, rows in run.observation.items()}
            )
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


def table_shapes(stored: Stored) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """The columns of an exported table: shape, with the rows first, and dtype, by name."""
    n, schema = stored.n_steps, stored.schema
    out: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for key, one in stored.frames.items():
        suffix = f"/{key}" if schema.is_dict else ""
        out[f"observations{suffix}"] = ((n, *one.shape), one.dtype)
        out[f"final_observations{suffix}"] = ((stored.n_episodes, *one.shape), one.dtype)
    out["actions"] = ((n, *schema.action.shape), schema.action.dtype)
    out["rewards"] = ((n,), schema.reward_dtype)
    for name in ("terminations", "truncations", "life_losses"):
        out[name] = ((n,), np.dtype(np.bool_))
    for name, one in schema.extra_fields.items():
        out[f"extras/{name}"] = ((n, *one.shape), one.dtype)
    for name, field in stored.fields.items():
        is_text = isinstance(field, Text)
        shape = () if is_text else field.shape
        dtype = np.dtype(f"S{field.shape[0]}") if is_text else field.dtype
        out[f"{PREFIX}{name}"] = ((stored.n_episodes, *shape), dtype)
    return out


def table_rows(run: Steps, *, is_dict: bool) -> dict[str, Array]:
    """The columns of some steps; final observations only where episodes end, texts as bytes."""
    n, out = len(run), {}
    last = np.zeros(n, np.bool_)
    last[-1] = run.ends
    for key, rows in run.observation.items():
        suffix = f"/{key}" if is_dict else ""
        out[f"observations{suffix}"] = rows[:-1]
        out[f"final_observations{suffix}"] = rows[n : n + run.ends]
    return out | {
        "actions": run.action,
        "rewards": run.reward,
        "terminations": run.terminal & last,
        "truncations": ~run.terminal & last,
        "life_losses": run.terminal & ~last,
        **{f"extras/{name}": rows for name, rows in run.extras.items()},
        **{
            f"{PREFIX}{name}": np.asarray(value)[None][: run.begins]
            for name, value in run.episode.items()
        },
    }
