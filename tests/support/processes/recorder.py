"""A recording process to be killed: ``python -m tests.support.processes.recorder`` forks one an order.

Invariant: what stands in a `Ledger` for a row was given to the writer before its call, and a row
is counted there only after that call had returned.

What is killed is `record` itself, with environments of its own, as `mmreplay record --append` runs
it. Between it and its writer stands nothing but a note of each call.
"""

import dataclasses
import os
import time
import zlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

import mmreplay
from mmreplay.system import memory_maps
from mmreplay.writing.vector_writer import VectorWriter
from tests.support.oracle import checks
from tests.support.processes.forks import Forks, serve

WAITING, OPENING, RECORDING, DONE = range(4)
"""Phases of a recording."""
_PHASE, _OPENED_NS, _DROPPED, _ROWS = range(4)  # words of the head
_HEAD_WORDS = 64
_MAX_ROWS = 1 << 20
_ENTRY = np.dtype(
    [
        *(("start", "<u4"), ("frame", "<u4"), ("action", "<i8"), ("reward", "<f4")),
        *(("flag", "u1"), ("begins", "u1"), ("steps", "u1")),
    ]
)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A recording; it travels as JSON."""

    env: str  # a gymnasium id, of frames that are one array
    path: str  # the store
    ledger: str  # the file of a `Ledger`
    envs: int | None = None  # environments that step together; None for one on its own
    # their mode, as of `gymnasium.vector.AutoresetMode`; None for that in which `record` makes
    # them
    autoreset: str | None = None
    steps: int = 1_000_000  # transitions to record
    capacity: int | None = None  # transitions to keep
    flush_s: float = 30.0  # seconds between flushes in the background


class Ledger:
    """What the recorders of one store gave to their writers; shared with those that check it."""

    def __init__(self, path, envs):
        size = 8 * _HEAD_WORDS + _MAX_ROWS * (envs or 1) * _ENTRY.itemsize
        if not path.exists():
            path.touch()
            os.truncate(path, size)
        data = memory_maps.map_file(path, size, writable=True)
        self._envs = envs
        self._head = data[: 8 * _HEAD_WORDS].view("<u8")
        rows = data[8 * _HEAD_WORDS :].view(_ENTRY)
        self._rows = rows.reshape(_MAX_ROWS, envs or 1)

    @property
    def phase(self):
        """What the recording was doing."""
        return int(self._head[_PHASE])

    @property
    def opened_s(self):
        """How long the newest opening took; 0 if it did not come to its end."""
        return int(self._head[_OPENED_NS]) / 1e9

    @property
    def committed(self):
        """Rows whose call has returned."""
        return int(self._head[_ROWS])

    @property
    def dropped(self):
        """Committed rows that were no longer there when a recorder had opened the store."""
        return int(self._head[_DROPPED])

    def begin(self, phase, opened_s=0.0):
        """The recording is in another phase; an opening that has come to its end took a while."""
        self._head[_PHASE], self._head[_OPENED_NS] = phase, int(opened_s * 1e9)

    def commit(self, rows):
        self._head[_ROWS] = rows

    def take_over(self, rows):
        """A recorder has opened the store, and found so many rows."""
        self._head[_DROPPED] += max(self.committed - rows, 0)
        self.commit(rows)

    def note(self, row, env, **values):
        """How a row of an environment comes about; what is not given is 0."""
        entry = np.zeros((), _ENTRY)
        for name, value in values.items():
            entry[name] = value
        self._rows[row, env] = entry

    def lost(self, store):
        """Rows that were committed and are not there."""
        (view,) = store.lanes
        if view.rows > self.committed + 1:
            raise AssertionError(f"{store.path}: {view.rows} rows, of {self.committed}")
        return max(self.committed - view.rows, 0)

    def check(self, store, newest=None):
        """The transitions of a store are those that its recorders gave."""
        (view,) = store.lanes
        expected = self._ids(view.first, view.rows)
        checks.check_same(store.ids, expected, f"{store.path}: ids")
        ids = expected if newest is None else expected[-newest:]
        for number in range(0, len(ids), 1_000):
            self._check_transitions(store, ids[number : number + 1_000])
        return len(ids)

    def _ids(self, first, head):
        steps = self._rows["steps"]
        return np.flatnonzero(steps[first:head]) + first * (self._envs or 1)

    def _check_transitions(self, store, ids):
        rows, envs = np.divmod(ids, self._envs or 1)
        after = self._rows[rows, envs]
        before = self._rows["frame"][rows - 1, envs]
        seen = np.where(after["begins"], after["start"], before)
        found = store.transitions(ids, stack=None)
        for name, value, expected in (
            ("observation", _sums(found.observation), seen),
            ("next_observation", _sums(found.next_observation), after["frame"]),
            ("action", found.action, after["action"]),
            ("reward", found.reward, after["reward"]),
            ("discount", (found.discount > 0).astype("u1"), after["flag"]),
        ):
            checks.check_same(value, expected.astype(value.dtype), f"{store.path}: {name}")


def _sum(frame):
    return zlib.crc32(np.ascontiguousarray(frame).tobytes())


def _sums(frames):
    return np.array([_sum(frame) for frame in frames], np.uint32)


def _noting(ledger):
    """`create`, whose writers tell the ledger of each call."""
    create = mmreplay.create

    def create_noting(*arguments, **options):
        ledger.begin(OPENING)
        began = time.perf_counter()
        writer = create(*arguments, **options)
        took_s = time.perf_counter() - began
        ledger.take_over(writer.rows)
        ledger.begin(RECORDING, took_s)
        if isinstance(writer, VectorWriter):
            _note_ticks(writer, ledger)
        else:
            _note_rows(writer, ledger)
        return writer

    return create_noting


def _note_rows(writer, ledger):
    reset, step = writer.reset, writer.step
    starts = []

    def reset_noting(frame):
        reset(frame)
        starts[:] = [_sum(frame)]

    def step_noting(action, reward, frame, over, cut, **more):
        values = {"action": action, "reward": reward, "flag": not over, "steps": 1}
        values |= {"begins": bool(starts), "start": sum(starts)}
        ledger.note(writer.rows, 0, frame=_sum(frame), **values)
        step(action, reward, frame, over, cut, **more)
        ledger.commit(writer.rows)
        starts.clear()

    writer.reset, writer.step = reset_noting, step_noting


def _note_ticks(writer, ledger):
    reset, step = writer.reset, writer.step
    everyone = np.ones(len(writer), bool)
    starts = {}

    def reset_noting(frames, mask=None):
        for env in np.flatnonzero(everyone if mask is None else mask).tolist():
            starts[env] = _sum(frames[env])
        reset(frames, mask)

    def step_noting(actions, rewards, frames, over, cut, mask=None, **more):
        for env, steps in enumerate((everyone if mask is None else mask).tolist()):
            values = {}
            if steps:
                values = {
                    "frame": _sum(frames[env]),
                    "action": actions[env],
                    "reward": rewards[env],
                    "flag": not over[env],
                    "steps": 1,
                    "begins": env in starts,
                    "start": starts.get(env, 0),
                }
            ledger.note(writer.rows, env, **values)
        step(actions, rewards, frames, over, cut, mask=mask, **more)
        ledger.commit(writer.rows)
        starts.clear()

    writer.reset, writer.step = reset_noting, step_noting


def _record(order):
    from mmreplay.recording import recorder

    wanted = Order(**order)
    ledger = Ledger(Path(wanted.ledger), wanted.envs)
    recorder.create = _noting(ledger)
    env: Any = wanted.env
    if wanted.autoreset is not None:
        env = gymnasium.make_vec(
            wanted.env,
            wanted.envs or 1,
            "sync",
            vector_kwargs={"autoreset_mode": AutoresetMode(wanted.autoreset)},
        )
    recorder.record(
        env,
        wanted.path,
        wanted.steps,
        envs=wanted.envs or 1,
        capacity=wanted.capacity,
        flush_s=wanted.flush_s,
        append=True,
    )
    ledger.begin(DONE)


class Recorders(Forks):
    """Client of the server that forks recorders; a context manager."""

    def __init__(self):
        # Quiet: it is where the emulator introduces itself.
        super().__init__("tests.support.processes.recorder", quiet=True)

    def start(self, order):
        """Fork a recorder; returns its process id."""
        Ledger(Path(order.ledger), order.envs).begin(WAITING)
        return self.fork(dataclasses.asdict(order), order.ledger + ".error")


def _serve():
    import ale_py.vector_env  # noqa: F401 (an extra; here, so that a child need not)
    import cv2  # noqa: F401

    import mmreplay.recording.recorder  # noqa: F401

    serve(_record)


if __name__ == "__main__":
    _serve()
