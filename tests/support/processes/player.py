"""Acts of a writer process: named, so that a script can put them together.

Invariant: an act is reported as done only after the calls that it is made of have returned.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.errors import (
    DiskFullError,
    FailedStoreError,
    FormatError,
    StoreNotFoundError,
)
from mmreplay.reading.store import Store
from mmreplay.storage import priority_column
from mmreplay.system import memory_maps, platform
from mmreplay.writing.create import AnyWriter
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer
from tests.support.disks import faults
from tests.support.oracle import checks
from tests.support.oracle.script import Script, append_rows
from tests.support.writers import LaneWriters

OPENING, WRITING, FLUSHING, CLOSING, DONE = range(5)
"""Phases, as an actor reports them."""
MAX_LANES = 16
CALLS, PHASE = 2 * MAX_LANES, 2 * MAX_LANES + 1
WORDS = 2 * MAX_LANES + 2


def _course(script: Script) -> Iterator[str]:
    """Open the store, write, flush, close, open it again, until there is no session left."""
    whim = random.Random(script.session)
    for session in range(script.sessions):
        yield "open"
        for _ in range(whim.randint(1, script.rows)):
            yield "rows 1"
            if whim.random() < 0.02:
                yield "flush"
            if script.pause_s and whim.random() < 0.1:
                yield f"pause {whim.random() * script.pause_s}"
        last = session == script.sessions - 1
        yield "close" if last or whim.random() < 0.6 else "drop"


class Player:
    """Performs a script; its public methods are the acts."""

    def __init__(self, script: Script, disk: faults.Disk) -> None:
        self._script, self._disk = script, disk
        size = 8 * WORDS
        self._report = memory_maps.map_file(Path(script.report), size, writable=True).view("<u8")
        self._writer: AnyWriter | LaneWriters | PrioritizedReplayBuffer | None = None
        self._starts: list[int | None] = []
        self._boot = platform.boot_id
        self._failed = False
        self._broken = script.fails[0] if script.fails is not None else ""
        self.calls: dict[str, int] = {}

    def perform(self) -> None:
        """All of it."""
        for number, act in enumerate(self._script.acts or _course(self._script)):
            if number == self._script.watch_from:
                self._disk.counts.clear()
                if self._script.fails is not None:
                    call, error, at, forever = self._script.fails
                    self._disk.fail({call}, error, at=at, forever=forever)
            name, *arguments = act.split()
            getattr(self, name)(*arguments)
        self._report[PHASE] = DONE
        self._report[CALLS] = sum(self._disk.counts.values())

    # ------------------------------------------------------------ acts

    def open(self, _: str = "") -> None:
        """Open the store, and make it if need be."""
        self._begin(self._script.open)

    def buffer(self) -> None:
        """Open the store as a buffer that samples by priority."""
        self._begin(lambda: self._script.open_buffer(PrioritizedReplayBuffer, stack=3))

    def rows(self, count: str) -> None:
        """So many rows in every lane."""
        for _ in range(int(count)):
            self._again(self._row)

    def batch(self) -> None:
        """Sample, and tell the errors of what was sampled."""
        buffer = self._writer
        if self._failed:
            return
        if not isinstance(buffer, PrioritizedReplayBuffer):
            raise TypeError("a batch needs a buffer")
        if self._script.syncs_fail and not len(buffer):
            return  # nothing had been flushed
        self._again(lambda: self._sample(buffer))

    def _sample(self, buffer: PrioritizedReplayBuffer) -> None:
        batch = buffer.sample(8)
        buffer.update_priorities(batch.id, np.arange(8) + 1)

    def flush(self) -> None:
        """Make all rows durable."""
        if self._failed or self._writer is None:
            return
        self._report[PHASE] = FLUSHING
        durable = [lane.rows for lane in self._lanes]
        self._again(self._writer.flush)
        if not self._failed:
            self._report[MAX_LANES : MAX_LANES + len(durable)] = durable
        self._report[PHASE] = WRITING

    def pause(self, seconds: str) -> None:
        """Give the background its time."""
        time.sleep(float(seconds))

    def close(self) -> None:
        """Close the store."""
        self._report[PHASE] = CLOSING
        if self._writer is None:
            return
        durable = [lane.rows for lane in self._lanes]
        self._again(self._leave)
        if not self._failed:
            self._report[MAX_LANES : MAX_LANES + len(durable)] = durable

    def _leave(self) -> None:
        if self._writer is not None:
            with self._writer:
                pass

    def drop(self) -> None:
        """Leave the store as a death would."""
        self._report[PHASE] = CLOSING
        if self._writer is not None:
            faults.forget_tasks(self._lanes[0]._background)
            faults.kill(self._writer)

    def heal(self) -> None:
        """The disk is sound again; from here on calls are not counted."""
        self._disk.heal()
        self.calls = dict(self._disk.counts)

    def litter(self) -> None:
        """Leave what a writer may leave that died while it made something."""
        path = Path(self._script.path)
        staged = path / ".lane-00000.tmp" if self._script.lane else path / "priorities.tmp"
        (staged / "inner").mkdir(parents=True)
        (staged / "inner" / "file").write_bytes(b"")
        (staged / "link").symlink_to(path, target_is_directory=True)
        if self._script.lane is None:
            for folder in (path, path / "finals", path / "actions"):
                (folder / "zarr.json.0123abcd.tmp").write_bytes(b"")
        sums = path / "checksums" / "priorities"
        if sums.exists():  # or what a copy of more rows leaves that is restored over it
            (sums / "c.1").write_bytes(bytes(4096))

    def short(self) -> None:
        """Let new columns of priorities have chunk files of a page."""
        priority_column._CHUNK_ROWS = 512

    def reboot(self) -> None:
        """Die as with the whole machine, which takes what was not flushed."""
        self.drop()
        n_lanes = len(self._lanes)
        self._report[:n_lanes] = self._report[MAX_LANES : MAX_LANES + n_lanes]
        platform.boot_id = self._boot

    def elsewhere(self) -> None:
        """Let all that follows, until the reboot, happen before the machine was started."""
        before = os.urandom(16)
        self._boot, platform.boot_id = platform.boot_id, lambda: before

    # ------------------------------------------------------------ how they are performed

    @property
    def _lanes(self) -> tuple[Writer | VectorWriter, ...]:
        return faults.writers_of(self._writer) if self._writer is not None else ()

    def _begin(
        self, opening: Callable[[], AnyWriter | LaneWriters | PrioritizedReplayBuffer]
    ) -> None:
        def attempt() -> None:
            self._writer = opening()

        self._report[PHASE] = OPENING
        self._failed, self._writer = False, None
        self._again(attempt)
        if self._failed:
            return
        heads = [lane.rows for lane in self._lanes]
        _log(self._script, heads)
        self._report[: len(heads)] = heads
        self._report[PHASE] = WRITING
        self._starts = [None] * (self._script.envs or 1)

    def _row(self) -> None:
        writer = self._writer
        if writer is not None:
            script = self._script
            append_rows(writer, script.plot, self._starts, self._report)

    def _again(self, call: Callable[[], object]) -> None:
        """Call once more when there is room again; a disk that fails ends the session."""
        if self._failed:
            return
        try:
            call()
        except DiskFullError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._disk.heal()
            if self._broken not in faults.SYNCING:  # or a flush in the background may have failed
                self._look()
            self._again(call)  # and it says so
        except FailedStoreError:
            self._disk.heal()
            self._failed = True
            self._look_after_failure()
            if self._writer is not None:
                # Of another lane nobody may have been told yet.
                more = [FailedStoreError] if len(self._lanes) > 1 else []
                with contextlib.suppress(*more):
                    self._writer.close()

    def _look(self) -> None:
        """After an error, what is committed is there, and nothing else."""
        path = Path(self._script.path)
        if self._writer is None or not path.exists():
            return
        with Store([path]) as store:
            found, known = [view.rows for view in store.lanes], [one.rows for one in self._lanes]
        if found != known:
            raise AssertionError(f"{path}: {known} rows were written, {found} are there")
        if not any(one.is_closed for one in store.live.readers):
            checks.check_verified(path)  # otherwise it would wait for the writer that closes it

    def _look_after_failure(self) -> None:
        """Whoever comes now finds what is committed, or what is durable if an fsync failed."""
        path = Path(self._script.path)
        if self._broken not in faults.SYNCING:
            self._look()
            return
        try:
            store = Store([path])
        except (StoreNotFoundError, FormatError):
            if self._writer is None:  # it was just to be made
                return
            raise
        with store:
            found = np.array([view.rows for view in store.lanes])
        known, durable = self._report[: found.size], self._report[MAX_LANES:][: found.size]
        if (found < durable).any() or (found > known).any():
            raise AssertionError(f"{path}: {durable} to {known} rows were expected, {found} found")
        known[:] = found


def _log(script: Script, heads: list[int]) -> None:
    line = json.dumps(heads) + "\n"
    descriptor = os.open(script.report + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, line.encode())
    os.close(descriptor)
