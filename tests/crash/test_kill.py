"""A writer process that dies before any call to the disk loses nothing that it had committed.

Invariant: what a reader and the next writer find is every acknowledged row, at most the one in
flight, and nothing else; writing goes on from there.
"""

import random
import shutil

import pytest

from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.script import IMAGE_AND_JOINTS, with_session
from tests.support.processes import actor, aftermath

# Two sessions: create, append, seal, flush, evict and close, then reopen and do it all again.
EVERY_CALL = {
    "raw": {"frame": {"frame": [(6, 8), "uint8", "raw", 5]}, "capacity": 20},
    "lz4": {"frame": {"frame": [(6, 8), "uint8", "lz4", 3, 6]}},
    "dict, many environments": {
        "frame": {**IMAGE_AND_JOINTS, "depth": [(3, 4), "uint16", "zstd", 4, 8]},
        "capacity": 45,
        "envs": 2,
    },
}


def two_sessions(folder, name, number):
    return actor.Script(
        path=str(folder / f"{number}.zarr"),
        report=str(folder / f"{number}.report"),
        seed=5,
        action_chunk=7,
        session=1,  # flushes, and closes both times
        rows=120,
        sessions=2,
        **EVERY_CALL[name],
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(EVERY_CALL)[: by_effort(1, None, None)])
def test_death_before_any_call_that_changes_the_disk_loses_nothing(actors, tmp_path, name):
    luck = random.Random(name if not THOROUGH else None)
    script = two_sessions(tmp_path, name, 0)
    chronicle = actor.Chronicle(script)
    assert actors.wait(actors.start(script)) == 0
    aftermath.check_found(chronicle)
    n_calls = chronicle.calls
    assert n_calls > 200
    places = luck.sample(range(1, n_calls + 1), by_effort(1, 3, n_calls))
    for place in places:
        script = two_sessions(tmp_path, name, place)
        chronicle = actor.Chronicle(script)
        # Background threads may save a call now and then: past the end is not dead.
        died = actors.wait(actors.start(with_session(script, 1, die_at=place))) == -9
        assert died or place > 0.8 * n_calls
        aftermath.check_found(chronicle, most=10)
        recovery = luck.randrange(1, 45)  # now in the middle of recovery, or of making it again
        actors.wait(actors.start(with_session(script, 2, die_at=recovery, rows=5)))
        aftermath.check_found(chronicle, most=10)
        assert actors.wait(actors.start(with_session(script, 3, sessions=1, rows=20))) == 0
        aftermath.check_found(chronicle, most=10)
        aftermath.check_closed(chronicle)
        shutil.rmtree(script.path)
