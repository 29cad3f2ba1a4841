"""A writer process to be killed: ``python -m mmreplay.testing.actor`` forks one for each order.

Invariant: what an actor has acknowledged was committed before; what it appends follows from its
`Plot` alone, so that whoever finds the store knows what each row must hold.

The server does nothing but fork, so that a child starts in milliseconds and has no threads of its
parent. `Actors` is its client; `Chronicle` turns what the actors did into a `Model`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay import files
from mmreplay.lane import Writer
from mmreplay.lanes import create
from mmreplay.schema import Field, Schema
from mmreplay.testing import faults, mounts
from mmreplay.testing.frames import Described, Plot
from mmreplay.testing.model import Model
from mmreplay.vector import VectorWriter

__all__ = ["OPENING", "Actors", "Chronicle", "Script", "append_rows", "perform", "with_session"]

OPENING, WRITING, FLUSHING, CLOSING, DONE = range(5)
"""Phases, as an actor reports them."""
_MAX_LANES = 16
_CALLS, _PHASE = 2 * _MAX_LANES, 2 * _MAX_LANES + 1
_WORDS = 2 * _MAX_LANES + 2


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """What an actor is to do; it travels as JSON.

    Attributes:
        path: the store.
        report: the file of acknowledgements; see `Chronicle`.
        seed: of the plot.
        frame: shape, dtype, codec, chunk and shard by key; one of them is no dict observation.
        action_chunk: rows a chunk of the scalar columns.
        lanes: None for a store of one lane.
        capacity: transitions over all lanes.
        flush_s: seconds between flushes in the background.
        session: seed of how long it writes, when it flushes, closes and opens again.
        rows: rows of a session at most.
        sessions: how many times it opens the store; the last one is closed.
        pause_s: longest pause between two rows.
        die_at: end by SIGKILL before this call that changes the disk; 0 for never.
        mount: a mounted file system that is to be cut off at that moment, too; empty for none.
        boot: boot id to go by, in hex; empty for the machine's own.
    """

    path: str
    report: str
    seed: int
    frame: Mapping[str, Sequence[Any]]
    action_chunk: int | None = None
    lanes: int | None = None
    capacity: int | None = None
    flush_s: float = 0.0
    session: int = 0
    rows: int = 200
    sessions: int = 1_000_000
    pause_s: float = 0.0
    die_at: int = 0
    mount: str = ""
    boot: str = ""

    @property
    def fields(self) -> dict[str, Field]:
        """The frame fields by key."""
        return {name: Field(tuple(s), *rest) for name, (s, *rest) in self.frame.items()}

    @property
    def plot(self) -> Plot:
        """What happens in which row."""
        return Plot(self.seed, {name: Described(one) for name, one in self.fields.items()})

    def create_arguments(self) -> dict[str, Any]:
        """Keywords for `create`."""
        fields = self.fields
        return {
            "frame": fields if len(fields) > 1 else next(iter(fields.values())),
            "action": Field((), "int64", chunk=self.action_chunk),
            "extras": {"thought": Field((), "float32", chunk=self.action_chunk)},
            "capacity": self.capacity,
            "lanes": self.lanes,
            "flush_s": self.flush_s,
        }

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        arguments = self.create_arguments()
        return Schema.make(arguments["frame"], arguments["action"], arguments["extras"])

    def model(self) -> Model:
        """A model of the empty store."""
        return Model(self.schema, Model.split(self.capacity, self.lanes or 1))


def with_session(script: Script, session: int, **changes: Any) -> Script:
    """The same script, acted in another way."""
    return dataclasses.replace(script, session=session, **changes)


# ---------------------------------------------------------------- what an actor does


def perform(script: Script) -> None:
    """Open the store, write, flush, close, open it again, until there is no session left."""
    report = files.map_file(Path(script.report), 8 * _WORDS, writable=True).view("<u8")
    whim = random.Random(script.session)
    for session in range(script.sessions):
        report[_PHASE] = OPENING
        writer = create(script.path, **script.create_arguments(), append=True)
        lanes = _lanes(writer)
        heads = [lane.rows for lane in lanes]
        _log(script, heads)
        for number, head in enumerate(heads):
            report[number] = head
        report[_PHASE] = WRITING
        starts: list[int | None] = [None] * len(lanes)
        for _ in range(whim.randint(1, script.rows)):
            append_rows(writer, script.plot, starts, report)
            if whim.random() < 0.02:  # noqa: PLR2004
                report[_PHASE] = FLUSHING
                durable = [lane.rows for lane in lanes]
                writer.flush()
                for number, rows in enumerate(durable):
                    report[_MAX_LANES + number] = rows
                report[_PHASE] = WRITING
            if script.pause_s and whim.random() < 0.1:  # noqa: PLR2004
                time.sleep(whim.random() * script.pause_s)
        report[_PHASE] = CLOSING
        if session == script.sessions - 1 or whim.random() < 0.6:  # noqa: PLR2004
            durable = [lane.rows for lane in lanes]
            writer.close()
            report[_MAX_LANES : _MAX_LANES + len(durable)] = durable
        else:
            faults.kill(writer)
    report[_PHASE] = DONE


def _lanes(writer: Writer | VectorWriter) -> tuple[Writer, ...]:
    return writer.writers if isinstance(writer, VectorWriter) else (writer,)


def _log(script: Script, heads: list[int]) -> None:
    line = json.dumps(heads) + "\n"
    descriptor = os.open(script.report + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def append_rows(
    writer: Writer | VectorWriter,
    plot: Plot,
    starts: list[int | None],
    report: npt.NDArray[Any] | None = None,
) -> None:
    """One row in every lane, as the plot has it.

    Args:
        writer: of one lane or many.
        plot: what happens.
        starts: first row of each lane's running episode, None before the first reset; updated.
        report: takes the rows committed, by lane.
    """
    lanes = _lanes(writer)
    rows = [lane.rows for lane in lanes]
    begins = [s is None or plot.begins(n, rows[n]) for n, s in enumerate(starts)]
    for number, begin in enumerate(begins):
        if begin:
            starts[number] = rows[number]
    frames = [plot.frame(n, rows[n], starts[n] or 0) for n in range(len(lanes))]
    if isinstance(writer, VectorWriter):
        _append_to_all(writer, plot, rows, begins, frames)
    elif begins[0]:
        writer.reset(frames[0])
    else:
        row = rows[0]
        *ends, life_lost = plot.flags(0, row)
        writer.step(
            plot.action(0, row - 1),
            plot.reward(0, row - 1),
            frames[0],
            *ends,
            life_lost=life_lost,
            thought=plot.extra(0, row - 1),
        )
    if report is not None:
        for number, lane in enumerate(lanes):
            report[number] = lane.rows


def _append_to_all(
    writer: VectorWriter, plot: Plot, rows: list[int], begins: list[bool], frames: list[Any]
) -> None:
    whole: Any = (
        {name: np.stack([one[name] for one in frames]) for name in plot.frames}
        if len(plot.frames) > 1
        else np.stack(frames)
    )
    mask = np.array(begins)
    if mask.any():
        writer.reset(whole, mask)
    if mask.all():
        return
    numbers = range(len(rows))
    flags = np.array([plot.flags(n, rows[n]) for n in numbers])
    writer.step(
        np.array([plot.action(n, rows[n] - 1) for n in numbers]),
        np.array([plot.reward(n, rows[n] - 1) for n in numbers]),
        whole,
        flags[:, 0],
        flags[:, 1],
        life_lost=flags[:, 2],
        mask=~mask,
        thought=np.array([plot.extra(n, rows[n] - 1) for n in numbers]),
    )


# ---------------------------------------------------------------- what is known of it


class Chronicle:
    """What the actors of one store have done, as far as they told.

    Attributes:
        model: the rows that the store must hold.
    """

    def __init__(self, script: Script, *, new: bool = True) -> None:
        """Make the file of acknowledgements, or use the one that is there; see `follow`."""
        self.script = script
        self.model = script.model()
        if new:
            Path(script.report).write_bytes(bytes(8 * _WORDS))
            Path(script.report + ".log").write_bytes(b"")
        self._report = files.map_file(Path(script.report), 8 * _WORDS).view("<u8")
        self._begun: list[set[int]] = [set() for _ in self.model.lanes]
        self._read = 0

    @classmethod
    def follow(cls, script: Script) -> Self:
        """For one who only looks on, while another one asks the actors to act."""
        return cls(script, new=False)

    def begun(self) -> list[set[int]]:
        """By lane, the rows at which sessions began, the newest ones too."""
        log = Path(self.script.report + ".log")
        if log.stat().st_size != self._read:
            lines = log.read_text(encoding="ascii").splitlines(keepends=True)
            self._read = sum(map(len, lines))
            for line in lines:
                if line.endswith("\n"):
                    self.begin(json.loads(line))
        return self._begun

    @property
    def committed(self) -> list[int]:
        """Rows acknowledged, by lane."""
        return [int(n) for n in self._report[: len(self.model.lanes)]]

    @property
    def flushed(self) -> list[int]:
        """Rows acknowledged to be durable, by lane."""
        return [int(n) for n in self._report[_MAX_LANES : _MAX_LANES + len(self.model.lanes)]]

    @property
    def calls(self) -> int:
        """Calls that changed the disk, of an actor that has ended by itself."""
        return int(self._report[_CALLS])

    @property
    def phase(self) -> int:
        """What the actor was doing."""
        return int(self._report[_PHASE])

    def acknowledge(self, rows: Sequence[int], *, durable: bool = False) -> None:
        """Somebody else than an actor has written up to here."""
        known = files.map_file(Path(self.script.report), 8 * _WORDS, writable=True).view("<u8")
        known[: len(rows)] = rows
        if durable:
            known[_MAX_LANES : _MAX_LANES + len(rows)] = rows
        known[_PHASE] = OPENING

    def wait_for_rows(self, patience_s: float = 10.0) -> None:
        """Until an actor writes rows, or has been given enough time."""
        until = time.monotonic() + patience_s
        while self.phase == OPENING and time.monotonic() < until:
            time.sleep(0.0005)

    def begin(self, heads: Sequence[int]) -> None:
        """A session began here, so each lane's next row is a reset."""
        for rows, head in zip(self._begun, heads, strict=True):
            rows.add(head)

    def catch_up(self, heads: Sequence[int], *, power_cut: bool = False) -> None:
        """Let the model go on to these heads.

        Args:
            heads: rows found, by lane.
            power_cut: whether rows that were not flushed may be missing.

        Raises:
            AssertionError: a row that was acknowledged is missing, or one came from nowhere.
        """
        for line in Path(self.script.report + ".log").read_text(encoding="ascii").splitlines():
            self.begin(json.loads(line))
        Path(self.script.report + ".log").write_bytes(b"")
        plot = self.script.plot
        least = self.flushed if power_cut else self.committed
        for number, (lane, head, promised, known) in enumerate(
            zip(self.model.lanes, heads, least, self.committed, strict=True)
        ):
            if not promised <= head <= known + 1:
                raise AssertionError(
                    f"lane {number}: {promised} rows of {known} were promised, {head} are there"
                )
            # A session that began past the head is lost with its first row.
            self._begun[number] = {row for row in self._begun[number] if row < head}
            starts = [n for n, row in enumerate(lane.rows) if row.is_reset]
            start = starts[-1] if starts else 0
            for row in range(len(lane.rows), head):
                if row in self._begun[number] or plot.begins(number, row):
                    start = row
                    lane.reset(plot.frame(number, row, start))
                    continue
                lane.running = True
                lane.step(
                    plot.action(number, row - 1),
                    plot.reward(number, row - 1),
                    plot.frame(number, row, start),
                    *plot.flags(number, row),
                    thought=plot.extra(number, row - 1),
                )
            lane.end_session()


# ---------------------------------------------------------------- the server and its client


class Actors:
    """Client of the server that forks actors; a context manager."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "mmreplay.testing.actor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._alive: dict[int, str] = {}

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._server.stdin is None or self._server.stdout is None:
            raise ValueError("the server has no pipes")
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def start(self, script: Script) -> int:
        """Fork an actor; returns its process id."""
        pid = int(self._ask({"act": dataclasses.asdict(script)})["pid"])
        self._alive[pid] = script.report
        return pid

    def kill(self, pid: int, *, however: bool = False) -> int:
        """End an actor by SIGKILL; returns its exit status as of `os.waitstatus_to_exitcode`."""
        os.kill(pid, signal.SIGKILL)
        return self.wait(pid, however=however)

    def wait(self, pid: int, *, however: bool = False) -> int:
        """Wait for an actor; its exit status: 0, -9 if killed, 1 after an error.

        Args:
            pid: of the actor.
            however: it may also fail, or be ended by another signal.

        Raises:
            AssertionError: it failed by itself; with its traceback.
        """
        answer = self._ask({"wait": pid})
        report = self._alive.pop(pid)
        if not however and answer["status"] not in (0, -signal.SIGKILL):
            text = Path(report + ".error").read_text(encoding="utf-8")
            raise AssertionError(f"an actor ended with status {answer['status']}:\n{text}")
        return int(answer["status"])

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what is still alive, and end the server."""
        for pid in sorted(self._alive):
            os.kill(pid, signal.SIGKILL)
        if self._server.stdin is not None:
            self._server.stdin.close()
        self._server.wait()
        if self._server.stdout is not None:
            self._server.stdout.close()


def serve() -> None:
    """Fork an actor for each order on stdin, and answer on stdout."""
    for line in sys.stdin:
        order = json.loads(line)
        if "act" in order:
            script = Script(**order["act"])
            errors = Path(script.report + ".error")
            pid = os.fork()
            if not pid:
                _become(script, errors)
            answer: dict[str, Any] = {"pid": pid}
        else:
            _, status = os.waitpid(order["wait"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        print(json.dumps(answer), flush=True)  # noqa: T201 (the answer goes through the pipe)


def _cut_off(script: Script) -> None:
    if script.mount:
        luck = random.Random(script.session)
        mounts.write_back(Path(script.mount), luck)
        mounts.cut_off(Path(script.mount), luck)


def _become(script: Script, errors: Path) -> None:
    status = 0
    try:
        with contextlib.ExitStack() as stack:
            disk = stack.enter_context(faults.faulty_disk())
            if script.boot:
                stack.enter_context(mounts.booted(bytes.fromhex(script.boot)))
            if script.die_at:
                disk.die(faults.CALLS, at=script.die_at, first=lambda: _cut_off(script))
            perform(script)
            report = files.map_file(Path(script.report), 8 * _WORDS, writable=True)
            report.view("<u8")[_CALLS] = sum(disk.counts.values())
    except BaseException:  # noqa: BLE001 (whatever it is, the parent is told)
        errors.write_text(traceback.format_exc(), encoding="utf-8")
        status = 1
    os._exit(status)


if __name__ == "__main__":
    serve()
