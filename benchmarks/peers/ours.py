"""mmreplay, with each codec, and with batches made ahead where it can."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

import mmreplay
from benchmarks.peers.peer import Setup
from benchmarks.peers.steps import ACTION, Plain, Promise, Step

__all__ = ["Ours", "can_prefetch"]


def can_prefetch() -> bool:
    """Whether this version makes batches ahead."""
    return "prefetch" in inspect.signature(mmreplay.ReplayBuffer).parameters


class Ours:
    """A `ReplayBuffer`, or what `load` gives where nothing is written."""

    promise = Promise()

    def __init__(self, setup: Setup, codec: str, prefetch: int = 0) -> None:
        """Make, resume or load the store."""
        path = setup.folder / "store.zarr"
        stack = 4 if setup.is_frames else None
        ahead: dict[str, Any] = {"prefetch": prefetch} if prefetch else {}
        self._data: Any
        if setup.closed:
            self._data = mmreplay.load(path, stack=stack, **ahead)
            return
        dtype, action = ("uint8", ()) if setup.is_frames else ("float32", (ACTION,))
        self._data = mmreplay.ReplayBuffer(
            path,
            setup.capacity,
            stack,
            frame=mmreplay.Field(setup.shape, dtype, codec),
            action=mmreplay.Field(action, "int64" if setup.is_frames else "float32"),
            lanes=setup.n_envs or None,
            **ahead,
        )
        self._began = False

    def append(self, step: Step) -> None:
        if step.is_first or not self._began:
            self._data.reset(step.frame)
            self._began = True
        flags = step.terminated, step.truncated
        self._data.step(step.action, step.reward, step.next_frame, *flags)

    def extend(self, tick: tuple[Any, ...]) -> None:
        observations, following, actions, rewards, never = tick
        if not self._began:
            self._data.reset(observations)
            self._began = True
        self._data.step(actions, rewards, following, never, never)

    def sample(self, n: int) -> mmreplay.Batch:
        batch: mmreplay.Batch = self._data.sample(n)
        return batch

    def plain(self, batch: mmreplay.Batch) -> Plain:
        action = batch.action if batch.action.ndim == 1 else batch.action[:, 0]
        assert isinstance(batch.observation, np.ndarray)
        assert isinstance(batch.next_observation, np.ndarray)
        return Plain(
            batch.observation,
            batch.next_observation,
            action,
            batch.reward,
            ~batch.non_terminal,
        )

    def save(self) -> None:
        self._data.flush()

    def close(self) -> None:
        """Close the store, which makes it small."""
        self._data.close()

    def __len__(self) -> int:
        return len(self._data)
