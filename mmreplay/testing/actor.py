"""A writer process to be killed: ``python -m mmreplay.testing.actor`` forks one for each order.

Invariant: what an actor has acknowledged was committed before.

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from mmreplay import maps
from mmreplay.testing import faults, lines, mounts
from mmreplay.testing.player import CALLS, MAX_LANES, OPENING, PHASE, WORDS, Player
from mmreplay.testing.script import Script, append_rows, with_session

__all__ = ["OPENING", "Actors", "Chronicle", "Script", "append_rows", "perform", "with_session"]


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
            Path(script.report).write_bytes(bytes(8 * WORDS))
            Path(script.report + ".log").write_bytes(b"")
        self._report = maps.map_file(Path(script.report), 8 * WORDS).view("<u8")
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
            told = log.read_text(encoding="ascii").splitlines(keepends=True)
            self._read = sum(map(len, told))
            for line in told:
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
        return [int(n) for n in self._report[MAX_LANES : MAX_LANES + len(self.model.lanes)]]

    @property
    def calls(self) -> int:
        """Calls that changed the disk, of an actor that has ended by itself."""
        return int(self._report[CALLS])

    @property
    def phase(self) -> int:
        """What the actor was doing."""
        return int(self._report[PHASE])

    def acknowledge(self, rows: Sequence[int], *, durable: bool = False) -> None:
        """Somebody else than an actor has written up to here."""
        known = maps.map_file(Path(self.script.report), 8 * WORDS, writable=True).view("<u8")
        known[: len(rows)] = rows
        if durable:
            known[MAX_LANES : MAX_LANES + len(rows)] = rows
        known[PHASE] = OPENING

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


def perform(script: Script) -> None:
    """Do what an actor does, in this process."""
    with faults.faulty_disk() as disk:
        Player(script, disk).perform(lines.Watch(None, 0))


def _cut_off(script: Script) -> None:
    if script.mount:
        luck = random.Random(script.session)
        mounts.write_back(Path(script.mount), luck)
        mounts.cut_off(Path(script.mount), luck)


def _become(script: Script, errors: Path) -> None:
    status = 0
    try:
        file, line, at = script.die_at_line or ("", 0, 0)
        watch = lines.Watch((file, line) if file else None, at)
        watching = lines.watched(watch) if file or script.count else contextlib.nullcontext()
        with contextlib.ExitStack() as stack:
            disk = stack.enter_context(faults.faulty_disk())
            if script.boot:
                stack.enter_context(mounts.booted(bytes.fromhex(script.boot)))
            if script.die_at:
                disk.die(faults.CALLS, at=script.die_at, first=lambda: _cut_off(script))
            player = Player(script, disk)
            with watching:
                player.perform(watch)
        if script.count:
            counts = [[*where, n] for where, n in sorted(watch.counts.items())]
            found = {"lines": counts, "calls": player.calls}
            Path(script.report + ".counts").write_text(json.dumps(found), encoding="ascii")
    except BaseException:  # noqa: BLE001 (whatever it is, the parent is told)
        errors.write_text(traceback.format_exc(), encoding="utf-8")
        status = 1
    os._exit(status)


if __name__ == "__main__":
    serve()
