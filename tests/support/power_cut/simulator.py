"""Histories of one lane, of any number of environments, on a disk that loses power.

Invariant: a seed decides everything, and all is done in one thread; every call that reaches the
disk and every store into a map is a moment at which the power or the process may go, a step or a
reset may be interrupted as by Ctrl-C, a background task may run from its beginning to its end, or a
background task or a reader may see the writer go on. What is found then is compared with a model.

The code under test is the real one, on real files in a scratch directory; only its threads are
replaced, by tasks that run when the seed says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import mmreplay
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.format import layout, plan
from mmreplay.storage import priority_column
from mmreplay.system import platform, user_paths
from mmreplay.writing import create, flush, lane_writer
from tests.support.disks.scratch import scratch_directory
from tests.support.oracle import checks, disk
from tests.support.oracle.layout import Layout
from tests.support.power_cut.changing import Priorities
from tests.support.power_cut.contents import Contents
from tests.support.power_cut.layouts import ALL, SHORT_CHUNKS
from tests.support.power_cut.others import KnownStore, Others
from tests.support.power_cut.power import PowerDisk, power_disk
from tests.support.power_cut.tasks import Tasks

# The most calls until the crash, and the most steps: of each, one is chosen for a life.
_LIVES = (25, 80, 250, 1000), (1, 10, 30, 60)
_SHORT_LIVES = (25, 50, 100, 400), (1, 8, 16, 32)
# Chances, at a call, that it is the last one, and that something else happens before it.
_MOST_DANGER, _MOST_BUSTLE = 0.6, 0.25
_INTERRUPTS = 0.1, 0.012  # in the middle of the end of an episode, and elsewhere
_FAR_STEPS, _FAR_STEPS_OF_MANY = 110, 240  # of many, most calls are resets
_MISTAKES = TypeError, AttributeError, NameError, ImportError


class ViolationError(Exception):
    """Something was lost, torn or wrong after a crash; the message says in which history."""


class _Crash(BaseException):
    """The power or the process goes at this call; no handler of the code under test matters."""


@dataclasses.dataclass(slots=True)
class Counts:
    """What was tried."""

    crashes: int = 0  # of a writer, each opened again and compared with the model
    power: int = 0  # those at which the power went; the others are kills
    opening: int = 0  # crashes of a writer that was recovering, reopening or creating
    closes: int = 0  # stores closed, compared and verified
    calls: int = 0  # calls and stores, each of which could have been the last one
    looks: int = 0  # of a reader while the writer was at work
    interrupts: int = 0  # of a step, a reset or a flush, after which the same writer went on
    moves: int = 0  # of a store, by others
    links: int = 0  # copies made of hard links, by others
    restores: int = 0  # of copies over what they were made from, by others

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*map(sum, pairs))


class _Path(type(Path())):  # type: ignore[misc]
    """A path that keeps what is made of it: a history joins the same few hundred all the time."""

    def joinpath(self, *names: Any) -> Any:
        kept: dict[Any, Any] = self.__dict__
        if names not in kept:
            kept[names] = super().joinpath(*names)
        return kept[names]

    def __truediv__(self, name: Any) -> Any:
        return self.joinpath(name)

    def __fspath__(self) -> str:
        kept: dict[Any, Any] = self.__dict__
        if "text" not in kept:
            kept["text"] = str(self)
        return kept["text"]  # type: ignore[no-any-return]


class _NoThread:
    """Stands for the thread that a writer leaves its lane to when it dies: it dies as well.

    A thread would go on while the power goes, and write into maps of files that are cut.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run, self._name = run, name

    def start(self) -> None:
        with contextlib.suppress(_Crash):
            self._run()


class _History:
    """One store, and what happens to it; of its copies, one at a time is the one at hand."""

    def __init__(
        self, root: Path, seed: int, layouts: Sequence[Layout], *, others: bool | None = None
    ) -> None:
        self._luck = random.Random(seed)
        contents = Contents(self._luck.choice(layouts))
        self._arguments = contents.layout.create_arguments()
        self._n = contents.n
        self._store = KnownStore(_Path(root) / "s.zarr", contents)
        self._others = Others(_Path(root), seed, self._store, at_work=others)
        self._priorities: Priorities | None = None
        # Of a link to a file that is mapped, and of a restored copy, nothing is promised.
        if not self._others.at_work and self._luck.random() < 0.3:
            self._priorities = Priorities(contents.lane)
        contents.derived.promised = not self._others.at_work
        self._learner: mmreplay.Dataset | None = None  # that updates derived columns
        self._disk: PowerDisk
        self._boot = 0
        self._left = 0  # calls until the crash
        # Short lives crash while what the one before left to the page cache is still there alone.
        self._short = self._luck.random() < 0.5
        # Whether the first life is to come to where rows go, far from all that comes before.
        self._far = contents.layout.capacity is not None and self._luck.random() < 0.15
        self._rarely = False  # whether this life flushes rarely, and is ahead of its checkpoints
        self._opened = False  # whether the writer is open, and not only being opened
        self._at: list[str] = []  # what is going on, the outermost first
        self._tasks = self._new_tasks()
        self._reader: mmreplay.Store | None = None  # that follows this life
        self._reads = False  # whether it is between looking up and reading
        self.writer: Any = None
        self.counts = Counts()

    def run(self, disk: PowerDisk, n_crashes: int) -> None:
        """Open, look, write and crash, again and again."""
        self._disk = self._others.disk = disk
        while self.counts.crashes < n_crashes:
            self._live()
            if self._others.at_work:
                self._store = self._others.between_lives(self._store, self._look)
        self._others.check_strangers()
        self.counts.moves, self.counts.links = self._others.moves, self._others.links
        self.counts.restores = self._others.restores

    def _new_tasks(self) -> Tasks:
        return Tasks(self.busy, functools.partial(setattr, self, "writer"))

    def background(self, *_: Any, **__: Any) -> Tasks:
        """In the place of the threads of this life."""
        return self._tasks

    def boot_id(self) -> bytes:
        """Of the computer that is on now."""
        return self._boot.to_bytes(16, "little")

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """While this goes on, what else would need it waits."""
        self._at.append(what)
        try:
            yield
        finally:
            self._at.pop()

    # ------------------------------------------------------------ a life, and its end

    def _live(self) -> None:
        self.writer = None
        self._tasks = self._new_tasks()
        # To make a store takes some 150 calls; most lives are to end later.
        least = 0 if self._store.path.exists() else 2
        calls, steps = _SHORT_LIVES if self._short else _LIVES
        at_most = self._luck.choice(calls[least:])
        n_steps = self._luck.randrange(self._luck.choice(steps))
        if self._far:
            at_most, n_steps = 20_000, _FAR_STEPS if self._n < 10 else _FAR_STEPS_OF_MANY
        self._rarely = self._luck.random() < 0.25
        # The next crash soon after: what a recovery left to the page cache may be lost.
        again = self._store.path.exists() and self._luck.random() < 0.3
        if again:
            n_steps = self._luck.randrange(3)
        self._left = self._luck.randrange(at_most // 10, 2 * at_most)
        self._opened = False
        try:
            with self.busy("writer"):
                self._open()
            self._opened = True
            self._work(n_steps)
            if not again and self._luck.random() < 0.9:
                with self.busy("writer"):
                    self._close()
        except _Crash:
            self.counts.opening += not self._opened
        self._end()

    def _end(self) -> None:
        self._left = 0  # calls of handlers that still run reach nothing
        self._far = self._far and not self._opened
        self._reads = False
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._learner is not None:
            for column in self._learner.updates._held.values():
                column._lock.release()
            self._learner = None
        if self.writer is not None:
            self.writer._abandon()
            self.writer.files.release()
        self.counts.crashes += 1
        # A copy may be mistaken for what it was made from, but not after the next power cut.
        if self._luck.random() < (0.2 if self._store.is_copy_new else 0.65):
            self.counts.power += 1
            self._disk.cut(self._luck)
            self._boot += 1
            self._others.lose_power()
        else:
            self._disk.die()

    def before_call(self, _: int) -> None:
        """The end, or what else happens at this moment."""
        self._left -= 1
        luck = self._luck.random()
        # Two logs take twice as many calls until anything is written.
        if self._left <= 0 or (luck > 1 - _MOST_DANGER and luck > 1 - self._danger() / 2):
            self._left = 0
            raise _Crash
        self.counts.calls += 1
        if self._others.at_work:
            self._others.meanwhile(self._store, self._look, opened=self._opened)
        writer = self.writer
        # Python looks for signals before calls: none comes while a word is being stored.
        is_between = self._at == ["writer", "call"] and writer._head == writer.files.rows.head
        if is_between and luck < _INTERRUPTS[writer._is_settled]:
            raise KeyboardInterrupt
        if luck < _MOST_BUSTLE and luck < self._bustle():
            self._meanwhile()

    def _bustle(self) -> float:
        """More where two things meet: in the middle of a seal or a flush, and while files go."""
        if self._files_go():
            return 0.2 if self._opened else 0.08
        if self._is_held():
            return _MOST_BUSTLE
        if "writer" not in self._at:
            return _MOST_BUSTLE
        return 0.02 if self._at[-1] in ("writer", "call") else 0.1

    def _files_go(self) -> bool:
        """Whether a file is about to be removed, or has just been."""
        return "unlink" in self._disk.calls[-2:]

    def _is_held(self) -> bool:
        """Whether a step is committed whose final observations are not."""
        return self.writer is not None and self.writer.files.held is not None

    def _danger(self) -> float:
        """More of the moments at which much is open: written and not synced, or half begun."""
        last = self._disk.calls[-3:]
        if "unlink" in last and self._opened:
            return 0.03  # files of rows that are evicted
        if last[1:] == ["rename", "fsync"]:
            return _MOST_DANGER  # a store that has its name, and may lose it
        if self._far:
            return 0.0
        if last[1:] == ["write", "fdatasync"] or last[:2] == ["write", "fdatasync"]:
            # A checkpoint that is being made, or that speaks for all that was done before it.
            return 0.012 if self._opened else 0.04
        if last[-1] in {"fsync", "fdatasync"}:
            return 0.004
        return 0.0 if self._opened or last[-1] != "store" else 0.01

    def _meanwhile(self) -> None:
        writer = self.writer
        if writer is None:
            if self._store.path.exists() and self._luck.random() < 0.12:
                self._look(self._store)  # while it is opened, or recovered
            return
        lane = writer.files
        free = not any(log.checkpoint_lock.locked() for log in lane.logs)
        if self._files_go() or (self._is_held() and self._luck.random() < 0.7):
            self._look(self._store)
            return
        choices: list[Callable[[], None]] = []
        if self._tasks and "seal" not in self._at and free:
            choices.append(self._tasks.run_one)
        if free and not lane.flush_lock.locked() and not self._rarely:
            choices.append(self._flush_by_clock)
        # A writer that was interrupted may have to wait for a flush, and that one for it here.
        if "writer" not in self._at and (writer._is_settled or not lane.flush_lock.locked()):
            may_wait = free and "seal" not in self._at
            if may_wait or not Contents.has_to_wait(writer, self._n):
                choices.append(self._step)
        if self._luck.random() < (0.2 if self._at[-1:] == ["call"] else 0.05):
            choices.append(functools.partial(self._look, self._store))
        if choices:
            self._luck.choice(choices)()

    def _flush_by_clock(self) -> None:
        with self.busy("flush"):
            rows = self._store.returned
            if self._is_held() and not self._far:  # a crash between a reset and the next flush
                self._left = min(self._left, 6 + self.counts.calls % 40)
            self.writer._timed_flush.flush_in_background(timer=True)
            self._store.flushed = max(self._store.flushed, rows)

    # ------------------------------------------------------------ what a writer does

    def _open(self) -> None:
        there = self._store.path.exists()
        # A store that was closed has to be whole, with all that nobody reads but to verify it.
        was_closed, self._store.is_closed = self._store.is_closed, False
        self._store.contents.exact = False
        if (self._luck.random() < 0.03 or was_closed) and there and not self._store.is_restored:
            self._look_and_verify()
        if there and self._luck.random() < 0.9:
            # What `create` does in the end; before that it looks at what it was asked for.
            create.open_writer(self._store.path, {}, 0)
        else:
            mmreplay.create(self._store.path, **self._arguments, append=True, flush_s=0)
        is_after_kill = self._store.powered
        self._check_head()
        if self._luck.random() < 0.6:
            self._check_rows()
        if self._priorities is not None:
            self._priorities.open(self.writer, exact=is_after_kill)

    def _work(self, n_steps: int) -> None:
        flushes = 0.01 if self._rarely else 0.1
        for _ in range(n_steps):
            if self._left <= 0:  # in a seal, which keeps whatever ends it for the writer
                raise _Crash
            pick = self._luck.random()
            if pick < flushes / 2:
                self._call(self.writer.flush)
            elif pick < flushes:
                self._flush_by_clock()
                if self._luck.random() < 0.4:
                    # A reset after a flush: what it ends has to be as durable as its last step.
                    self._step(again=True)
                    if self._luck.random() < 0.3:
                        raise _Crash
            elif self._store.contents.derived and self._luck.random() < 0.3:
                self._update()
            elif pick > 0.94 and self._tasks:
                self._tasks.run_one()
            elif pick > 0.9:
                self._read()
            else:
                self._step()

    def _call(self, call: Callable[[], object]) -> None:
        """What the user calls; he may interrupt it, and goes on."""
        try:
            with self.busy("writer"), self.busy("call"):
                call()
        except KeyboardInterrupt:
            self.counts.interrupts += 1
            with self.busy("writer"), self.busy("settle"):  # nobody steps or interrupts meanwhile
                self._store.contents.settle(self.writer)
        else:
            if call == self.writer.flush:
                self._store.flushed = self._store.returned
        self._store.returned = len(self._store.contents)

    def _step(self, *, again: bool = False) -> None:
        """A step or a reset; `again`: a reset in the middle of an episode."""
        if self.writer is None:
            raise RuntimeError("nobody writes")
        if self._priorities is not None and self._luck.random() < 0.2:
            self._priorities.give(self.writer, self._luck)
        store, calm = self._store, bool(self._at)
        step = store.contents.step
        self._call(lambda: step(self.writer, self._luck, store.number, calm=calm, again=again))

    def _update(self) -> None:
        """Values of derived columns, by another who has nothing to do with the writer."""
        if self._others.at_work:
            return
        with self.busy("update"):
            if self._learner is None:
                names = [*self._store.contents.layout.derived]
                self._learner = mmreplay.load(self._store.path, stack=None, update=names)
            self._store.contents.update(self._learner, self._luck)
            if self._luck.random() < 0.1:
                self._learner.close()
                self._learner = None

    def synced(self, sync: Callable[..., None], lane: Any, spec: Any) -> None:
        """A flush makes the values of a column durable that may change."""
        parts = [self._priorities, self._store.contents.derived]
        known = [one.versions for one in parts if one is not None]
        name = spec.path.removeprefix("derived/")
        lengths = [one.lengths(name) for one in known]
        sync(lane, spec)
        for one, length in zip(known, lengths, strict=True):
            one.are_durable(length)

    def _read(self) -> None:
        """Transitions, while the writer goes on between looking up and reading."""
        contents = self._store.contents
        lane = contents.lane
        entries = lane.transitions()[-3 * self._n :]
        if not entries or self._others.at_work:
            return
        if self._reader is None:
            self._reader = mmreplay.open(self._store.path)
        self.counts.looks += 1
        ids = sorted(self._luck.sample(entries, min(len(entries), 8)))
        newest = len(lane.rows) - 1
        self._reads = True
        with contextlib.suppress(mmreplay.InvalidIdError):  # evicted meanwhile
            contents.check_batch(self._reader, contents.model, ids, newest, n_step=1)
        self._reads = False

    def while_reading(self) -> None:
        """A reader knows where to read, and has not read yet."""
        if self._reads and "writer" not in self._at:
            self._reads = False
            for _ in range(self._luck.randrange(4)):
                self._step(again=self._luck.random() < 0.3)

    def _close(self) -> None:
        contents = self._store.contents
        contents.exact = False
        learner, self._learner = self._learner, None
        if learner is not None and self._luck.random() < 0.5:
            learner.close()
        self.writer.close()
        if learner is not None:
            learner.close()
        self.counts.closes += 1
        self._store.is_closed = True
        self._store.flushed = self._store.returned = len(contents)
        contents.recovered(len(contents))
        self._check_rows()
        if self._luck.random() < 0.2:
            checks.check_verified(self._store.path)
            disk.check_closed(self._store.path, contents.model)

    # ------------------------------------------------------------ what is found

    def _check_head(self) -> None:
        """After an opening that went through: nothing is missing that may not be."""
        head = self.writer.rows
        least = self._store.least
        if not least <= head <= len(self._store.contents):
            raise ViolationError(
                f"rows: expected {least} to {len(self._store.contents)}, found {head}"
                f"{'' if self._store.powered else ' after a power cut'}"
            )
        self._store.contents.recovered(head)
        self._store.contents.check_finals(self.writer.files)
        self._store.returned = head
        derived = self._store.contents.derived
        if derived:
            derived.exact = self._store.powered
            with mmreplay.open(self._store.path) as store:
                derived.take(store.lanes[0], self._store.contents.lane, for_good=True)
        if not self._store.powered:
            self._store.flushed = head  # what was found then is on the disk
        self._store.powered, self._store.is_restored = True, False

    def _check_rows(self) -> None:
        contents = self._store.contents
        with mmreplay.open(self._store.path) as store:
            contents.check(store, self._luck)
            contents.lane.forget(store.lanes[0].base)
        self._check_litter()

    def _check_litter(self) -> None:
        """Nothing is left of what a crash interrupted, and nothing that was evicted."""
        found = {folder: names for folder, _, names in os.walk(str(self._store.path))}
        for folder, names in found.items():
            if any(name.endswith(".tmp") for name in names):
                raise ViolationError(f"{folder}: litter was left: {names}")
        files = self.writer.files
        for log in files.logs:
            folder = str(self._store.path / ("" if log is files.rows else layout.FINALS))
            for path, spec in log.specs.items():
                names = found[f"{folder}/{path}"]
                for chunk in (int(name.split(".")[1]) for name in names if name.startswith("c.")):
                    start = chunk * spec.chunk_rows
                    if start + spec.chunk_rows <= log.base or start > log.head + log.beyond(spec):
                        raise ViolationError(
                            f"{folder}/{path}: chunk {chunk} of rows {start} to "
                            f"{start + spec.chunk_rows} is left, of {log.base} to {log.head} in "
                            f"the store"
                        )

    def _look_and_verify(self) -> None:
        """Read-only, as the crash left it; nothing of this is a call that matters."""
        self._compare(self._store)
        checks.check_verified(self._store.path)

    def _look(self, store: KnownStore) -> None:
        self.counts.looks += 1
        self._compare(store)

    def _compare(self, known: KnownStore) -> None:
        with mmreplay.open(known.path) as store:
            rows = store.lanes[0].rows
            if not known.least <= rows <= len(known.contents):
                raise ViolationError(
                    f"{known.path}: a reader: rows: expected {known.least} to "
                    f"{len(known.contents)}, found {rows}"
                )
            known.contents.derived.exact = known.powered
            known.contents.check(store, self._luck)


@contextlib.contextmanager
def _machine(history: _History, root: Path) -> Iterator[PowerDisk]:
    """The disk, the boot id and the threads that a history is lived with."""
    real_fetch, real_sync = TransitionGatherer.fetch, flush.sync_values

    def fetch(self: TransitionGatherer, *args: Any) -> Any:
        history.while_reading()
        return real_fetch(self, *args)

    with (
        power_disk(root, history.before_call, stores=True) as disk,
        mock.patch.object(platform, "boot_id", history.boot_id),
        mock.patch.object(create, "Background", history.background),
        mock.patch.object(lane_writer, "Thread", _NoThread),
        mock.patch.object(TransitionGatherer, "fetch", fetch),
        mock.patch.object(flush, "sync_values", functools.partial(history.synced, real_sync)),
        mock.patch.object(user_paths, "Path", functools.cache(_Path)),
        mock.patch.multiple(plan, **SHORT_CHUNKS),
        mock.patch.object(priority_column, "_CHUNK_ROWS", 512),  # a page
        mock.patch.object(
            logging.getLogger("mmreplay"), "disabled", new=True
        ),  # of rows that were lost
    ):
        yield disk


def simulate(
    seed: int,
    n_crashes: int,
    layouts: Sequence[Layout] = ALL,
    *,
    others: bool | None = None,
) -> Counts:
    """Live one history."""
    with scratch_directory() as root:
        history = _History(root, seed, layouts, others=others)
        try:
            with _machine(history, root) as disk:
                history.run(disk, n_crashes)
        except Exception as error:  # whatever it is, the calls of a history do not raise it
            _raise_mistakes(error)
            raise ViolationError(
                f"history {seed}, crash {history.counts.crashes + 1}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return history.counts


def _raise_mistakes(error: BaseException | None) -> None:
    """Raise what no rule says; a task or a flush in the background may have kept it for later."""
    while error is not None:
        if isinstance(error, _MISTAKES):
            raise error
        error = error.__cause__


def simulate_all(
    seeds: Sequence[int], n_crashes: int, layouts: Sequence[Layout] = ALL
) -> tuple[Counts, list[str]]:
    """Live many histories; returns what was tried, and every violation."""
    counts, violations = Counts(), []
    for seed in uncollected(seeds):
        try:
            counts += simulate(seed, n_crashes, layouts)
        except ViolationError as error:
            violations.append(str(error))
    return counts, violations


def uncollected(seeds: Sequence[int]) -> Iterator[int]:
    """Seeds of histories, with garbage collected between them: to look for it takes its time."""
    gc.disable()
    try:
        for seed in seeds:
            yield seed
            gc.collect()
    finally:
        gc.enable()
