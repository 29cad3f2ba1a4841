"""Histories of one lane on a disk that loses power, in one thread, decided by a seed.

Invariant: every call that reaches the disk and every store into a map is a moment at which the
power or the process may go, or a background task may run from its beginning to its end, or a
background task may see the writer go on. Whatever is found after that is held against the model.

The code under test is the real one, on real files in a scratch directory; only its threads are
replaced, by tasks that run when the seed says so.
"""

from __future__ import annotations

import collections
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

import numpy as np

import mmreplay
from mmreplay.schema import Field
from mmreplay.system import platform, user_paths
from mmreplay.writing import open_lanes
from mmreplay.writing.flush import TimedFlush
from mmreplay.writing.seal import SealJob
from mmreplay.writing.writer import Writer
from tests.support.disks.scratch import scratch_directory
from tests.support.oracle import checks
from tests.support.oracle.strategies import Layout
from tests.support.power_cut.others import KnownStore, Others
from tests.support.power_cut.power import PowerDisk, power_disk

__all__ = ["LAYOUTS", "Counts", "ViolationError", "simulate", "simulate_all", "uncollected"]

_ACTION = Field((), "int64", chunk=11)
LAYOUTS = [
    Layout(Field((3,), "uint8", "lz4", 2, 4), _ACTION, {}),
    Layout(Field((3,), "uint8", "lz4", 2, 4), _ACTION, {}, capacity=9),
    Layout(Field((600,), "uint8", "zstd", 2, 4), Field((), "int64", chunk=70), {}, capacity=3),
    Layout(Field((5,), "uint8", "raw", 9), Field((2,), "float32", chunk=8), {}, capacity=5),
    Layout(Field((200,), "uint8", "raw", 8), Field((), "int64", chunk=90), {}),
    Layout(
        {"a": Field((4,), "uint8", "raw", 13), "b": Field((2,), "uint16", "lz4", 1, 3)},
        _ACTION,
        {"x": Field((), "float64", chunk=7)},
        capacity=20,
    ),
]
"""Small chunk and shard lengths, so that a few rows meet every border."""

# The most calls until the crash, and the most steps: of each, one is chosen for a life.
_LIVES = (25, 80, 250, 1000), (1, 10, 30, 60)
_SHORT_LIVES = (25, 50, 100, 400), (1, 8, 16, 32)
# Chances, at a call, that it is the last one, and that something else happens before it.
_MOST_DANGER, _MOST_BUSTLE = 0.6, 0.25


class ViolationError(Exception):
    """Something was lost, torn or wrong after a crash; the message says in which history."""


class _Crash(BaseException):
    """The power or the process goes at this call; no handler of the code under test matters."""


@dataclasses.dataclass(slots=True)
class Counts:
    """What was tried.

    Attributes:
        crashes: of a writer, each opened again and compared with the model.
        power: those at which the power went; the others are kills.
        opening: crashes of a writer that was recovering, reopening or creating.
        closes: stores closed, compared and verified.
        calls: calls and stores, each of which could have been the last one.
        looks: of a reader while the writer was at work.
        moves: of a store, by others.
        links: copies made of hard links, by others.
        restores: of copies over what they were made from, by others.
    """

    crashes: int = 0
    power: int = 0
    opening: int = 0
    closes: int = 0
    calls: int = 0
    looks: int = 0
    moves: int = 0
    links: int = 0
    restores: int = 0

    def __add__(self, other: Counts) -> Counts:
        """Both together."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*map(sum, pairs))


class _Done:
    """Stands for `SealJob.done`: to wait for the sealing thread is to let it work."""

    def __init__(self, tasks: _Tasks) -> None:
        self._tasks = tasks
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self) -> None:
        while not self._set:
            self._tasks.run_one()

    result = wait


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


class _Tasks:
    """Stands for `Background`: what it would do in threads waits here until its time comes."""

    def __init__(self, history: _History) -> None:
        self._history = history
        self._queue: collections.deque[tuple[Callable[[], None], _Done]] = collections.deque()

    def attach(self, flushes: TimedFlush) -> None:
        fail = flushes._fail()
        stop = None if fail is None else fail.__self__._stop()  # type: ignore[attr-defined]
        self._history.writer = None if stop is None else stop.__self__

    def detach(self, flushes: TimedFlush) -> None:
        del flushes
        self.finish_tasks()

    def finish_tasks(self) -> None:
        while self._queue:
            self.run_one()

    def wake(self) -> None:
        pass  # flushes come when the seed says so

    flush_soon = wake

    def submit(self, task: Callable[[], None]) -> _Done:
        done = _Done(self)
        job = getattr(task, "__self__", None)
        if isinstance(job, SealJob):
            job.done = done  # type: ignore[assignment]
        self._queue.append((task, done))
        return done

    def __bool__(self) -> bool:
        return bool(self._queue)

    def run_one(self) -> None:
        task, done = self._queue.popleft()
        with self._history.busy("seal"):
            task()
        done.set()


class _History:
    """One store, and what happens to it; of its copies, one at a time is the one at hand.

    Args:
        root: an empty directory.
        seed: decides everything.
        layouts: to choose from.
        others: whether anybody else is at work; if None, the seed decides that, too.
    """

    def __init__(
        self, root: Path, seed: int, layouts: list[Layout], *, others: bool | None = None
    ) -> None:
        self._luck = random.Random(seed)
        layout = self._luck.choice(layouts)
        self._arguments = layout.create_arguments()
        self._frames = layout.schema.frames
        self._action, self._extras = layout.action, layout.extras
        self._store = KnownStore(_Path(root) / "s.zarr", layout.model())
        self._others = Others(_Path(root), seed, self._store, at_work=others)
        self._disk: PowerDisk
        self._boot = 0
        self._left = 0  # calls until the crash
        # Short lives crash while what the one before left to the page cache is still there alone.
        self._short = self._luck.random() < 0.5
        # Whether the first life is to come to where rows go, far from all that comes before.
        self._far = layout.capacity is not None and self._luck.random() < 0.15
        self._rarely = False  # whether this life flushes rarely, and is ahead of its checkpoints
        self._opened = False  # whether the writer is open, and not only being opened
        self._at: list[str] = []  # what is going on, the outermost first
        self._tasks = _Tasks(self)
        self.writer: Writer | None = None
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

    def background(self, _: float) -> _Tasks:
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
        self._tasks = _Tasks(self)
        # To make a store takes some 150 calls; most lives are to end later.
        least = 0 if self._store.path.exists() else 2
        calls, steps = _SHORT_LIVES if self._short else _LIVES
        at_most = self._luck.choice(calls[least:])
        n_steps = self._luck.randrange(self._luck.choice(steps))
        if self._far:
            at_most, n_steps = 20_000, 90
        self._rarely = self._luck.random() < 0.25
        # The next crash soon after: what a recovery left to the page cache may be lost.
        again = self._store.path.exists() and self._luck.random() < 0.3
        if again:
            n_steps = self._luck.randrange(3)
        self._left = self._luck.randrange(at_most // 20, at_most)
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
        if self.writer is not None:
            self.writer._session.abandon()
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
        if self._left <= 0 or (luck > 1 - _MOST_DANGER and luck > 1 - self._danger()):
            self._left = 0
            raise _Crash
        self.counts.calls += 1
        if self._others.at_work:
            self._others.meanwhile(self._store, self._look, opened=self._opened)
        if luck < _MOST_BUSTLE and luck < self._bustle():
            self._meanwhile()

    def _bustle(self) -> float:
        """More where two things meet: in the middle of a seal or a flush, and while files go."""
        if self._files_go():
            return 0.2 if self._opened else 0.08
        if "writer" not in self._at:
            return _MOST_BUSTLE
        return 0.02 if self._at == ["writer"] else 0.1

    def _files_go(self) -> bool:
        """Whether a file is about to be removed, or has just been."""
        return "unlink" in self._disk.calls[-2:]

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
        free = not lane.log.checkpoint_lock.locked()
        if self._files_go():
            self._look(self._store)
            return
        choices: list[Callable[[], None]] = []
        if self._tasks and "seal" not in self._at and free:
            choices.append(self._tasks.run_one)
        if free and not lane.flush_lock.locked() and not self._rarely:
            choices.append(self._flush_by_clock)
        if "writer" not in self._at:
            waits = writer._head >= writer._sealer.half_stop
            if not waits or (free and "seal" not in self._at):
                choices.append(self._step)
        if self._luck.random() < 0.05:
            choices.append(functools.partial(self._look, self._store))
        if choices:
            self._luck.choice(choices)()

    def _flush_by_clock(self) -> None:
        with self.busy("flush"):
            rows = self._store.returned
            self.writer._session._timed_flush.flush_in_background(timer=True)  # type: ignore[union-attr]
            self._store.flushed = max(self._store.flushed, rows)

    # ------------------------------------------------------------ what a writer does

    def _open(self) -> None:
        there = self._store.path.exists()
        # A store that was closed has to be whole, with all that nobody reads but to verify it.
        was_closed, self._store.is_closed = self._store.is_closed, False
        if (self._luck.random() < 0.03 or was_closed) and there and not self._store.is_restored:
            self._look_and_verify()
        if there and self._luck.random() < 0.9:
            # What `create` does in the end; before that it looks at what it was asked for.
            Writer(self._store.path, background=self._tasks)  # type: ignore[arg-type]
        else:
            mmreplay.create(self._store.path, **self._arguments, append=True, flush_s=0)
        self._check_head()
        if self._luck.random() < 0.6:
            self._check_rows()

    def _work(self, n_steps: int) -> None:
        flushes = 0.01 if self._rarely else 0.1
        for _ in range(n_steps):
            if self._left <= 0:  # in a seal, which keeps whatever ends it for the writer
                raise _Crash
            pick = self._luck.random()
            if pick < flushes / 2:
                with self.busy("writer"):
                    self.writer.flush()  # type: ignore[union-attr]
                self._store.flushed = self._store.returned
            elif pick < flushes:
                self._flush_by_clock()
            elif pick > 0.94 and self._tasks:
                self._tasks.run_one()
            else:
                self._step()

    def _step(self) -> None:
        """A step or a reset; in the model before, for it may be committed when the crash comes."""
        writer = self.writer
        if writer is None:
            raise RuntimeError("nobody writes")
        row = len(self._store.lane.rows)
        value = row * 7 + 1 + self._store.number * 37
        frames: Any = {
            name: np.full(one.shape, value % 250 + 1) for name, one in self._frames.items()
        }
        frames = {name: one.astype(self._frames[name].dtype) for name, one in frames.items()}
        frame = frames if self._store.model.schema.is_dict else next(iter(frames.values()))
        with self.busy("writer"):
            if not writer.running or self._luck.random() < 0.05:
                self._store.lane.reset(frame)
                writer.reset(frame)
            else:
                action = np.full(self._action.shape, value, self._action.dtype)
                flag = self._luck.choice(("terminated", "truncated", "life_lost", *("",) * 20))
                more: dict[str, Any] = {name: float(value) for name in self._extras}
                if flag:
                    more[flag] = True
                self._store.lane.step(action, value, frame, **more)
                writer.step(action, value, frame, **more)
        self._store.returned = len(self._store.lane.rows)

    def _close(self) -> None:
        self.writer.close()  # type: ignore[union-attr]
        self.counts.closes += 1
        self._store.is_closed = True
        self._store.flushed = self._store.returned = len(self._store.lane.rows)
        self._store.lane.end_session()
        self._check_rows()
        checks.check_plain_zarr(self._store.path)
        if self._luck.random() < 0.2:
            checks.check_verified(self._store.path)

    # ------------------------------------------------------------ what is found

    def _check_head(self) -> None:
        """After an opening that went through: nothing is missing that may not be."""
        head = self.writer.rows  # type: ignore[union-attr]
        least = self._store.least
        if not least <= head <= len(self._store.lane.rows):
            raise ViolationError(
                f"rows: expected {least} to {len(self._store.lane.rows)}, found {head}"
                f"{'' if self._store.powered else ' after a power cut'}"
            )
        self._store.lane.cut(head)
        self._store.returned = head
        if not self._store.powered:
            self._store.flushed = head  # what was found then is on the disk
        self._store.powered, self._store.is_restored = True, False

    def _check_rows(self) -> None:
        with mmreplay.open(self._store.path) as store:
            view = store.lanes[0]
            checks.check_columns(store, self._store.model)
            self._store.lane.forget(view.base)
            checks.check_ids(store, self._store.model)
        self._check_litter()

    def _check_litter(self) -> None:
        """Nothing is left of what a crash interrupted, and nothing that was evicted."""
        writer = self.writer
        if writer is None:
            raise RuntimeError("nobody writes")
        found = {folder: names for folder, _, names in os.walk(self._store.path)}
        for folder, names in found.items():
            if any(name.endswith(".tmp") for name in names):
                raise ViolationError(f"{folder}: litter was left: {names}")
        for path, spec in writer.specs.items():
            names = found[f"{self._store.path}/{path}"]
            for chunk in (int(name.split(".")[1]) for name in names if name.startswith("c.")):
                start = chunk * spec.chunk_rows
                if start + spec.chunk_rows <= writer.base or start > writer.rows:
                    raise ViolationError(
                        f"{path}: chunk {chunk} of rows {start} to {start + spec.chunk_rows} is "
                        f"left, of {writer.base} to {writer.rows} in the store"
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
            self._compare_opened(store, known)

    @staticmethod
    def _compare_opened(store: mmreplay.Store, known: KnownStore) -> None:
        view = store.lanes[0]
        if not known.least <= view.rows <= len(known.lane.rows):
            raise ViolationError(
                f"{known.path}: a reader: rows: expected {known.least} to {len(known.lane.rows)}, "
                f"found {view.rows}"
            )
        found = known.model.copy()
        found.lanes[0].cut(view.rows)
        checks.check_columns(store, found)


@contextlib.contextmanager
def _machine(history: _History, root: Path) -> Iterator[PowerDisk]:
    """The disk, the boot id and the threads that a history is lived with."""

    def in_turn(call: Callable[..., Any], *arguments: Any) -> tuple[list[Any], list[Exception]]:
        return [call(*each) for each in zip(*arguments, strict=True)], []

    with (
        power_disk(root, history.before_call, stores=True) as disk,
        mock.patch.object(platform, "boot_id", history.boot_id),
        mock.patch.object(open_lanes, "Background", history.background),
        mock.patch.object(open_lanes, "run_in_threads", in_turn),
        mock.patch.object(user_paths, "Path", functools.cache(_Path)),
        mock.patch.object(
            logging.getLogger("mmreplay"), "disabled", new=True
        ),  # of rows that were lost
    ):
        yield disk


def simulate(
    seed: int,
    n_crashes: int,
    layouts: list[Layout] | None = None,
    *,
    others: bool | None = None,
) -> Counts:
    """Live one history.

    Args:
        seed: decides everything; the same one lives the same history again.
        n_crashes: after how many crashes to end it.
        layouts: to choose from; those of this module by default.
        others: whether anybody else is at work; if None, the seed decides that, too.

    Raises:
        ViolationError: something was lost, torn or wrong.
    """
    with scratch_directory() as root:
        history = _History(root, seed, layouts or LAYOUTS, others=others)
        try:
            with _machine(history, root) as disk:
                history.run(disk, n_crashes)
        except Exception as error:  # whatever it is, the calls of a history do not raise it
            raise ViolationError(
                f"history {seed}, crash {history.counts.crashes + 1}: {error}"
            ) from error
        return history.counts


def simulate_all(seeds: Sequence[int], n_crashes: int) -> tuple[Counts, list[str]]:
    """Live many histories; returns what was tried, and every violation."""
    counts, violations = Counts(), []
    for seed in uncollected(seeds):
        try:
            counts += simulate(seed, n_crashes)
        except ViolationError as error:
            violations.append(str(error))
    return counts, violations


def uncollected(seeds: Sequence[int]) -> Iterator[int]:
    """Seeds of histories, with garbage collected between them: to look for it takes its time."""
    gc.freeze()  # what was there before is not looked through again and again
    gc.disable()
    try:
        for seed in seeds:
            yield seed
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
