"""`ReplayBuffer`: a dataset that grows.

Invariant: the saved random state is the one after the last batch that was returned, so a resumed
buffer continues with the batches that it would have returned.
"""

from __future__ import annotations

import dataclasses
import json
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import EllipsisType
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_seed
from mmreplay.batches.settings import Settings
from mmreplay.datasets.dataset import Dataset, Seed
from mmreplay.datasets.read_ahead import checked_prefetch
from mmreplay.datasets.updates import Updates
from mmreplay.errors import CorruptStoreError, SchemaError
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.reading.store import Store
from mmreplay.schema import Field
from mmreplay.system.held_directories import HeldDirectory
from mmreplay.writing.create import FLUSH_S, create, give_up
from mmreplay.writing.request import Resume


class BufferOptions(TypedDict, total=False):
    """The keywords of `ReplayBuffer`."""

    frame: Field | Mapping[str, Field] | None
    action: Field | None
    codec: str | Mapping[str, Any] | None
    extras: Mapping[str, Field] | None
    derived: Mapping[str, Field] | None
    reward_dtype: npt.DTypeLike | None
    env: Any
    lanes: int | None
    padding: str | None
    stack_axis: int
    clip_reward: tuple[float, float] | None
    metadata: Mapping[str, Any] | None
    resume: Resume
    flush_s: float
    prefetch: int
    episode: Mapping[str, EpisodeField] | None


class ReplayBuffer(Dataset):
    """A live replay buffer: created, or resumed where it stopped, with its random state.

    It is the `Dataset` of a store together with the store's writer. One thread steps; the same or
    others sample. A context manager: leaving it closes the store, which is then offline data.

    Args:
        path: the store's directory; its parent must exist.
        capacity: most transitions to keep; None keeps everything. Each opening may change it; None
            then leaves it as it is.
        stack, n_step, gamma, padding, stack_axis, clip_reward: how transitions are rebuilt; see
            `load`.
        seed: of the sampling, at creation; a resumed buffer continues the stored generator.
        frame, action, codec, extras, derived, reward_dtype, env, metadata, episode: as for
            `create`; if the
            store exists, left out or equal to its own.
        lanes: number of environments that step together in the one lane; None for one alone.
        resume: True needs a store at the path, False a free path; ``auto`` takes either, and logs
            a line if there is one.
        flush_s: seconds between flushes; 0 for none.
        prefetch: batches to read ahead in threads; see `load`. A batch then shows the buffer as it
            was up to that many samples before, without what was evicted since.

    Raises:
        StoreNotFoundError, StoreExistsError: `resume` needs a store, or a free path.
        SchemaError, LockedError, DiskFullError, FormatError, CorruptStoreError: as `create`.

    Attributes:
        store: the same data, read-only.
        writer: the `Writer` or `VectorWriter`.
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
        frame: Field | Mapping[str, Field] | None = None,
        action: Field | None = None,
        codec: str | Mapping[str, Any] | None = None,
        extras: Mapping[str, Field] | None = None,
        derived: Mapping[str, Field] | None = None,
        reward_dtype: npt.DTypeLike | None = None,
        env: Any = None,
        lanes: int | None = None,
        padding: str | None = None,
        stack_axis: int = 0,
        clip_reward: tuple[float, float] | None = None,
        metadata: Mapping[str, Any] | None = None,
        resume: Resume = "auto",
        flush_s: float = FLUSH_S,
        prefetch: int = 0,
        episode: Mapping[str, EpisodeField] | None = None,
    ) -> None:
        given = None if stack is ... else stack  # a default fits all frames
        settings = Settings(given, n_step, gamma, padding or "reset", stack_axis, clip_reward)
        settings.check_evicting(evicts=capacity is not None)
        check_seed(seed)  # before anything is made
        checked_prefetch(prefetch)
        self.writer = create(
            path,
            frame,
            action,
            capacity,
            extras,
            reward_dtype,
            codec,
            derived=derived,
            env=env,
            lanes=lanes,
            padding=padding,
            metadata=metadata,
            resume=resume,
            flush_s=flush_s,
            episode=episode,
        )
        writer, files = self.writer, self.writer.files
        try:
            # By its directory instead of its path: the buffer reads what its writer writes.
            known = dataclasses.replace(files.document, metadata=files.metadata)
            store = Store([HeldDirectory(files.path).root], padding=padding, given=known)
            stack, stacked = store.schema.stacks(stack)
            settings = dataclasses.replace(
                settings, stack=stack, padding=store.padding, stacked=stacked
            )
            super().__init__(store, settings, seed, prefetch)
            self.updates = Updates(store.live, store.schema.derived, lock=False)
            saved = files.generator()
            self._restored = {} if saved is None else _restore(self.generator, saved, store.path)
            more = "" if saved is None else "; its random state continues, and seed= is ignored"
            files.log_resumed(len(self), resume, more)
            files.on_flush = _saver(self)
        except BaseException:
            give_up(writer)
            raise
        # The writer's own methods save a call each of the millions of times.
        if type(self).step is ReplayBuffer.step:
            self.step = writer.step  # type: ignore[method-assign, assignment]
        if type(self).reset is ReplayBuffer.reset:
            self.reset = writer.reset  # type: ignore[method-assign, assignment]

    def reset(self, frame: Any, mask: Any = None, **fields: Any) -> None:
        """Begin an episode: `Writer.reset`, or `VectorWriter.reset` with its `mask`."""
        self.writer.reset(frame, mask, **fields)

    def episode(self, mask: npt.ArrayLike | None = None, **fields: Any) -> None:
        """Say something of the episode of the newest step: `Writer.episode`."""
        self.writer.episode(mask, **fields)

    def step(
        self,
        action: Any,
        reward: Any,
        next_frame: Any,
        terminated: Any = False,
        truncated: Any = False,
        **more: Any,
    ) -> None:
        """Append a step: `Writer.step`, or `VectorWriter.step`, with their other arguments."""
        self.writer.step(action, reward, next_frame, terminated, truncated, **more)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse: a store has one writer."""
        raise SchemaError(
            f"{self.writer.path}: {type(self).__name__} cannot be pickled, as its store has one "
            f"writer; call mmreplay.load({str(self.writer.path)!r}, ...) in the other process to "
            f"read and sample there"
        )

    def _saved_state(self) -> dict[str, Any]:
        """Saved with each flush: the random state, and what a prioritized buffer had saved."""
        bits = self.generator.bit_generator
        with bits.lock:
            return {**self._restored, **bits.state}

    @property
    def capacity(self) -> int | None:
        """Most transitions kept, over all environments."""
        return self.writer.files.capacity

    def flush(self) -> None:
        """Make all rows, updated values, and the random state, durable."""
        self.writer.flush()

    def close(self) -> None:
        """Close the store; a second call does nothing."""
        self.updates.close()  # the writer stores the checksums
        try:
            self.writer.close()
        finally:
            super().close()


def _saver(buffer: ReplayBuffer) -> Callable[[], str | None]:
    """Returns the random state to save, without keeping the buffer alive."""
    reference = weakref.ref(buffer)

    def state() -> str | None:
        alive = reference()
        # A generator of another kind, set by the user, is not saved: its state may not be JSON.
        if alive is None or not isinstance(alive.generator.bit_generator, np.random.PCG64):
            return None
        # A string, as many readers of JSON do not support numbers of 128 bits.
        return json.dumps(alive._saved_state())  # noqa: SLF001 (a buffer of this module)

    return state


def _restore(generator: np.random.Generator, saved: str, path: Path) -> dict[str, Any]:
    """Set the random state; returns a prioritized buffer's saved numbers, as "sampler"."""
    try:
        document = json.loads(saved)
        generator.bit_generator.state = document
    except (
        ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        raise CorruptStoreError(
            f"{path}: the saved random state cannot be read: {error!s:.200}; run `mmreplay verify`"
        ) from error
    sampler = document.get("sampler")
    known = sampler if isinstance(sampler, dict) else {}  # another program may have written it
    numbers = {name: known.get(name) for name in ("largest", "batches")}
    kept = {name: one for name, one in numbers.items() if type(one) in {int, float}}
    return {"sampler": kept} if kept else {}
