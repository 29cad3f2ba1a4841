"""`Ahead`: batches drawn and read before they are asked for, in threads.

Invariant: the generator that everybody sees stands after the last batch that was given. What is
drawn ahead of that is drawn by a copy, and counts only if the generator stands where the copy
stood, so that saved states, forks and pickles need to know nothing of it.

Draws are made in the thread that asks for a batch: they depend on what was asked for before, and
not on how fast a thread reads. Only the reading, which is nearly all of the work where frames are
compressed, is done by the threads.
"""

from __future__ import annotations

import collections
import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.datasets.draws import Draw
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.reading.located import Located
from mmreplay.system import forks
from mmreplay.system.threads import Flag, Workers

__all__ = ["Ahead", "checked_prefetch"]

Read = TypeVar("Read")
Begin = Callable[..., Draw[Read]]
"""Draws a batch's numbers from a generator, by what was asked for."""

_MOST_BATCHES = 1024  # ahead: each takes the memory of a batch, and is drawn before the first
_THREADS = 8
_ATTEMPTS = 10  # to read what is there, but lies elsewhere each time
_KINDS = 64  # kinds of batches of which it is remembered what came after them
_MOST_SKIPPED = 8  # numbers that others may draw from the generator between two batches


class _Reading:
    """A batch that a thread reads, unless nobody wants it any more by then.

    Attributes:
        threads: those to read it.
        is_dropped: whether nobody wants it; it was not read, if that was so in time.
        done: set when it was read, or will not be.
        batch, error: what was read, None if it is there no more; or what went wrong.
    """

    __slots__ = ("batch", "done", "error", "fetch", "is_dropped", "threads")

    def __init__(self, fetch: Callable[[], Any], threads: Workers) -> None:
        self.fetch, self.threads = fetch, threads
        self.is_dropped = False
        self.done = Flag()
        self.batch: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """In a thread: read it."""
        try:
            self.is_dropped |= self.threads.is_over
            if not self.is_dropped:
                self.batch = self.fetch()
        except BaseException as error:  # noqa: BLE001 (raised where the batch is asked for)
            self.error = error
        finally:
            self.done.set()


@dataclass(slots=True)
class _Job:
    """A batch that is drawn. `located` is None if that failed, `reading` if no thread reads it."""

    draw: Draw[Any]
    located: Located[Any, Any] | None = None
    reading: _Reading | None = None


class _Request(NamedTuple):
    """What was asked for: the method of a dataset that draws it, and its arguments."""

    begin: weakref.WeakMethod[Begin[Any]]
    arguments: tuple[Any, ...]


@dataclass(slots=True)
class _Prediction:
    """A job for a request that is expected; states of the generator before and after its draw."""

    request: _Request
    before: Any
    after: Any
    job: _Job


def checked_prefetch(n: object) -> int:
    """How many batches are read ahead; raises SchemaError if it is none."""
    return whole_number("prefetch", n, 0, _MOST_BATCHES)


class Ahead:
    """Reads up to `n` batches ahead; 0 for none. Safe for several threads.

    What is asked for next is expected to be what followed the same request the last time, and to be
    asked for with the generator as far on as it was then: a `Mixture`, or a `Decorated`, draws from
    it between two batches. Nothing is read ahead when the last batch was not as expected.
    """

    def __init__(self, n: int) -> None:
        """Raise SchemaError if `n` is no whole number, 0 to 1,024."""
        self.n = checked_prefetch(n)
        self._begin_again()
        _AHEAD.add(self)

    def _begin_again(self) -> None:
        self._lock = threading.Lock()
        self._threads: Workers | None = None
        self._expected: collections.deque[_Prediction] = collections.deque()
        self._copy: np.random.Generator | None = None  # stands after the last expected draw
        self._after: Any = None  # where the generator stood after the last draw that was given
        self._last: _Request | None = None
        self._following: dict[_Request, _Request] = {}
        self._skipped = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what a pickle is loaded as, has nothing ahead."""
        return type(self), (self.n,)

    # ------------------------------------------------------------ by random numbers

    def next(
        self,
        live: LiveLanes,
        generator: np.random.Generator,
        begin: Begin[Read],
        arguments: tuple[Any, ...],
        out: Read | None = None,
    ) -> Read:
        """The batch that `begin(generator, *arguments)` draws; `begin` is a bound method.

        Raises whatever the draw raises, or the reading of the batch; the generator is then as far
        on as it would be without threads.
        """
        if not self.n:
            draw = begin(generator, *arguments)
            return _finished(draw, live.gather(draw.choose, draw.gatherer, out, draw.kept))
        request = _Request(weakref.WeakMethod(begin), arguments)
        hash(request)  # which a reference keeps, and has not once its object is gone
        with self._lock:
            job, is_expected = self._take(generator, request)
            if job is None:
                job = _Job(begin(generator, *arguments))
                with generator.bit_generator.lock:
                    self._copy = copy.deepcopy(generator)
                self._after = self._copy.bit_generator.state
            if is_expected:
                self._look_ahead(live)
        batch: Read = self._give(live, job, out)
        return batch

    def _take(self, generator: np.random.Generator, request: _Request) -> tuple[_Job | None, bool]:
        """The job for this request if there is one; and whether the request was expected."""
        bits = generator.bit_generator
        with bits.lock:
            state = bits.state
            if self._expected:
                first = self._expected[0]
                if first.request == request and _same(first.before, state):
                    self._expected.popleft()
                    bits.state = self._after = first.after
                    self._last = request
                    return first.job, True
        self._cancel()
        skipped, last = self._count_skipped(state), self._last
        is_expected = last is None or (
            self._following.get(last, last) == request and skipped == self._skipped
        )
        if last is not None:
            if len(self._following) >= _KINDS:
                self._following.clear()
            self._following[last] = request
        if skipped is not None:
            self._skipped = skipped
        self._last = request
        return None, is_expected

    def _count_skipped(self, state: Any) -> int | None:
        """How many numbers others drew since the last batch; None if nobody knows."""
        if self._copy is None:
            return 0
        bits = self._copy.bit_generator
        bits.state = self._after
        for number in range(_MOST_SKIPPED + 1):
            if _same(bits.state, state):
                return number
            bits.random_raw(output=False)
        return None

    def _look_ahead(self, live: LiveLanes) -> None:
        """Draw until `n` batches are ahead of the one that is given now."""
        generator = self._copy
        request = self._expected[-1].request if self._expected else self._last
        while generator is not None and request is not None and len(self._expected) < self.n:
            request = self._following.get(request, request)
            begin = request.begin()
            if begin is None:  # whoever asked is gone
                return
            bits = generator.bit_generator
            if self._skipped:
                bits.random_raw(self._skipped, output=False)
            before = bits.state
            try:
                draw = begin(generator, *request.arguments)
            except Exception:  # noqa: BLE001 (a call that is refused; this one was not)
                return
            job = self._start(live, draw)
            self._expected.append(_Prediction(request, before, bits.state, job))

    # ------------------------------------------------------------ of known ids

    def each(self, live: LiveLanes, draws: Iterable[Draw[Read]]) -> Iterator[Read]:
        """The batches of draws that need no generator, in order."""
        jobs: collections.deque[_Job] = collections.deque()
        try:
            for draw in draws:
                with self._lock:
                    jobs.append(self._start(live, draw) if self.n else _Job(draw))
                if len(jobs) > self.n:
                    yield self._give(live, jobs.popleft(), None)
            while jobs:
                yield self._give(live, jobs.popleft(), None)
        finally:
            for job in jobs:
                _cancel(job)

    # ------------------------------------------------------------ jobs

    def _start(self, live: LiveLanes, draw: Draw[Any]) -> _Job:
        """Look it up, and have it read by a thread. The caller holds the lock."""
        job = _Job(draw)
        try:
            job.located = live.locate(draw.choose, draw.gatherer, draw.kept)
        except Exception:  # noqa: BLE001 (raised, if it still is so, when the batch is asked for)
            return job
        if self._threads is None:
            self._threads = Workers(min(self.n, _THREADS), "mmreplay-ahead")
        # Without a thread, as at a limit of the process or when the interpreter ends, it is read
        # when it is asked for.
        reading = _Reading(job.located.fetch, self._threads)
        if self._threads.hand_over(reading.run):
            job.reading = reading
        return job

    def _give(self, live: LiveLanes, job: _Job, out: Any) -> Any:
        """The batch of a job, of now: what was evicted since it was drawn is drawn again."""
        batch, draw, located = None, job.draw, job.located
        reading = job.reading
        # Those of the parent of a forked process run there, and not here.
        if reading is not None and reading.threads is self._threads:
            reading.done.wait()
            if reading.error is not None:
                raise reading.error
            batch = reading.batch
            if batch is None and reading.is_dropped:  # closed meanwhile, as is noticed below
                located = None
        for _ in range(_ATTEMPTS):
            located = None if located is None else live.renewed(located)
            if located is None:
                break
            if batch is not None:
                if out is not None:
                    batch = draw.gatherer.copy(batch, out)
                return _finished(draw, batch)
            batch = located.fetch()
        return _finished(draw, live.gather(draw.choose, draw.gatherer, out, draw.kept))

    # ------------------------------------------------------------ forgetting

    def drop(self) -> None:
        """Forget what is ahead: the next batch is drawn from what is there when it is asked for."""
        with self._lock:
            self._cancel()

    def _cancel(self) -> None:
        for each in self._expected:
            _cancel(each.job)
        self._expected.clear()

    def close(self) -> None:
        """Forget what is ahead, and end the threads; waits for batches that are being read.

        The store was closed before: nothing is read ahead of a store that is.
        """
        with self._lock:
            self._cancel()
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.end()

    def after_fork_in_child(self) -> None:
        """In a forked child: the threads are the parent's."""
        self._begin_again()


def _finished(draw: Draw[Read], batch: Read) -> Read:
    if draw.finish is not None:
        draw.finish(batch)
    return batch


def _cancel(job: _Job) -> None:
    if job.reading is not None:
        job.reading.is_dropped = True


def _same(state: Any, other: Any) -> bool:
    """Whether two states of bit generators are equal; those of some kinds hold arrays."""
    if isinstance(state, dict) and isinstance(other, dict):
        return state.keys() == other.keys() and all(_same(state[k], other[k]) for k in state)
    return bool(np.array_equal(state, other)) if isinstance(state, np.ndarray) else state == other


_AHEAD: weakref.WeakSet[Ahead] = weakref.WeakSet()
forks.after_fork_in_child(_AHEAD, Ahead.after_fork_in_child)
