"""The progress of a recording, reported a few times per second at a bounded cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from mmreplay.system import checked_reads

_EVERY_S = 0.25
_WALK_SHARE = 0.005
"""The share of the time that may go into counting bytes: a store may have thousands of files."""


@dataclass(frozen=True, slots=True)
class RecordProgress:
    """The progress of a recording.

    Attributes:
        steps: transitions recorded by this call.
        total: transitions requested.
        episodes: episodes that ended.
        seconds: since the first step.
        bytes_on_disk: blocks allocated to the store's files, a few seconds ago in a large store.
    """

    steps: int
    total: int
    episodes: int
    seconds: float
    bytes_on_disk: int

    @property
    def steps_per_s(self) -> float:
        """Transitions per second, from the start."""
        return self.steps / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """Counts, and calls the user's callback when ``perf_counter() >= due``, as a loop checks."""

    def __init__(
        self, total: int, path: Path, callback: Callable[[RecordProgress], None] | None
    ) -> None:
        self.steps = self.episodes = 0
        self._total, self._path, self._callback = total, path, callback
        self._bytes = 0
        self.start()

    def start(self) -> None:
        """Start the clock, right before the first step."""
        self._started = self._next_walk = perf_counter()
        self.due = math.inf if self._callback is None else self._started

    def report(self) -> None:
        """Call the callback, and set `due` again."""
        now = perf_counter()
        if now >= self._next_walk:
            self._bytes = self._walked()
            walked = perf_counter()
            self._next_walk = walked + max(1.0, (walked - now) / _WALK_SHARE)
        self._call(now)
        self.due = perf_counter() + _EVERY_S

    def finish(self) -> RecordProgress:
        """The last report, after the store was closed."""
        now, self._bytes = perf_counter(), self._walked()
        return self._call(now)

    def _walked(self) -> int:
        return sum(checked_reads.allocated_bytes(self._path).values())

    def _call(self, now: float) -> RecordProgress:
        done = now - self._started
        out = RecordProgress(self.steps, self._total, self.episodes, done, self._bytes)
        if self._callback is not None:
            self._callback(out)
        return out
