"""Threads of one process write, read, sample and look: each batch is of one moment.

Invariant: whatever a thread gets while another one steps, seals, evicts, closes or repairs is what
the rows with those ids hold.
"""

import contextlib
import os
import random
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay.episode_index import Index
from tests.support.disks import faults
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.script import append_rows
from tests.support.processes import actor, onlooker
from tests.support.processes.threads import BackgroundThreads
from tests.support.writers import drain

pytestmark = [pytest.mark.timeout(0 if THOROUGH else 900), pytest.mark.deep]
DEEP_ONLY = pytest.mark.deep(only=True)
SECONDS = by_effort(0.1, 3.0, 20.0)
PATIENCE_S = 300.0  # a machine may have other things to do


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
    began, rows = time.monotonic(), 0
    with BackgroundThreads(*tasks) as others:
        while others.going():
            append_rows(buffer.writer, script.plot, starts, report)
            rows += 1
            if rows % 20 == 0:
                time.sleep(0.001)
            seconds = time.monotonic() - began
            least = min(one.counts["batches"] for one in lookers)
            n_evictions = sum(one.counts["evictions"] for one in lookers)
            enough = least > 10 and rows > 200 and n_evictions
            if (seconds > SECONDS and enough) or seconds > PATIENCE_S:
                break
    buffer.close()
    assert min(one.counts["batches"] for one in lookers) > 10
    assert sum(one.counts["evictions"] for one in lookers) > 0


@pytest.mark.parametrize(
    ("name", "many"),
    [
        (name, many) if many == quick else pytest.param(name, many, marks=DEEP_ONLY)
        for name, quick in {
            "dict": "envs",
            "lz4": "envs",
            "raw": None,
            "raw, mapped side by side": "envs",
            "zstd, one row a shard": None,
        }.items()
        for many in (None, "envs")
    ],
)
def test_sampling_while_another_thread_appends_and_evicts(script_of, name, many):
    script = script_of(name, capacity=60, **({} if many is None else {many: 3}))
    plot = script.plot
    counts = {"rows": 0, "batches": 0, "again": 0, "transitions": 0}
    buffer = script.open_buffer(mmreplay.ReplayBuffer, flush_s=0.001, stack=3)

    def write(going):
        starts = [None] * (3 if many else 1)
        while going():
            append_rows(buffer.writer, plot, starts)
            counts["rows"] += 1
            if counts["rows"] % 50 == 0:
                time.sleep(0.0005)

    def sample(going):
        out = None
        while going():
            if not len(buffer):
                continue
            batch = buffer.sample(16)
            plot.check_batch(batch, stack=3)
            out = buffer.sample(16, out=out)
            plot.check_batch(out, stack=3)
            counts["batches"] += 2

    def look_up(going):
        luck = random.Random(1)
        while going():
            with mmreplay.open(script.path) as store:
                for _ in range(20):
                    ids = store.ids
                    if not ids.size:
                        continue
                    some = np.array(luck.choices(ids.tolist(), k=8))
                    try:
                        plot.check_batch(store.transitions(some, stack=3), stack=3)
                        counts["transitions"] += 1
                    except LookupError:
                        counts["again"] += 1  # evicted since

    least = {"rows": 150, "batches": 20, "transitions": 10}
    began = time.monotonic()
    with BackgroundThreads(write, sample, look_up) as others:
        while others.going():
            time.sleep(0.01)
            seconds = time.monotonic() - began
            enough = all(counts[what] >= n for what, n in least.items())
            if (enough and seconds > SECONDS / 3) or seconds > PATIENCE_S:
                break
    buffer.close()
    assert all(counts[what] >= n for what, n in least.items()), counts


@pytest.mark.parametrize(
    ("name", "envs"),
    [
        ("lz4", 3),
        *(
            pytest.param(*one, marks=DEEP_ONLY)
            for one in (
                ("raw", None),
                ("lz4", None),
                ("raw", 3),
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

    began = time.monotonic()
    n_sessions = 0
    with BackgroundThreads(follow, open_afresh, verify) as others:
        while others.going():
            seconds = time.monotonic() - began
            enough = n_sessions > 4 and len(set(seen)) > 4 and n_opened[0] > 4 and n_verified[0] > 1
            if (enough and seconds > SECONDS / 2) or seconds > PATIENCE_S:
                break
            with mmreplay.create(script.path, append=True, flush_s=0.001) as writer:
                starts = [None] * (envs or 1)
                for _ in range(1 + n_sessions * 7 % 40):
                    append_rows(writer, plot, starts)
            n_sessions += 1
    assert min(n_sessions, len(set(seen)), n_opened[0]) > 4
    assert n_verified[0] > 1
    assert seen == sorted(seen)
    checks.check_verified(Path(script.path))


def test_newest_row_reads_as_it_was_written_however_fast_others_follow(script_of):
    script = script_of("raw")
    plot, seen = script.plot, set()
    writer = script.open()
    append_rows(writer, plot, [None])

    def write(going):
        starts = [None]
        while going():
            append_rows(writer, plot, starts)

    def read(going):
        with mmreplay.open(script.path) as store:
            while going():
                rows = len(store.rewards)
                rewards, actions = store.rewards[:rows], store.actions[:rows]
                for row in range(max(rows - 40, 0), rows):
                    assert (actions[row], rewards[row]) == (
                        plot.action(0, row),
                        plot.reward(0, row),
                    )
                seen.add(rows)

    with BackgroundThreads(write, read) as others:
        until = time.monotonic() + SECONDS / 3
        while others.going() and (time.monotonic() < until or len(seen) <= 3):
            time.sleep(0.01)
    writer.close()


def test_a_child_forked_while_a_thread_takes_new_rows_has_a_whole_index(script_of, monkeypatch):
    script = script_of("lz4", capacity=90)
    buffer = script.open_buffer(mmreplay.ReplayBuffer, stack=3)
    starts = [None]
    for _ in range(40):
        append_rows(buffer.writer, script.plot, starts)
    buffer.sample(8)
    for _ in range(60):
        append_rows(buffer.writer, script.plot, starts)
    halfway, go_on = threading.Event(), threading.Event()
    extend = Index.extend

    def hold(self, *arguments):
        halfway.set()
        go_on.wait()
        extend(self, *arguments)

    monkeypatch.setattr(Index, "extend", hold)
    thread = threading.Thread(target=buffer.sample, args=(8,))
    thread.start()
    halfway.wait()  # the columns have the new rows, the index has not
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        status = 1
        with contextlib.suppress(BaseException):
            monkeypatch.undo()
            script.plot.check_batch(buffer.sample(64), stack=3)
            status = 0 if len(buffer) == 90 else 2
        os._exit(status)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    buffer.close()


def test_an_epoch_is_of_one_moment_while_another_thread_takes_new_rows(script_of, monkeypatch):
    script = script_of("lz4", capacity=50)
    buffer = script.open_buffer(mmreplay.ReplayBuffer, stack=3)
    starts = [None]
    for _ in range(100):
        append_rows(buffer.writer, script.plot, starts)
    epoch = buffer.batches(16, shuffle=False)
    for _ in range(30):
        append_rows(buffer.writer, script.plot, starts)
    recount, halfway, go_on = Index._settle, threading.Event(), threading.Event()

    def hold(self):
        halfway.set()
        go_on.wait(0.2)  # the epoch may have to wait for the lock of whoever counts
        recount(self)

    monkeypatch.setattr(Index, "_settle", hold)
    thread = threading.Thread(target=lambda: len(buffer))
    thread.start()
    halfway.wait()  # some of what tells ids is of the one moment, the rest of another
    seen = [int(id_) for batch in epoch for id_ in batch.id]
    go_on.set()
    thread.join()
    assert seen == buffer.ids.tolist()
    assert len(seen) == 50
    buffer.close()


@pytest.mark.parametrize("end", ["close", "kill"])
@pytest.mark.parametrize(
    ("name", "envs"),
    [
        pytest.param("lz4", None, marks=DEEP_ONLY),
        ("lz4", 3),
        ("raw, mapped side by side", None),
        *(pytest.param("raw", envs, marks=DEEP_ONLY) for envs in (None, 3)),
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
        until = time.monotonic() + PATIENCE_S
        while store.ids.tolist() != after.tolist():
            assert time.monotonic() < until, "the repaired store is never seen"
            time.sleep(0.05)
        checks.check_batch(store.transitions(after, stack=3), expected)


def number_of(path):
    return int(path.name.split(".")[1])


def same_transition(found, place, batch, ids, id_):
    other = int(np.searchsorted(ids, id_))
    return all(
        np.array_equal(getattr(found, what)[place], getattr(batch, what)[other])
        for what in ("observation", "next_observation", "action", "reward", "non_terminal")
    )
