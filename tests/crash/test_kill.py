"""A writer process that dies at any instant loses nothing that it had committed.

Invariant: what a reader and the next writer find is every acknowledged row, at most the one in
flight, and nothing else; writing goes on from there.
"""

import random
import shutil

import pytest

from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle.script import with_session
from tests.support.processes import actor, aftermath

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)

FRAMES = {
    "raw": [(6, 8), "uint8", "raw", 5],
    "raw-pages": [(64, 64), "uint8", "raw", 8],
    "lz4": [(6, 8), "uint8", "lz4", 3, 6],
    "lz4-of-one": [(6, 8), "uint8", "lz4", 1, 1],
    "zstd": [(2, 4, 6), "uint8", "zstd", 4, 64],
    "default": [(40, 40), "uint8"],
    "dict": {
        "image": [(5, 5, 3), "uint8", "lz4", 2, 8],
        "joints": [(7,), "float32", "raw", 16],
        "depth": [(3, 4), "uint16", "zstd", 4, 8],
    },
}


@pytest.fixture(scope="module")
def actors():
    with actor.Actors() as running:
        yield running


def frames_of(given):
    return given if isinstance(given, dict) else {"frame": given}


def random_script(folder, number, random):
    name = random.choice(sorted(FRAMES))
    envs = random.choice([None, None, 1, 2, 3])
    return actor.Script(
        path=str(folder / f"{number}.zarr"),
        report=str(folder / f"{number}.report"),
        seed=random.randrange(2**32),
        frame=frames_of(FRAMES[name]),
        action_chunk=random.choice([3, 16, 100, 4096, None]),
        envs=envs,
        capacity=random.choice([None, envs or 1, 40, 150]),
        flush_s=random.choice([0, 0.002]),
        rows=random.choice([20, 300]),
        pause_s=random.choice([0, 0.001]),
    )


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(by_effort(2, 3, 20)))
def test_writers_killed_at_random_instants_leave_every_acknowledged_row(actors, tmp_path, seed):
    luck = random.Random(seed if not THOROUGH else None)
    script = random_script(tmp_path, seed, luck)
    chronicle = actor.Chronicle(script)
    recoveries, phases = [], set()
    for session in range(10 if THOROUGH else 6):
        chronicle.acknowledge(chronicle.committed)
        pid = actors.start(with_session(script, luck.randrange(2**32)))
        if luck.random() < 0.7:  # otherwise it may die while it makes or opens the store
            chronicle.wait_for_rows(luck.randrange(luck.choice([2, 100])))
        assert actors.kill(pid) == -9
        phases.add(chronicle.phase)
        if aftermath.check_found(chronicle) and session % 3 == 2:
            close = luck.random() < 0.5
            recoveries.append(aftermath.go_on(chronicle, luck.randrange(40), close=close))
            aftermath.check_found(chronicle)
    recoveries.append(aftermath.go_on(chronicle, 30, close=True))
    aftermath.check_found(chronicle)
    aftermath.check_closed(chronicle)
    if THOROUGH:
        longest_ms = max(recoveries) * 1000
        print(
            f"\n{script.frame} envs={script.envs} capacity={script.capacity}: rows "
            f"{sum(len(lane.rows) for lane in chronicle.model.lanes)}, killed in phases {sorted(phases)}, recovery <= {longest_ms:.0f} ms"
        )
        assert longest_ms < 300


# Two sessions: create, append, seal, flush, evict and close, then reopen and do it all again.
EVERY_CALL = {
    "raw": {"frame": FRAMES["raw"], "capacity": 20},
    "lz4": {"frame": FRAMES["lz4"], "capacity": None},
    "dict, many environments": {"frame": FRAMES["dict"], "capacity": 45, "envs": 2},
}


def two_sessions(folder, name, number):
    about = EVERY_CALL[name]
    return actor.Script(
        path=str(folder / f"{number}.zarr"),
        report=str(folder / f"{number}.report"),
        seed=5,
        frame=frames_of(about["frame"]),
        action_chunk=7,
        envs=about.get("envs"),
        capacity=about["capacity"],
        session=1,  # flushes, and closes both times
        rows=120,
        sessions=2,
    )


@pytest.mark.deep
@pytest.mark.parametrize("name", sorted(EVERY_CALL))
def test_death_before_any_call_that_changes_the_disk_loses_nothing(actors, tmp_path, name):
    luck = random.Random(name if not THOROUGH else None)
    script = two_sessions(tmp_path, name, 0)
    chronicle = actor.Chronicle(script)
    assert actors.wait(actors.start(script)) == 0
    aftermath.check_found(chronicle)
    n_calls = chronicle.calls
    assert n_calls > 200
    places = luck.sample(range(1, n_calls + 1), by_effort(2, 14, n_calls))
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
