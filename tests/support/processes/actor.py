"""A writer process to be killed: ``python -m tests.support.processes.actor`` forks one for each order.

Invariant: what an actor has acknowledged was committed before.

`Actors` is the client of the server; `Chronicle` turns what the actors did into a `Model`.
"""

import contextlib
import dataclasses
import json
import os
import random
import time
from pathlib import Path

from mmreplay.system import memory_maps
from tests.support.disks import faults, mounts
from tests.support.oracle.model import FLAGS
from tests.support.oracle.script import Script, Turn
from tests.support.processes import users
from tests.support.processes.forks import Forks, serve
from tests.support.processes.player import CALLS, MAX_LANES, OPENING, PHASE, WORDS, Player


class Chronicle:
    """What the actors of one store have done, as far as they told."""

    def __init__(self, script, *, new=True):
        self.script = script
        self.model = script.model()
        if new:
            Path(script.report).write_bytes(bytes(8 * WORDS))
            Path(script.report + ".log").write_bytes(b"")
        self._report = memory_maps.map_file(Path(script.report), 8 * WORDS).view("<u8")
        self._begun = [set() for _ in self.model.lanes]
        self._read = 0
        self._starts = [None] * (script.envs or 1)

    @classmethod
    def follow(cls, script):
        """For one who only looks on, while another one asks the actors to act."""
        return cls(script, new=False)

    def begun(self):
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
    def committed(self):
        return [int(n) for n in self._report[: len(self.model.lanes)]]

    @property
    def flushed(self):
        """Rows acknowledged to be durable, by lane."""
        return [int(n) for n in self._report[MAX_LANES : MAX_LANES + len(self.model.lanes)]]

    @property
    def calls(self):
        """Calls that changed the disk, of an actor that has ended by itself."""
        return int(self._report[CALLS])

    @property
    def phase(self):
        """What the actor was doing."""
        return int(self._report[PHASE])

    def acknowledge(self, rows, *, durable=False):
        """Somebody else than an actor has written up to here."""
        known = memory_maps.map_file(Path(self.script.report), 8 * WORDS, writable=True).view("<u8")
        known[: len(rows)] = rows
        if durable:
            known[MAX_LANES : MAX_LANES + len(rows)] = rows
        known[PHASE] = OPENING

    def wait_for_rows(self, n_more=0, patience_s=300.0):
        """Until an actor writes rows, and so many more, or has been given enough time."""
        least, until = sum(self.committed) + n_more, time.monotonic() + patience_s
        while self.phase == OPENING or sum(self.committed) < least:
            if time.monotonic() > until:
                return
            time.sleep(0.0005)

    def begin(self, heads):
        """A session began here, so all episodes begin with the next rows."""
        for rows, head in zip(self._begun, heads, strict=True):
            rows.add(head)

    def catch_up(self, heads, *, power_cut=False):
        """Let the model go on to these heads."""
        for line in Path(self.script.report + ".log").read_text(encoding="ascii").splitlines():
            self.begin(json.loads(line))
        Path(self.script.report + ".log").write_bytes(b"")
        plot, (lane,), (head,), (known,) = self.script.plot, self.model.lanes, heads, self.committed
        promised = self.flushed[0] if power_cut or self.script.syncs_fail else known
        if not promised <= head <= known + 1:
            raise AssertionError(f"{promised} rows of {known} were promised, {head} are there")
        # A session that began past the head is lost with its first row.
        begun = self._begun[0] = {row for row in self._begun[0] if row < head}
        for row in range(len(lane.rows), head):
            if row in begun:
                lane.end_session()
                self._starts = [None] * lane.n
            turn = Turn.at(plot, row, self._starts)
            lane.reset({env: plot.frame(env, row, row) for env in turn.begins})
            lane.step(
                {
                    env: (
                        plot.action(env, row),
                        plot.reward(env, row),
                        plot.frame(env, row + 1, start),
                        dict(zip(FLAGS, plot.flags(env, row), strict=True)),
                        {"thought": plot.extra(env, row)},
                    )
                    for env, start in enumerate(turn.starts)
                    if start is not None
                }
            )
            self._starts = turn.goes_on


class Actors(Forks):
    """Client of the server that forks actors; a context manager."""

    def __init__(self):
        super().__init__("tests.support.processes.actor")

    def start(self, script):
        """Fork an actor; returns its process id."""
        return self.fork(dataclasses.asdict(script), script.report + ".error")


def perform(script):
    """Do what an actor does, in this process."""
    with faults.faulty_disk() as disk:
        Player(script, disk).perform()


def _cut_off(script):
    if script.mount:
        luck = random.Random(script.session)
        mounts.write_back(Path(script.mount), luck)
        mounts.cut_off(Path(script.mount), luck)


def _act(order):
    script = Script(**order)
    if script.user is not None:
        os.umask(0o002)  # a group of users who write the same store
        users.become(*script.user)
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(faults.faulty_disk())
        if script.boot:
            stack.enter_context(mounts.booted(bytes.fromhex(script.boot)))
        if script.die_at:
            disk.die(faults.CALLS, at=script.die_at, first=lambda: _cut_off(script))
        player = Player(script, disk)
        player.perform()
    if script.count:
        Path(script.report + ".counts").write_text(json.dumps(player.calls), encoding="ascii")


if __name__ == "__main__":
    serve(_act)
