"""Threads of one process write, read, sample and look: each batch is of one moment.

Invariant: whatever a thread gets while another one steps, seals, evicts, closes or repairs is what
the rows with those ids hold.
"""

from pathlib import Path

import numpy as np
import pytest

import mmreplay
from tests.support.disks import faults
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.script import append_rows
from tests.support.processes import actor, onlooker
from tests.support.processes.threads import BackgroundThreads
from tests.support.writers import drain

pytestmark = pytest.mark.deep
DEEP_ONLY = pytest.mark.deep(only=True)
N_BATCHES = by_effort(10, 40, 2_000)
N_SESSIONS = by_effort(4, 10, 300)


@pytest.mark.parametrize(
    "kind",
    [
        "uniform",
        "prioritized, vector",
        pytest.param("prioritized", marks=DEEP_ONLY),
        pytest.param("uniform, vector", marks=DEEP_ONLY),
    ],
)
def test_four_threads_sample_in_every_way_while_one_steps(script_of, kind):
    envs = 3 if "vector" in kind else None
    script = script_of("lz4", envs=envs, capacity=90, flush_s=0.001)
    chronicle = actor.Chronicle(script)
    report = np.memmap(script.report, "<u8", "r+")
    factory = mmreplay.ReplayBuffer if "uniform" in kind else mmreplay.PrioritizedReplayBuffer
    buffer = script.open_buffer(factory, stack=onlooker.STACK)
    starts = [None] * (envs or 1)
    for _ in range(20):
        append_rows(buffer.writer, script.plot, starts, report)
    chronicle.begin([0])
    lookers = [onlooker.Onlooker(script, buffer, seed) for seed in range(4)]
    for one in lookers:
        one.begin([0])
    tasks = [lambda going, one=one: one.run(lambda: not going()) for one in lookers]
    with BackgroundThreads(*tasks) as others:
        while others.going() and not (
            all(one.counts["batches"] > N_BATCHES for one in lookers)
            and any(one.counts["evictions"] for one in lookers)
        ):
            append_rows(buffer.writer, script.plot, starts, report)
    buffer.close()


@pytest.mark.parametrize(
    ("name", "envs"),
    [
        ("lz4", 3),
        *(
            pytest.param(*one, marks=DEEP_ONLY)
            for one in (
                ("raw", None),
                ("dict", None),
                ("zstd, one row a shard", None),
            )
        ),
    ],
)
def test_readers_in_other_threads_follow_closing_and_reopening(script_of, name, envs):
    script = script_of(name, capacity=80, envs=envs)
    plot = script.plot
    seen, n_opened, n_verified = [], [0], [0]
    script.open().close()

    def look(store):
        ids = store.ids[-8:]
        if ids.size:
            try:
                plot.check_batch(store.transitions(ids, stack=3), stack=3)
            except LookupError:
                return []  # evicted since
        return ids.tolist()

    def follow(going):
        with mmreplay.open(script.path) as store:
            while going():
                store.refresh()
                seen.extend(look(store)[-1:])

    def open_afresh(going):
        while going():
            with mmreplay.open(script.path) as store:
                look(store)
                n_opened[0] += 1

    def verify(going):
        while going():
            checks.check_verified(Path(script.path))
            n_verified[0] += 1

    n_sessions = 0
    with BackgroundThreads(follow, open_afresh, verify) as others:
        while others.going() and (
            min(n_sessions, len(set(seen)), n_opened[0]) < N_SESSIONS or n_verified[0] < 2
        ):
            with mmreplay.create(script.path, append=True, flush_s=0.001) as writer:
                starts = [None] * (envs or 1)
                for _ in range(1 + n_sessions * 7 % 40):
                    append_rows(writer, plot, starts)
            n_sessions += 1
    assert seen == sorted(seen)
    checks.check_verified(Path(script.path))


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize(
    ("name", "envs"),
    [
        pytest.param("lz4", None, marks=DEEP_ONLY),
        ("lz4", 3),
        ("raw, mapped side by side", None),
    ],
)
def test_a_store_repaired_under_a_reader_is_never_mixed_with_the_old_one(
    script_of, name, envs, end
):
    script = script_of(name, envs=envs)
    plot = script.plot
    writer = script.open()
    starts = [None] * (envs or 1)
    for _ in range(200):
        append_rows(writer, plot, starts)
    if end == "close":
        writer.close()
    else:
        drain(writer)  # damage to a raw file is found once its checksum is there
        faults.kill(writer)
    with mmreplay.open(script.path) as store:
        before = store.ids
        plot.check_batch(store.transitions(before[-3:], stack=3), stack=3)
        files = sorted(Path(script.path, "frames").glob("c.*"), key=number_of)
        damaged = files[len(files) // 2]
        with damaged.open("r+b") as file:
            file.write(b"\xff" * 8)
        mmreplay.repair(script.path, skip_damaged=True)  # ids after the damage are others now
        with mmreplay.open(script.path) as fresh:
            after = fresh.ids
            expected = fresh.transitions(after, stack=3)
        assert len(after) < len(before)
        # The rows that it knows are read one by one: from maps of its own, or not any more.
        for id_ in before.tolist():
            try:
                found = store.transitions([id_], stack=3)
            except mmreplay.InvalidIdError:
                continue
            if id_ not in after or not same_transition(found, 0, expected, after, id_):
                plot.check_batch(found, stack=3)
        store.refresh()
        assert store.ids.tolist() == after.tolist()
        checks.check_batch(store.transitions(after, stack=3), expected)


def number_of(path):
    return int(path.name.split(".")[1])


def same_transition(found, place, batch, ids, id_):
    other = int(np.searchsorted(ids, id_))
    return all(
        np.array_equal(getattr(found, what)[place], getattr(batch, what)[other])
        for what in ("observation", "next_observation", "action", "reward", "non_terminal")
    )
