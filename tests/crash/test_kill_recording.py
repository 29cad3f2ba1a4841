"""A recording that is killed again and again loses no row, nor part of one, that it had committed.

Invariant: after each death all committed rows are there, with the frames that the emulator gave,
each step of a vector environment for all its environments or for none; the next recording goes on
from there at once.
"""

import dataclasses
import os
import random
import time
from pathlib import Path

import pytest

import mmreplay
from benchmarks.timing import Spread
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.disk import check_plain_zarr
from tests.support.processes import recorder

LEAST = by_effort(3, 10, 400)
GAME, POLE = "ALE/Breakout-v5", "CartPole-v1"
Field = mmreplay.Field


def orders(folder):
    """Two vector recordings that seal and evict all the time, and one as `mmreplay record` makes it.

    Many episodes end in that of poles, and a step of it leaves out what is reset in it. To start
    an emulator takes longer than all else.
    """
    poles = {"envs": 4, "autoreset": "NextStep", "capacity": 400}
    about = {
        "poles": {"env": POLE, "flush_s": 0.02, **poles},
        "games": {"env": GAME, "flush_s": 0.02, "envs": 2, "capacity": 200},
        "one game": {"env": GAME},
    }
    fields = {
        "games": Field((84, 84), "uint8", "lz4", chunk=4, shard=32),
        "poles": Field((4,), "float32", "raw", chunk=32),
    }
    made = {}
    for name, more in about.items():
        path = str(folder / f"{name}.zarr")
        made[name] = recorder.Order(path=path, ledger=str(folder / f"{name}.ledger"), **more)
        if name in fields:
            action = Field((), "int64", chunk=32)
            mmreplay.create(path, fields[name], action, lanes=more["envs"], flush_s=0).close()
    return made


class Recording:
    """One store, and the recorder that is at work on it."""

    def __init__(self, order, recorders, luck):
        self.order, self.recorders, self.luck = order, recorders, luck
        self.ledger = recorder.Ledger(Path(order.ledger), order.envs)
        self.kills = self.lost = self.compared = 0
        self.openings, self.readings, self.phases = [], [], set()
        self.begin()

    def begin(self):
        self.least = None
        self.phase = self.luck.choice([recorder.OPENING, recorder.RECORDING])
        self.pid = self.recorders.start(self.order)

    def is_due(self):
        """Whether to kill it now: some rows after it began to open the store, or to record."""
        failed = Path(self.order.ledger + ".error")
        assert not failed.exists(), failed.read_text("utf-8")  # it would be waited for in vain
        if self.least is None and self.ledger.phase >= self.phase:
            self.least = self.ledger.committed + self.luck.choice([0, 1, 20, 200])
        return self.least is not None and self.ledger.committed >= self.least

    def kill(self):
        assert self.recorders.kill(self.pid) == -9, (
            "the recording was over before it could be killed"
        )
        self.kills += 1
        self.phases.add(self.ledger.phase)
        if self.ledger.opened_s and self.kills > 1:
            self.openings.append(self.ledger.opened_s)
        if not os.path.exists(self.order.path):
            assert not self.ledger.committed
            return
        began = time.perf_counter()
        with mmreplay.open(self.order.path) as store:
            self.readings.append(time.perf_counter() - began)
            self.lost += self.ledger.lost(store)
            self.compared += self.ledger.check(store, newest=1_000)
        if self.kills % 10 == 0:
            checks.check_verified(Path(self.order.path))

    def finish(self):
        """One recording more, which comes to its end; then all rows are compared."""
        end = dataclasses.replace(self.order, steps=50)
        assert self.recorders.wait(self.recorders.start(end)) == 0
        with mmreplay.open(self.order.path) as store:
            assert self.ledger.lost(store) == 0
            self.compared += self.ledger.check(store)
            self.base = store.lanes[0].base
        checks.check_verified(Path(self.order.path))
        check_plain_zarr(Path(self.order.path))


def spread_ms(seconds):
    ordered = sorted(1e3 * one for one in seconds)
    return Spread(ordered[len(ordered) // 2], ordered[0], ordered[-1], len(ordered))


@pytest.mark.deep
def test_recording_killed_again_and_again_loses_no_committed_row(tmp_path, measured):
    luck = random.Random(None if THOROUGH else 1)
    with recorder.Recorders() as recorders:
        ordered = orders(tmp_path)
        recordings = [
            Recording(one, recorders, luck) for one in list(ordered.values())[: by_effort(1, 3, 3)]
        ]
        began = time.perf_counter()
        while sum(one.kills for one in recordings) < LEAST or not any(
            one.openings for one in recordings
        ):
            for one in recordings:
                if one.is_due():
                    one.kill()
                    one.begin()
        seconds = time.perf_counter() - began
        for one in recordings:
            assert recorders.kill(one.pid) == -9
            one.finish()
    kills = sum(one.kills for one in recordings)
    openings = [s for one in recordings for s in one.openings]
    result = measured("kill_recording", envs=[GAME, POLE], stores=len(recordings))
    result.add("kills", kills, "", at_least=LEAST)
    result.add("seconds", seconds, "s")
    result.add("committed rows", sum(one.ledger.committed for one in recordings), "")
    lost = sum(one.lost + one.ledger.dropped for one in recordings)
    result.add("committed rows lost", lost, "", at_most=0)
    result.add("transitions compared", sum(one.compared for one in recordings), "")
    result.add("to open for writing, killed before", spread_ms(openings), "ms", at_most=300)
    result.add("slowest to open for writing", 1e3 * max(openings), "ms", at_most=300)
    readings = [s for one in recordings for s in one.readings]
    result.add("to open for reading", spread_ms(readings), "ms")
    assert not lost
    if THOROUGH:
        assert all(one.base for one in recordings[:2])  # rows were evicted
        assert {recorder.OPENING, recorder.RECORDING} <= set().union(
            *(o.phases for o in recordings)
        )
