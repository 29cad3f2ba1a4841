"""Stable-Baselines3's replay buffers in memory; its files are pickles, which are never opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.columns import ArrayColumn, row_bytes
from mmreplay.exchange.fields import field, flags, reward_dtype
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Frames, Incoming, block_steps
from mmreplay.exchange.transitions import Table, to_steps
from mmreplay.ids import Array, Ids
from mmreplay.schema import FRAME

__all__ = ["read"]

_PARTS = ("observations", "actions", "rewards", "dones", "pos", "full", "buffer_size", "n_envs")


@contextmanager
def read(source: Any, losses: Losses) -> Iterator[Incoming]:
    """A buffer in memory: the steps of one environment after another, each oldest first."""
    if isinstance(source, Path):
        raise FormatError(
            f"{source}: stable_baselines3 saves replay buffers as pickles, which can run code, so "
            f"an import does not open them. If you trust it: model.load_replay_buffer("
            f"path), then mmreplay.import_dataset('stable_baselines3', model.replay_buffer, dst)"
        )
    if missing := [name for name in _PARTS if not hasattr(source, name)]:
        raise SchemaError(
            f"src: expected a ReplayBuffer of stable_baselines3, found {type(source).__name__} "
            f"without {missing[0]}"
        )
    yield _Buffer(source, losses).incoming()


class _Buffer:
    """A buffer; with optimize_memory_usage it has no separate next observations."""

    def __init__(self, source: Any, losses: Losses) -> None:
        self._source, self._losses = source, losses
        given = source.observations
        self._observations: Frames = dict(given) if isinstance(given, dict) else {FRAME: given}
        self._once = bool(getattr(source, "optimize_memory_usage", False))
        after: Any = getattr(source, "next_observations", None)
        self._after: Frames = dict(after) if isinstance(after, dict) else {FRAME: after}
        n, size = int(source.pos), int(source.buffer_size)
        self._order: Ids = np.arange(n, dtype=np.int64)
        if source.full:
            # With `_once`, the oldest row has the observation after the newest step.
            self._order = (np.arange(self._once, size, dtype=np.int64) + n) % size

    def incoming(self) -> Incoming:
        """Fields and steps."""
        source = self._source
        frames = {
            key: field(rows.shape[2:], rows.dtype, f"observations {key}")
            for key, rows in self._observations.items()
        }
        actions = source.actions
        self._is_flat = actions.dtype.kind in "iu" and actions.shape[2:] == (1,)
        shape = () if self._is_flat else actions.shape[2:]
        return Incoming(
            frames,
            field(shape, actions.dtype, "actions"),
            reward_dtype(source.rewards.dtype, "rewards"),
            {},
            to_steps(self._tables(), "repeat", self._losses),
            n_steps=len(self._order) * int(source.n_envs),
        )

    def _tables(self) -> Iterator[Table]:
        source = self._source
        columns = {key: ArrayColumn(rows) for key, rows in self._observations.items()}
        size = block_steps(row_bytes(columns) // max(int(source.n_envs), 1))
        timeouts = getattr(source, "timeouts", None)
        if timeouts is None or not getattr(source, "handle_timeout_termination", True):
            timeouts = np.zeros(source.dones.shape, np.bool_)
            self._losses.add("truncation flags: the buffer has none")
        n = len(self._order)
        for env in range(int(source.n_envs)):
            for start in range(0, n, size):
                at = self._order[start : start + size]
                done = flags(source.dones[at, env], "src: dones")
                timeout = flags(timeouts[at, env], "src: timeouts")
                ends = done.copy()
                if start + size >= n:
                    ends[-1] = True  # the newest step of an environment
                actions = source.actions[at, env]
                yield Table(
                    {key: rows[at, env] for key, rows in self._observations.items()},
                    actions.reshape(len(at)) if self._is_flat else actions,
                    source.rewards[at, env],
                    done & ~timeout,
                    ends,
                    {},
                    self._next(at, env),
                )

    def _next(self, at: Ids, env: int) -> Frames:
        """The observations after steps; with `_once`, the next rows of the ring."""
        out: dict[str, Array] = {}
        for key, rows in self._observations.items():
            out[key] = rows[(at + 1) % len(rows), env] if self._once else self._after[key][at, env]
        return out
