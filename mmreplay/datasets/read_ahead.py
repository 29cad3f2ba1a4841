"""`ReadAhead`: batches drawn and read before they are requested, in threads.

Invariant: the stream is as without prefetch, whatever the speed of the threads. Draws ahead are
made in the calling thread, on a copy of the generator, and discarded if another call comes or the
generator was used.
"""

from __future__ import annotations

import collections
import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.datasets.store_draws import Draw
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.lookup import Lookup
from mmreplay.system.threads import Flag, Workers

Read = TypeVar("Read")
Begin = Callable[..., Draw[Read]]
"""Draws the random numbers of a batch, from a generator and the arguments of the call."""

_MOST_BATCHES = 1024  # each takes the memory of a batch, and all are drawn before the first
_THREADS = 8
_ATTEMPTS = 10  # to read rows that move each time


@dataclass(slots=True, eq=False)
class _Job:
    """A batch that is drawn, and perhaps read by a thread."""

    draw: Draw[Any]
    before: Any = None  # states of the generator around the draw
    after: Any = None
    lookup: Lookup[Any] | None = None  # None if the lookup failed
    threads: Workers | None = None  # which read it
    is_dropped: bool = False  # it is not needed any more
    done: Flag = field(default_factory=Flag)  # it was read, or will not be
    batch: Any = None  # None if it has to be read again
    error: BaseException | None = None

    def read(self) -> None:
        """In a thread: read the batch."""
        try:
            self.is_dropped |= self.threads is None or self.threads.is_over
            if self.lookup is not None and not self.is_dropped:
                self.batch = self.lookup.fetch()
        except BaseException as error:  # noqa: BLE001 (raised where the batch is requested)
            self.error = error
        finally:
            self.done.set()


def checked_prefetch(n: object) -> int:
    """The number of batches to read ahead; SchemaError unless it is 0 to 1,024."""
    return whole_number("prefetch", n, 0, _MOST_BATCHES)


class ReadAhead:
    """Reads up to `n` batches ahead of a call that is repeated. Safe for several threads."""

    def __init__(self, n: int) -> None:
        self.n = checked_prefetch(n)
        self.forget()

    def forget(self) -> None:
        """Start over, as in a forked child: the threads are the parent's."""
        self._lock = threading.Lock()
        self._threads: Workers | None = None
        self._jobs: collections.deque[_Job] = collections.deque()
        self._request: tuple[Any, ...] | None = None  # the last call
        self._after: Any = None  # the state of the generator after it
        self._copy: np.random.Generator | None = None  # draws ahead

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what is ahead."""
        return type(self), (self.n,)

    def next(
        self,
        live: LiveLanes,
        generator: np.random.Generator,
        begin: Begin[Read],
        arguments: tuple[Any, ...],
        out: Read | None = None,
    ) -> Read:
        """The batch that `begin(generator, *arguments)` draws; `begin` is a bound method."""
        if not self.n:
            draw = begin(generator, *arguments)
            batch = live.gather(draw.choose, draw.gatherer, out, draw.kept, draw.numbers)
            if draw.finish is not None:
                draw.finish(batch)
            return batch
        request = weakref.WeakMethod(begin), arguments
        with self._lock:
            is_repeated, job = self._take(generator.bit_generator, request)
            if job is None:
                job = _Job(begin(generator, *arguments))
                self._cancel()
                with generator.bit_generator.lock:
                    self._copy = copy.deepcopy(generator)
                self._request, self._after = request, self._copy.bit_generator.state
            if is_repeated:
                self._look_ahead(live, begin, arguments)
        given: Read = self._give(live, job, out)
        return given

    def _take(self, bits: np.random.BitGenerator, request: Any) -> tuple[bool, _Job | None]:
        """Whether this repeats the last call, or is the first; and its job if there is one."""
        with bits.lock:
            if self._request is None:
                return True, None
            if self._request != request or not _same(self._after, bits.state):
                return False, None
            # After an interrupt between these lines the first job is not the next: by identity.
            if not self._jobs or self._jobs[0].before is not self._after:
                return True, None
            job = self._jobs.popleft()
            bits.state = self._after = job.after
            return True, job

    def _look_ahead(self, live: LiveLanes, begin: Begin[Read], arguments: tuple[Any, ...]) -> None:
        """Draw until `n` batches are ahead."""
        generator = self._copy
        while generator is not None and len(self._jobs) < self.n:
            before = self._jobs[-1].after if self._jobs else self._after
            generator.bit_generator.state = before
            job = _Job(begin(generator, *arguments), before, generator.bit_generator.state)
            self._start(live, job)
            self._jobs.append(job)

    def each(self, live: LiveLanes, draws: Iterable[Draw[Read]]) -> Iterator[Read]:
        """The batches of draws that need no generator, in order."""
        jobs: collections.deque[_Job] = collections.deque()
        try:
            for draw in draws:
                jobs.append(_Job(draw))
                if self.n:
                    with self._lock:
                        self._start(live, jobs[-1])
                if len(jobs) > self.n:
                    yield self._give(live, jobs.popleft(), None)
            while jobs:
                yield self._give(live, jobs.popleft(), None)
        finally:
            for job in jobs:
                job.is_dropped = True

    def _start(self, live: LiveLanes, job: _Job) -> None:
        """Look it up, and let a thread read it. The caller holds the lock."""
        draw = job.draw
        try:
            job.lookup = live.locate(draw.choose, draw.gatherer, draw.kept, draw.numbers)
        except Exception:  # noqa: BLE001 (raised again when the batch is requested)
            return
        if self._threads is None:
            self._threads = Workers(min(self.n, _THREADS), "mmreplay-ahead")
        job.threads = self._threads
        if not self._threads.hand_over(job.read):
            job.threads = None  # at a limit of the process: read when requested

    def _give(self, live: LiveLanes, job: _Job, out: Any) -> Any:
        """The batch of a job; if part of it was evicted since, the ids are chosen again."""
        batch, draw, lookup = None, job.draw, job.lookup
        # In a forked process the threads of the parent do not run.
        if job.threads is not None and job.threads is self._threads:
            job.done.wait()
            if job.error is not None:
                raise job.error
            batch = job.batch
            if batch is None and job.is_dropped:  # closed meanwhile: raised below
                lookup = None
        for _ in range(_ATTEMPTS):
            lookup = None if lookup is None else live.renewed(lookup)
            if lookup is None:
                break
            if batch is not None:
                if out is not None:
                    batch = draw.gatherer.copy(batch, out)
                return _finished(draw, batch)
            batch = lookup.fetch()
        batch = live.gather(draw.choose, draw.gatherer, out, draw.kept, draw.numbers)
        return _finished(draw, batch)

    def drop(self) -> None:
        """Discard what is ahead: the next batch is drawn from what there is by then."""
        with self._lock:
            self._cancel()

    def _cancel(self) -> None:
        for job in self._jobs:
            job.is_dropped = True
        self._jobs.clear()

    def close(self) -> None:
        """Discard what is ahead, and end the threads; the store was closed before."""
        self.drop()
        if self._threads is not None:
            self._threads.end()


def _finished(draw: Draw[Read], batch: Read) -> Read:
    if draw.finish is not None:
        draw.finish(batch)
    return batch


def _same(state: Any, other: Any) -> bool:
    """Whether two states of bit generators are equal; some kinds hold arrays."""
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(_same(state[k], other[k]) for k in state)
    return bool(np.array_equal(state, other)) if isinstance(state, np.ndarray) else state == other
