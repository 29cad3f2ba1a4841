"""A writer in one process, readers in others: no batch is torn, stale within, or of other rows.

Invariant: whatever a reader gets while rows come, shards are sealed and files are evicted is what
the rows with those ids hold.
"""

import contextlib
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.chunk_files import map_tail
from mmreplay.storage.state_page import COMMITTED, State
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.script import IMAGE_AND_JOINTS, with_session
from tests.support.processes import actor, aftermath, onlooker
from tests.support.processes.threads import BackgroundThreads

pytestmark = pytest.mark.deep
N_KILLS = by_effort(2, 5, 200)
N_READ = by_effort(4, 20, 2_000)
STARTED = by_effort(["fork"], ["forkserver"], ["spawn", "forkserver", "fork"])


@contextlib.contextmanager
def written(script):
    """A store that another process writes all the while."""
    chronicle = actor.Chronicle(script)
    with actor.Actors() as actors:
        pid = actors.start(script)
        chronicle.wait_for_rows()
        yield Path(script.path)
        assert actors.kill(pid) == -9


def sampling(data, plot):
    """A task of a thread of this process: to sample all the while."""

    def sample(going):
        while going():
            plot.check_batch(data.sample(8), onlooker.STACK)

    return sample


def disturb(script, luck, counts):
    """What others may do to a store whose writer is gone: copy it, close it, open and write it."""
    what = luck.choice(["nothing", "snapshot", "repair", "write"])
    if what == "snapshot":
        copy = script.path + ".copy"
        mmreplay.snapshot(script.path, copy)
        with mmreplay.load(copy, stack=onlooker.STACK) as data:
            for _ in range(3):
                script.plot.check_batch(data.sample(32), onlooker.STACK)
        shutil.rmtree(copy)
    elif what == "repair":
        mmreplay.repair(script.path)  # closes it, by the rules of recovery
        # Where the writer died in closing it, what was private is left to the next one.
        assert mmreplay.verify(script.path).state == "closed"
    elif what == "write":
        actor.perform(with_session(script, luck.randrange(2**32), sessions=1, rows=50))
    counts[what] += 1


FOUR_READERS = {
    "lz4, many environments": {"frame": [(6, 8), "uint8", "lz4", 2, 8]},
    "lz4": {"frame": [(6, 8), "uint8", "lz4", 2, 8]},
    "raw, mapped side by side": {"frame": [(64, 64), "uint8", "raw", 4]},
    "zstd, many environments": {"frame": [(6, 8), "uint8", "zstd", 2, 4]},
    "dict": IMAGE_AND_JOINTS,
}


@pytest.mark.parametrize("name", list(FOUR_READERS)[: by_effort(1, 2, None)])
def test_four_readers_follow_whatever_happens_to_the_writer(tmp_path, measured, name):
    luck = random.Random(name if not THOROUGH else None)
    script = actor.Script(
        path=str(tmp_path / "s.zarr"),
        report=str(tmp_path / "report"),
        seed=luck.randrange(2**32),
        frame=FOUR_READERS[name],
        action_chunk=16,
        envs=3 if "many" in name else None,
        capacity=150,
        flush_s=0.002,
        rows=1000,
        pause_s=0.0005,
    )
    chronicle = actor.Chronicle(script)
    counts = dict.fromkeys(["kill", "nothing", "snapshot", "repair", "write"], 0)
    with actor.Actors() as actors, onlooker.Onlookers(tmp_path, script) as readers:
        actors.wait(
            actors.start(with_session(script, 1, sessions=3, rows=by_effort(200, 200, 600)))
        )
        for method in STARTED:
            readers.start(method)
        chronicle.acknowledge(chronicle.committed)
        pid = actors.start(with_session(script, 2))
        with mmreplay.load(script.path, stack=onlooker.STACK) as data:
            data.sample(8)
            # A worker that is forked while threads of its parent are sampling from the same store.
            sample = sampling(data, script.plot)
            with BackgroundThreads(sample, sample):
                readers.start("fork", data)
                while readers.alive:
                    if counts["kill"] >= N_KILLS:
                        readers.end()
                    chronicle.wait_for_rows(luck.randrange(luck.choice([2, 100, 400])))
                    assert actors.kill(pid) == -9
                    counts["kill"] += 1
                    disturb(script, luck, counts)
                    chronicle.acknowledge(chronicle.committed)
                    pid = actors.start(with_session(script, luck.randrange(2**32)))
        seen = readers.join()
        assert actors.kill(pid) == -9
    checks.check_verified(Path(script.path))
    with mmreplay.open(script.path) as store:
        rows = store.lanes[0].rows
    sums = {what: sum(one[what] for one in seen) for what in seen[0]}
    kind = name.split(",")[0] + "_many" * ("many" in name)
    result = measured(f"concurrency_{kind}", readers=len(seen))
    result.add("violations", 0, "", at_most=0, note="the first one ends the run")
    result.add("rows written", rows, "")
    result.add("batches read", sums["batches"], "", at_least=1000)
    result.add("rows checked", sums["rows"], "")
    result.add("ids gone between two calls", sums["gone"], "")
    result.add("evictions seen", sums["evictions"], "", at_least=100)
    result.add("seals seen", sums["seals"], "", at_least=0 if "raw" in name else 100)
    result.add("sessions followed", sums["sessions"], "", at_least=100)
    result.add("acknowledged rows were missing for", max(one["late_ms"] for one in seen), "ms")
    for what, count in counts.items():
        words = {"kill": "writer kills survived", "nothing": "left alone"}.get(what, f"{what}s")
        result.add(words, count, "", at_least=10 if what == "kill" else None)
    assert all(one["batches"] > 10 for one in seen), seen
    assert sums["evictions"] + sums["sessions"] > 0


@pytest.mark.parametrize("envs", by_effort([3], [None, 3], [None, 3]))
@pytest.mark.parametrize("name", by_effort(["raw"], ["raw", "dict"], ["raw", "lz4", "dict"]))
def test_readers_at_full_speed_follow_a_writer_that_is_killed_without_rest(
    script_of, tmp_path, measured, name, envs
):
    luck = random.Random(name if not THOROUGH else None)
    script = script_of(name, capacity=120, flush_s=0.002, rows=40, envs=envs)
    chronicle, kills, phases = actor.Chronicle(script), 0, set()
    with actor.Actors() as actors, onlooker.Onlookers(tmp_path, script) as readers:
        actors.wait(actors.start(with_session(script, 1, sessions=1)))
        for _ in range(by_effort(2, 3, 3)):
            readers.start("fork")
        while readers.alive:
            if kills >= max(N_KILLS, by_effort(3, 5, 5)):
                readers.end()
            chronicle.acknowledge(chronicle.committed)
            pid = actors.start(with_session(script, luck.randrange(2**32)))
            if luck.random() < 0.5:  # else while it recovers or opens
                chronicle.wait_for_rows(luck.randrange(60))  # in the last ones it closes
            assert actors.kill(pid) == -9
            phases.add(chronicle.phase)
            kills += 1
        seen = readers.join()
    assert aftermath.check_found(chronicle)
    sums = {what: sum(one[what] for one in seen) for what in seen[0]}
    kind = name if envs is None else f"{name}_vector"
    result = measured(f"concurrency_killed_{kind}", readers=len(seen), capacity=120)
    result.add("violations", 0, "", at_most=0, note="the first one ends the run")
    result.add("writer kills", kills, "", at_least=200)
    result.add("rows written", sum(chronicle.committed), "")
    result.add("batches read", sums["batches"], "", at_least=1000)
    result.add("rows checked", sums["rows"], "")
    result.add("sessions followed", sums["sessions"], "", at_least=30)
    result.add("acknowledged rows were missing for", max(one["late_ms"] for one in seen), "ms")
    if THOROUGH:
        assert len(phases) > 2


@pytest.fixture
def large_frames(script_of):
    """Of a writer of frames so large that it takes a while to store, or to copy, one of them."""
    return script_of("large", rows=10**9, capacity=40)


def test_rows_sealed_while_they_are_copied_from_the_tail_are_read_from_their_shard(large_frames):
    n_read = 0
    with written(large_frames) as path, mmreplay.open(path) as store:
        while n_read < N_READ:
            newest = store.live.rows(0)
            if newest < 2:
                continue
            # Each so often that the writer laps whoever copies them: its tail has two rows.
            rows = np.array([newest - 2, newest - 1]).repeat(64)
            some = slice(None, None, 21)
            found = store.live.read_rows(0, "frames", rows)[some]
            places = large_frames.plot.frames["frame"].read(found)
            assert (places[:, 1] == rows[some]).all(), (places[:, 1], rows[some])
            n_read += 1


def test_a_frame_is_whole_as_soon_as_the_commit_word_counts_it(large_frames):
    n_read = 0
    with written(large_frames) as path:
        tail = map_tail(path, LaneReader(path).rows.specs["frames"])
        words = State(path / ".live" / "state", writable=False).words
        while n_read < N_READ:
            known = words[COMMITTED]
            while (head := words[COMMITTED]) == known:
                pass
            frame = tail[(head - 1) % len(tail)].copy()
            if words[COMMITTED] <= head:  # and so nobody has begun to write over it
                place = large_frames.plot.frames["frame"].read(frame)
                assert place[1] == head - 1
                n_read += 1
