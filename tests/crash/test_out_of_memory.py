"""A writer whose container has no memory left: the kernel kills it, and no committed row is lost.

Invariant: what was acknowledged before an out-of-memory kill is there, as after any death.
"""

import dataclasses
import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.script import IMAGE_AND_JOINTS, Script, with_session
from tests.support.processes import actor, aftermath, memory_group

pytestmark = [
    pytest.mark.deep(only=True),
    pytest.mark.skipif(bool(memory_group.unavailable()), reason=memory_group.unavailable()),
]
N_KILLS = by_effort(1, 2, 60)
LIMIT_BYTES = 200 << 20
FRAMES = {
    "raw": {"frame": [(64, 64), "uint8", "raw", 8]},
    "lz4": {"frame": [(6, 8), "uint8", "lz4", 3, 6]},
    "dict": IMAGE_AND_JOINTS,
}


def record_and_allocate(script, megabytes_at_once, n_rows):
    """Rows in one thread; in another, memory that is never given back."""
    kept = []

    def allocate():
        if n_rows:
            actor.Chronicle.follow(script).wait_for_rows(n_rows)
        while True:
            kept.append(bytes(range(256)) * 4096 * megabytes_at_once)

    threading.Thread(target=allocate, daemon=True).start()
    actor.perform(script)


def test_writer_killed_for_want_of_memory_loses_no_committed_row(tmp_path, measured):
    luck = random.Random(None if THOROUGH else 2)
    kills = rows = 0
    with memory_group.MemoryGroup("mmreplay-test", LIMIT_BYTES) as group:
        for number in range(N_KILLS):
            if number % 10 == 0:
                here = tmp_path / str(number)
                here.mkdir()
                script = Script(
                    path=str(here / "s.zarr"),
                    report=str(here / "report"),
                    seed=luck.randrange(2**32),
                    frame=FRAMES[luck.choice(sorted(FRAMES))],
                    action_chunk=16,
                    envs=luck.choice([None, 2]),
                    capacity=luck.choice([None, 150]),
                    flush_s=luck.choice([0, 0.005]),
                    rows=10**6,
                )
                chronicle = actor.Chronicle(script)
            known = chronicle.committed
            chronicle.acknowledge(known)
            order = dataclasses.asdict(with_session(script, number))
            how = [str(luck.choice([1, 4, 16])), str(luck.choice([0, 1, 300]))]
            command = [sys.executable, __file__, str(group.path), *how, json.dumps(order)]
            done = subprocess.run(command, check=False, capture_output=True)
            assert done.returncode == -9, done.stderr[-2000:]
            aftermath.check_found(chronicle)  # unless it was killed before there was a store
            kills += 1
            rows += sum(chronicle.committed) - sum(known)
        assert group.kills() >= kills  # and nobody else has sent the signal
    aftermath.finish(chronicle, 20)
    assert rows > 0
    result = measured("out_of_memory", limit_bytes=LIMIT_BYTES)
    result.add("kills by the kernel", kills, "", at_least=50)
    result.add("rows written", rows, "")
    result.add("committed rows lost", 0, "", at_most=0, note="one would have ended the test")


if __name__ == "__main__":
    where, size, n_rows, text = sys.argv[1:]
    memory_group.join(Path(where))
    record_and_allocate(Script(**json.loads(text)), int(size), int(n_rows))
