"""A writer of a store, and what must be in it: one of two whose stores have to do with each other.

Invariant: the frames of each party are of values that no other has, so that a row in the wrong
store is noticed; the model moves only with calls that return.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.reading.store import Store
from mmreplay.schema import Field
from mmreplay.writing.create import create
from tests.support.disks import faults
from tests.support.oracle import checks, disk
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import Model
from tests.support.oracle.pair import Pair

_VALUES = 4
_EPSILON = 1e-6
CODECS = ("lz4", "raw")


def frame_of(codec: str, environments: int | None) -> Field:
    """A field of frames; raw ones of many environments lie environment by environment."""
    if codec == "raw":
        return Field((3, 4) if environments is None else (64, 64), "uint8", "raw", 8)
    return Field((3, 4), "uint8", codec, 4, 8)


class _Marked(Pair):
    """Frames of few values from `mark` on."""

    mark = 0

    def frame(self) -> Any:
        one = self.schema.frames["frame"]
        return self.random.integers(self.mark, self.mark + _VALUES, one.shape).astype(one.dtype)


class Party:
    """See the module."""

    def __init__(
        self, layout: Layout, mark: int, luck: random.Random, *, prioritized: bool = False
    ) -> None:
        self.layout, self.luck, self.mark = layout, luck, mark
        self.model: Model = layout.model()
        self.writer: Any = None
        self.killed = False
        self.given: dict[int, float] = {}
        self._prioritized = prioritized
        self._pair: _Marked | None = None
        self._saved: npt.NDArray[np.float64] | None = None

    @property
    def lanes(self) -> tuple[Any, ...]:
        """The writers of its lanes."""
        return faults.writers_of(self.writer)

    # ------------------------------------------------------------ opening and ending

    def make(self, path: Path) -> None:
        """Make its store."""
        if self._prioritized:
            self._take(self.layout.create_buffer(path, PrioritizedReplayBuffer, stack=2, flush_s=0))
        else:
            self._take(self.layout.create(path))

    def open(self, path: Path) -> None:
        """Go on with its store."""
        self._take(
            PrioritizedReplayBuffer(path, stack=2, flush_s=0)
            if self._prioritized
            else create(path, append=True, flush_s=0)
        )

    def _take(self, writer: Any) -> None:
        self.writer = writer
        self.model.end_session()
        random = np.random.default_rng(self.luck.randrange(1 << 32))
        self._pair = _Marked(writer, self.model, random)
        self._pair.mark = self.mark

    def close(self) -> None:
        """Close."""
        self._save()
        self.writer.close()
        self._end()

    def kill(self) -> None:
        """Die."""
        self._save()
        faults.kill(self.writer)
        self.writer = self._pair = None
        self.killed = True  # whoever opens the store next ends the episodes that ran

    def end(self, path: Callable[[], Path]) -> None:
        """Close, or die and be recovered and closed where the store is then."""
        if self.luck.random() < 0.6:
            self.close()
            return
        self.kill()
        self.open(path())
        self.act()
        self.close()

    def _end(self) -> None:
        self.writer = self._pair = None
        self.killed = False
        self.model.end_session()

    # ------------------------------------------------------------ what it does

    def step(self, n_steps: int) -> None:
        """Steps of all environments, some of which may wait before their next episode begins."""
        if self._pair is None:
            raise ValueError("no writer is open")
        self._pair.play(n_steps, 0.08, "any")

    def reset(self) -> None:
        """Begin episodes in all environments."""
        if self._pair is None:
            raise ValueError("no writer is open")
        self._pair.reset()

    def act(self) -> None:
        """Something: some steps, or a flush, or new priorities."""
        pick = self.luck.random()
        if pick < 0.3:
            self.writer.flush()
        elif pick < 0.6 and self._prioritized:
            self.update()
        else:
            self.step(self.luck.randint(1, 9))

    def update(self) -> None:
        """Give some transitions other priorities."""
        if not len(self.writer):
            return
        ids = self.writer.sample(8).id
        errors = np.array([self.luck.randrange(1, 1000) / 8 for _ in ids])
        self.writer.update_priorities(ids, errors)
        self.given.update(zip(ids.tolist(), (errors + _EPSILON).tolist(), strict=True))

    # ------------------------------------------------------------ what must be

    def _save(self) -> None:
        if self._prioritized:
            self._saved = self.writer.priorities(self.writer.ids)

    def check(self, path: Path) -> None:
        """The store is sound, closed, and has exactly the rows that it must have."""
        self.model.end_session()
        checks.check_verified(path)
        disk.check_closed(path, self.model)
        with Store([path]) as store:
            checks.check_store(store, self.model, most=12)
        if self._prioritized:
            self._check_priorities(path)

    def _check_priorities(self, path: Path) -> None:
        with PrioritizedReplayBuffer(path, stack=2, flush_s=0) as buffer:
            ids = buffer.ids
            found = buffer.priorities(ids)
        checks.check_same(found, self._saved, f"{path}: priorities")
        for one, value in zip(ids.tolist(), found.tolist(), strict=True):
            if abs(self.given.get(one, value) - value) > 1e-9:
                raise AssertionError(f"{path}: priority of {one}: {value}, not {self.given[one]}")
