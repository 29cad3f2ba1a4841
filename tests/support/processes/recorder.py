"""A recording process to be killed: ``python -m tests.support.processes.recorder`` forks one an order.

Invariant: what stands in a `Ledger` for a row was given to the writer before its call, and a row
is counted there only after that call had returned.

What is killed is `record` itself, with environments of its own, as `mmreplay record --append` runs
it. Between it and its writer stands nothing but a note of each call.
"""

from __future__ import annotations

import dataclasses
import os
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from mmreplay.reading.store import Store
from mmreplay.system import memory_maps
from mmreplay.writing.open_lanes import AnyWriter
from mmreplay.writing.writer import Writer
from tests.support.disks import faults
from tests.support.oracle import checks
from tests.support.processes.forks import Forks, serve

__all__ = ["OPENING", "RECORDING", "WAITING", "Ledger", "Order", "Recorders"]

WAITING, OPENING, RECORDING, DONE = range(4)
"""Phases of a recording."""
_PHASE, _OPENED_NS, _DROPPED, _ROWS = range(4)  # words of the head; of each lane from the last on
_HEAD_WORDS = 64
_MAX_ROWS = 1 << 18
_ENTRY = np.dtype(
    [("frame", "<u4"), ("action", "<i8"), ("reward", "<f4"), ("flag", "u1"), ("is_reset", "u1")]
)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A recording; it travels as JSON.

    Attributes:
        env: a gymnasium id, of frames that are one array.
        path: the store.
        ledger: the file of a `Ledger`.
        lanes: environments.
        steps: transitions to record.
        capacity: transitions to keep, over all lanes.
        flush_s: seconds between flushes in the background.
    """

    env: str
    path: str
    ledger: str
    lanes: int
    steps: int = 1_000_000
    capacity: int | None = None
    flush_s: float = 30.0


class Ledger:
    """What the recorders of one store gave to their writers; shared with those that check it.

    Args:
        path: the file; made if it is not there.
        lanes: of the store.
    """

    def __init__(self, path: Path, lanes: int) -> None:
        size = 8 * _HEAD_WORDS + lanes * _MAX_ROWS * _ENTRY.itemsize
        if not path.exists():
            path.touch()
            os.truncate(path, size)
        data = memory_maps.map_file(path, size, writable=True)
        self._lanes = lanes
        self._head: npt.NDArray[Any] = data[: 8 * _HEAD_WORDS].view("<u8")
        self._rows: npt.NDArray[Any] = data[8 * _HEAD_WORDS :].view(_ENTRY).reshape(lanes, -1)

    @property
    def phase(self) -> int:
        """What the recording was doing."""
        return int(self._head[_PHASE])

    @phase.setter
    def phase(self, phase: int) -> None:
        self._head[_PHASE] = phase

    @property
    def opened_s(self) -> float:
        """How long the newest opening took; 0 if it did not come to its end."""
        return int(self._head[_OPENED_NS]) / 1e9

    @opened_s.setter
    def opened_s(self, seconds: float) -> None:
        self._head[_OPENED_NS] = int(seconds * 1e9)

    @property
    def committed(self) -> list[int]:
        """Rows whose call has returned, by lane."""
        return [int(n) for n in self._head[_ROWS : _ROWS + self._lanes]]

    @committed.setter
    def committed(self, rows: Iterable[int]) -> None:
        self._head[_ROWS : _ROWS + self._lanes] = list(rows)

    @property
    def dropped(self) -> int:
        """Committed rows that were no longer there when a recorder had opened the store."""
        return int(self._head[_DROPPED])

    def take_over(self, rows: Iterable[int]) -> None:
        """A recorder has opened the store, and found so many rows, by lane."""
        found = list(rows)
        pairs = zip(self.committed, found, strict=True)
        self._head[_DROPPED] += sum(max(known - there, 0) for known, there in pairs)
        self.committed = found

    def note(self, lane: int, row: int, frame: Any, *how: Any) -> None:
        """How a row comes about: its frame; action, reward and flag of the step; is it a reset."""
        self._rows[lane, row] = (_sum(frame), *how)

    def lost(self, store: Store) -> int:
        """Rows that were committed and are not there.

        Raises:
            AssertionError: there are rows that nobody wrote.
        """
        heads = [view.rows for view in store.lanes]
        pairs = list(zip(heads, self.committed, strict=True))
        if any(head > known + 1 for head, known in pairs):
            raise AssertionError(f"{store.path}: {heads} rows, of {self.committed}")
        return sum(max(known - head, 0) for head, known in pairs)

    def check(self, store: Store, newest: int | None = None) -> int:
        """The rows of a store are those that its recorders gave.

        Args:
            store: read-only.
            newest: of each lane only so many rows; None for all that are kept.

        Returns:
            rows compared.

        Raises:
            AssertionError: one differs.
        """
        count = 0
        for number, view in enumerate(store.lanes):
            head = view.rows
            start = max(view.base, 0 if newest is None else head - newest)
            here = self._rows[number, start:head]
            after = self._rows[number, start + 1 : head + 1].copy()
            is_step = after["is_reset"] == 0
            if head > start:
                is_step[-1] = False  # the newest row
            frames = view.frames
            if isinstance(frames, dict):
                raise TypeError("a ledger is of frames that are one array")
            found = [_sum(one) for one in frames[start:head]]
            what = f"{view.path}: rows from {start} on"
            checks.check_same(np.array(found, "<u4"), here["frame"].copy(), f"{what}: frames")
            checks.check_same(view.resets[start:head], here["is_reset"].copy(), f"{what}: resets")
            for name, column in (("action", view.actions), ("reward", view.rewards)):
                expected = np.where(is_step, after[name], 0).astype(column.dtype)
                checks.check_same(column[start:head], expected, f"{what}: {name}")
            flags = np.where(is_step, after["flag"], here["flag"])
            checks.check_same(view.non_terminals[start:head], flags, f"{what}: non_terminals")
            count += head - start
        return count


def _sum(frame: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(frame).tobytes())


def _noting(ledger: Ledger) -> Any:
    """`create`, whose writers tell the ledger of each call."""
    create = mmreplay.create

    def create_noting(*arguments: Any, **options: Any) -> AnyWriter:
        ledger.opened_s, ledger.phase = 0.0, OPENING
        began = time.perf_counter()
        writer = create(*arguments, **options)
        took_s = time.perf_counter() - began
        lanes = faults.lanes_of(writer)
        ledger.take_over([lane.rows for lane in lanes])
        ledger.opened_s, ledger.phase = took_s, RECORDING
        _note_calls(writer, lanes, ledger)
        return writer

    return create_noting


def _note_calls(writer: Any, lanes: tuple[Writer, ...], ledger: Ledger) -> None:
    one = isinstance(writer, Writer)
    reset, step = writer.reset, writer.step
    everywhere = np.ones(len(lanes), bool)

    def reset_noting(frames: Any, mask: Any = None) -> None:
        for n in np.flatnonzero(everywhere if mask is None else mask).tolist():
            ledger.note(n, lanes[n].rows, frames if one else frames[n], 0, 0, 1, 1)
        reset(frames) if one else reset(frames, mask)
        ledger.committed = [lane.rows for lane in lanes]

    def step_noting(
        actions: Any, rewards: Any, frames: Any, ended: Any, cut: Any, **more: Any
    ) -> None:
        mask = more.get("mask")
        for n in np.flatnonzero(everywhere if mask is None else mask).tolist():
            given = actions, rewards, frames, ended
            action, reward, frame, over = given if one else (each[n] for each in given)
            ledger.note(n, lanes[n].rows, frame, action, reward, not over, 0)
        step(actions, rewards, frames, ended, cut, **more)
        ledger.committed = [lane.rows for lane in lanes]

    writer.reset, writer.step = reset_noting, step_noting


def _record(order: dict[str, Any]) -> None:
    from mmreplay.recording import recorder

    wanted = Order(**order)
    ledger = Ledger(Path(wanted.ledger), wanted.lanes)
    recorder.create = _noting(ledger)
    recorder.record(
        wanted.env,
        wanted.path,
        wanted.steps,
        envs=wanted.lanes,
        capacity=wanted.capacity,
        flush_s=wanted.flush_s,
        append=True,
    )
    ledger.phase = DONE


class Recorders(Forks):
    """Client of the server that forks recorders; a context manager."""

    def __init__(self) -> None:
        # Quiet: it is where the emulator introduces itself.
        super().__init__("tests.support.processes.recorder", quiet=True)

    def start(self, order: Order) -> int:
        """Fork a recorder; returns its process id."""
        Ledger(Path(order.ledger), order.lanes).phase = WAITING
        return self.fork(dataclasses.asdict(order), order.ledger + ".error")


def _serve() -> None:
    import ale_py.vector_env  # noqa: F401 (an extra; here, so that a child need not)
    import cv2  # noqa: F401

    import mmreplay.recording.recorder  # noqa: F401

    serve(_record)


if __name__ == "__main__":
    _serve()
