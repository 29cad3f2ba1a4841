"""A writer process that dies at any instant loses nothing that it had committed.

Invariant: what a reader and the next writer find is every acknowledged row, at most the one in
flight, and nothing else; writing goes on from there.
"""

import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay.testing import actor, checks, faults
from mmreplay.testing.effort import THOROUGH

pytestmark = pytest.mark.timeout(0 if THOROUGH else 240)

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
    lanes = random.choice([None, None, 1, 3])
    return actor.Script(
        path=str(folder / f"{number}.zarr"),
        report=str(folder / f"{number}.report"),
        seed=random.randrange(2**32),
        frame=frames_of(FRAMES[name]),
        action_chunk=random.choice([3, 16, 100, 4096, None]),
        lanes=lanes,
        capacity=random.choice([None, lanes or 1, 40, 150]),
        flush_s=random.choice([0, 0.002]),
        rows=random.choice([20, 300]),
        pause_s=random.choice([0, 0.001]),
    )


def check_found(chronicle, *, most=40):
    """What the killed process left, read by one who writes nothing; then the model knows it."""
    with mmreplay.open(chronicle.script.path) as store:
        chronicle.catch_up([view.rows for view in store.lanes])
        learn_bases(store, chronicle.model)
        checks.check_ids(store, chronicle.model)
        check_rows(store, chronicle.model)
        generator = np.random.default_rng(len(store))
        ids = chronicle.model.ids()
        if ids.size:
            chosen = np.concatenate((ids[:5], generator.choice(ids, most), ids[-5:]))
            settings = {"stack": 3, "n_step": 3}
            batch = store.transitions(chosen, **settings)
            checks.check_batch(batch, chronicle.model.batch(chosen, **settings))
    checks.check_verified(Path(chronicle.script.path))


def learn_bases(store, model):
    for view, lane in zip(store.lanes, model.lanes, strict=True):
        assert lane.base <= view.base <= lane.base_bounds()[1]
        lane.forget(view.base)


def check_rows(store, model):
    for view, lane in zip(store.lanes, model.lanes, strict=True):
        for path, column in checks.columns_of(view, model.schema).items():
            start = max(len(lane.rows) - 700, 0)
            checks.check_same(column[start:], lane.column(path)[start:], f"{view.path}: {path}")


def go_on(chronicle, n_rows, *, close):
    """Recover, append some rows, close or die; returns how long the recovery took."""
    script = chronicle.script
    began = time.perf_counter()
    writer = mmreplay.create(script.path, **script.create_arguments() | {"flush_s": 0}, append=True)
    took_s = time.perf_counter() - began
    lanes = writer.writers if hasattr(writer, "writers") else (writer,)
    chronicle.begin([lane.rows for lane in lanes])
    starts = [None] * len(lanes)
    report = np.array(chronicle.committed)
    for _ in range(n_rows):
        actor.append_rows(writer, script.plot, starts, report)
    if close:
        writer.close()
    else:
        faults.kill(writer)
    chronicle.acknowledge(report.tolist())
    return took_s


def sample_while_alive(script, seconds, random):
    """Read the store that the actor is writing; every batch must fit together."""
    until = time.monotonic() + seconds
    n_batches = 0
    store = None
    try:
        while time.monotonic() < until:
            if store is None or random.random() < 0.05:
                if not Path(script.path).exists():
                    continue
                store = mmreplay.open(script.path)
            ids = store.ids
            if not ids.size:
                continue
            chosen = np.array(random.choices(ids.tolist(), k=8))
            try:
                batch = store.transitions(chosen, stack=3)
            except LookupError:
                continue  # evicted since
            script.plot.check_batch(batch, stack=3)
            n_batches += 1
    finally:
        if store is not None:
            store.close()
    return n_batches


@pytest.mark.parametrize("seed", range(20 if THOROUGH else 3))
def test_writers_killed_at_random_instants_leave_every_acknowledged_row(actors, tmp_path, seed):
    luck = random.Random(seed if not THOROUGH else None)
    script = random_script(tmp_path, seed, luck)
    chronicle = actor.Chronicle(script)
    recoveries, n_batches, phases = [], 0, set()
    for session in range(10 if THOROUGH else 6):
        chronicle.acknowledge(chronicle.committed)
        pid = actors.start(actor.with_session(script, luck.randrange(2**32)))
        if luck.random() < 0.7:  # otherwise it may die while it makes or opens the store
            chronicle.wait_for_rows()
        n_batches += sample_while_alive(script, luck.random() ** 2 * 0.1, luck)
        assert actors.kill(pid) == -9
        phases.add(chronicle.phase)
        if not Path(script.path).exists():
            assert chronicle.committed == [0] * len(chronicle.model.lanes)
            continue
        check_found(chronicle)
        if session % 3 == 2:
            recoveries.append(go_on(chronicle, luck.randrange(40), close=luck.random() < 0.5))
            check_found(chronicle)
    recoveries.append(go_on(chronicle, 30, close=True))
    check_found(chronicle)
    with mmreplay.open(script.path) as store:
        checks.check_columns(store, chronicle.model)
    checks.check_plain_zarr(Path(script.path))
    if THOROUGH:
        longest_ms = max(recoveries) * 1000
        print(
            f"\n{script.frame} lanes={script.lanes} capacity={script.capacity}: rows "
            f"{sum(len(lane.rows) for lane in chronicle.model.lanes)}, {n_batches} batches while "
            f"alive, killed in phases {sorted(phases)}, recovery <= {longest_ms:.0f} ms"
        )
        assert longest_ms < 300


# Two sessions: create, append, seal, flush, evict and close, then reopen and do it all again.
EVERY_CALL = {
    "raw": {"frame": FRAMES["raw"], "capacity": 20},
    "lz4": {"frame": FRAMES["lz4"], "capacity": None},
    "dict, many lanes": {"frame": FRAMES["dict"], "capacity": 45, "lanes": 2},
}


def two_sessions(folder, name, number):
    about = EVERY_CALL[name]
    return actor.Script(
        path=str(folder / f"{number}.zarr"),
        report=str(folder / f"{number}.report"),
        seed=5,
        frame=frames_of(about["frame"]),
        action_chunk=7,
        lanes=about.get("lanes"),
        capacity=about["capacity"],
        session=1,  # flushes, and closes both times
        rows=120,
        sessions=2,
    )


@pytest.mark.parametrize("name", sorted(EVERY_CALL))
def test_death_before_any_call_that_changes_the_disk_loses_nothing(actors, tmp_path, name):
    luck = random.Random(name if not THOROUGH else None)
    script = two_sessions(tmp_path, name, 0)
    chronicle = actor.Chronicle(script)
    assert actors.wait(actors.start(script)) == 0
    check_found(chronicle)
    n_calls = chronicle.calls
    assert n_calls > 200
    places = range(1, n_calls + 1) if THOROUGH else luck.sample(range(1, n_calls + 1), 14)
    for place in places:
        script = two_sessions(tmp_path, name, place)
        chronicle = actor.Chronicle(script)
        # Background threads may save a call now and then: past the end is not dead.
        died = actors.wait(actors.start(actor.with_session(script, 1, die_at=place))) == -9
        assert died or place > 0.8 * n_calls
        if Path(script.path).exists():
            check_found(chronicle, most=10)
        recovery = luck.randrange(1, 45)  # now in the middle of recovery, or of making it again
        actors.wait(actors.start(actor.with_session(script, 2, die_at=recovery, rows=5)))
        if Path(script.path).exists():
            check_found(chronicle, most=10)
        assert actors.wait(actors.start(actor.with_session(script, 3, sessions=1, rows=20))) == 0
        check_found(chronicle, most=10)
        checks.check_plain_zarr(Path(script.path))
        shutil.rmtree(script.path)
