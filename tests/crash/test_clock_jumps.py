"""A clock that jumps by years, back and forth, while a store is written, looked at and locked.

Invariant: what has to happen after some seconds goes by a clock that nobody sets; no age is negative
or greater than that of the system.
"""

import dataclasses
import json
import random
import subprocess
import sys
import time

import pytest

import mmreplay
from mmreplay.storage.state_page import CheckpointFile
from mmreplay.system import platform
from tests.support.disks import faults
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.script import IMAGE_AND_JOINTS, Script, append_rows
from tests.support.processes import actor, aftermath

N_PROCESSES = by_effort(1, 1, 12)
N_FLUSHES = by_effort(3, 10, 200)
FLUSH_S = 0.01
CENTURY_S = 3e9


def let_the_clock_jump(seed):
    """From here on each look at the clock of this process is up to a century off."""
    luck = random.Random(seed)
    now, text = time.time, time.strftime
    time.time = lambda: now() + luck.uniform(-1, 1) * CENTURY_S
    time.strftime = lambda form, *at: text(form, *(at or [time.gmtime(max(time.time(), 0))]))


def record(script):
    """Write and look until some flushes were seen, then die; what was seen goes to stdout."""
    let_the_clock_jump(script.session)
    chronicle = actor.Chronicle.follow(script)
    writer = script.open()
    lane = faults.lanes_of(writer)[0]
    chronicle.begin([lane.rows])
    seen = {"flushes": 0, "looks": 0, "oldest_s": 0.0, "rows": lane.rows}
    best, starts = None, [None]
    while seen["flushes"] < N_FLUSHES:
        append_rows(writer, script.plot, starts)
        checkpoint = CheckpointFile(lane.path / ".live" / "checkpoint", lane.files.metadata["uuid"])
        seen["flushes"] += best is not None and checkpoint.best != best
        best = checkpoint.best
        with mmreplay.open(script.path) as store:
            live = store.info()["live"]
        ages = live["last_row_s"], live["last_checkpoint_s"]
        assert all(0 <= age <= platform.uptime_s() for age in ages), live
        seen["oldest_s"] = max(seen["oldest_s"], *ages)
        seen["looks"] += 1
    began = time.monotonic()
    with pytest.raises(mmreplay.LockedError, match=r"this process.*since"):
        mmreplay.create(script.path, append=True)
    seen["locked_s"] = time.monotonic() - began
    seen["begun"], seen["rows"] = seen["rows"], lane.rows
    print(json.dumps(seen), flush=True)
    faults.kill(writer)


@pytest.mark.deep(only=True)
def test_a_clock_that_jumps_by_years_changes_no_flush_no_lock_and_no_row(tmp_path, measured):
    luck = random.Random(None if THOROUGH else 3)
    script = Script(
        path=str(tmp_path / "s.zarr"),
        report=str(tmp_path / "report"),
        seed=luck.randrange(2**32),
        frame=IMAGE_AND_JOINTS,
        action_chunk=7,
        capacity=100,
        flush_s=FLUSH_S,
    )
    chronicle, found = actor.Chronicle(script), []
    for session in range(N_PROCESSES):
        order = json.dumps(dataclasses.asdict(dataclasses.replace(script, session=session)))
        command = [sys.executable, __file__, order]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
        chronicle.begin([found[-1]["begun"]])
        chronicle.acknowledge([found[-1]["rows"]])
        assert aftermath.check_found(chronicle, most=10)
    aftermath.finish(chronicle, 10)
    assert min(one["locked_s"] for one in found) > 0.4
    flushes = sum(one["flushes"] for one in found)
    result = measured("clock_jumps", flush_s=FLUSH_S, processes=N_PROCESSES)
    result.add("flushes by the clock", flushes, "", at_least=500)
    result.add("looks at a live store", sum(one["looks"] for one in found), "", at_least=1000)
    result.add("greatest age told", max(one["oldest_s"] for one in found), "s")
    result.add("committed rows lost", 0, "", at_most=0, note="one would have ended the test")


if __name__ == "__main__":
    record(Script(**json.loads(sys.argv[1])))
