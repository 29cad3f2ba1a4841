"""One writes, others read at the same time: no batch is ever torn, stale within, or of other rows.

Invariant: whatever a reader gets while rows come, shards are sealed and files are evicted is what
the rows with those ids hold.
"""

import contextlib
import dataclasses
import json
import multiprocessing
import operator
import os
import platform
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from mmreplay.episodes import Index
from mmreplay.reader import LaneReader
from mmreplay.shards import map_tail
from mmreplay.state import COMMITTED, State
from mmreplay.testing import actor, checks, faults, onlooker
from mmreplay.testing.effort import THOROUGH
from mmreplay.testing.frames import Described, Plot

pytestmark = pytest.mark.timeout(0 if THOROUGH else 240)
SECONDS = 20.0 if THOROUGH else 1.5
LONG_S = 60.0 if THOROUGH else 3.0

FRAMES = {
    "raw": {"frame": [(6, 8), "uint8", "raw", 5]},
    "raw, mapped side by side": {"frame": [(64, 64), "uint8", "raw", 4]},
    "lz4": {"frame": [(6, 8), "uint8", "lz4", 2, 4]},
    "zstd, one row a shard": {"frame": [(6, 8), "uint8", "zstd", 1, 1]},
    "dict": {
        "image": [(5, 5, 3), "uint8", "lz4", 2, 8],
        "joints": [(7,), "float32", "raw", 16],
    },
}


def script_of(tmp_path, name, **more):
    return actor.Script(
        path=str(tmp_path / "s.zarr"),
        report=str(tmp_path / "report"),
        seed=4,
        frame=FRAMES[name],
        action_chunk=6,
        **more,
    )


class Onlookers:
    """Reader processes of one store, each started in its way."""

    def __init__(self, folder, script, seconds):
        self.folder, self.script, self.seconds = folder, script, seconds
        self._running = []

    def start(self, method, data=None):
        number = len(self._running)
        result = self.folder / f"onlooker-{number}"
        context = multiprocessing.get_context(method)
        arguments = (self.script, self.seconds, number, str(result), data)
        process = context.Process(target=onlooker.look_on, args=arguments)
        with warnings.catch_warnings():  # newer Pythons warn of forks beside threads: that is it
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        self._running.append((process, result))

    @property
    def alive(self):
        return any(process.is_alive() for process, _ in self._running)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process, _ in self._running:
            process.kill()
            process.join()

    def join(self):
        """The counts of each, once all have ended; what one found to be wrong is raised."""
        out = []
        for process, result in self._running:
            process.join(timeout=self.seconds + 60)
            assert process.exitcode == 0, f"exit status {process.exitcode}"
            out.append(json.loads(result.read_text()))
        wrong = [text for one in out if (text := one.pop("wrong"))]
        assert not wrong, "\n".join(wrong)
        return out


@contextlib.contextmanager
def sampling(data, plot, n_threads=2):
    """Threads of this process that sample all the while."""
    stop, failures = threading.Event(), Failures()

    def sample():
        while not stop.is_set():
            plot.check_batch(data.sample(8), onlooker.STACK)

    threads = [failures.guard(sample) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


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
        assert not Path(script.path, ".live").exists()
    elif what == "write":
        actor.perform(actor.with_session(script, luck.randrange(2**32), sessions=1, rows=50))
    counts[what] += 1


FOUR_READERS = {
    "lz4": {"frame": [(6, 8), "uint8", "lz4", 2, 8]},
    "raw, mapped side by side": {"frame": [(64, 64), "uint8", "raw", 4]},
    "zstd, many lanes": {"frame": [(6, 8), "uint8", "zstd", 2, 4]},
    "dict": FRAMES["dict"],
}


@pytest.mark.parametrize("name", list(FOUR_READERS)[: None if THOROUGH else 2])
def test_four_readers_follow_whatever_happens_to_the_writer(tmp_path, measured, name):
    luck = random.Random(name if not THOROUGH else None)
    script = actor.Script(
        path=str(tmp_path / "s.zarr"),
        report=str(tmp_path / "report"),
        seed=luck.randrange(2**32),
        frame=FOUR_READERS[name],
        action_chunk=16,
        lanes=3 if "lanes" in name else None,
        capacity=150,
        flush_s=0.002,
        rows=1000,
        pause_s=0.0005,
    )
    chronicle = actor.Chronicle(script)
    counts = dict.fromkeys(["kill", "nothing", "snapshot", "repair", "write"], 0)
    with actor.Actors() as actors, Onlookers(tmp_path, script, LONG_S) as readers:
        actors.wait(actors.start(actor.with_session(script, 1, sessions=3, rows=600)))
        readers.start("spawn")
        readers.start("forkserver")
        readers.start("fork")
        chronicle.acknowledge(chronicle.committed)
        pid = actors.start(actor.with_session(script, 2))
        with mmreplay.load(script.path, stack=onlooker.STACK) as data:
            data.sample(8)
            # A worker that is forked while threads of its parent are sampling from the same store.
            with sampling(data, script.plot):
                readers.start("fork", data)
                while readers.alive:
                    chronicle.wait_for_rows()
                    time.sleep(luck.random() ** 2 * (1.5 if THOROUGH else 0.4))
                    assert actors.kill(pid) == -9
                    counts["kill"] += 1
                    disturb(script, luck, counts)
                    chronicle.acknowledge(chronicle.committed)
                    pid = actors.start(actor.with_session(script, luck.randrange(2**32)))
        seen = readers.join()
        assert actors.kill(pid) == -9
    checks.check_verified(Path(script.path))
    with mmreplay.open(script.path) as store:
        rows = sum(store.rows_of(number) for number in range(script.lanes or 1))
    sums = {what: sum(one[what] for one in seen) for what in seen[0]}
    result = measured(f"concurrency_{name.split(',')[0]}", seconds=LONG_S, readers=len(seen))
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
    assert counts["kill"] > 1
    assert all(one["batches"] > 10 for one in seen), seen
    assert sums["evictions"] + sums["sessions"] > 0


class Failures(list):
    def guard(self, task):
        def run():
            try:
                task()
            except BaseException as error:
                self.append(error)

        return threading.Thread(target=run)


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "prioritized, many lanes"])
def test_four_threads_sample_in_every_way_while_one_steps(tmp_path, kind):
    lanes = 2 if "lanes" in kind else None
    script = script_of(tmp_path, "lz4", lanes=lanes, capacity=90, flush_s=0.001)
    chronicle, stop, failures = actor.Chronicle(script), threading.Event(), Failures()
    report = np.memmap(script.report, "<u8", "r+")
    factory = mmreplay.ReplayBuffer if kind == "uniform" else mmreplay.PrioritizedReplayBuffer
    buffer = factory(script.path, **script.create_arguments(), stack=onlooker.STACK)
    starts = [None] * (lanes or 1)
    for _ in range(20):
        actor.append_rows(buffer.writer, script.plot, starts, report)
    chronicle.begin([0] * (lanes or 1))
    lookers = [onlooker.Onlooker(script, buffer, seed) for seed in range(4)]
    for one in lookers:
        one.begin([0] * (lanes or 1))
    threads = [failures.guard(lambda one=one: one.run(stop.is_set)) for one in lookers]
    for thread in threads:
        thread.start()
    began, rows = time.monotonic(), 0
    while not failures:
        actor.append_rows(buffer.writer, script.plot, starts, report)
        rows += 1
        if rows % 20 == 0:
            time.sleep(0.001)
        seconds = time.monotonic() - began
        least = min(one.counts["batches"] for one in lookers)
        if (seconds > SECONDS and least > 10 and rows > 200) or seconds > 60:
            break
    stop.set()
    for thread in threads:
        thread.join()
    buffer.close()
    if failures:
        raise failures[0]
    assert min(one.counts["batches"] for one in lookers) > 10
    assert sum(one.counts["evictions"] for one in lookers) > 0


def test_a_child_forked_while_a_thread_takes_new_rows_has_a_whole_index(tmp_path, monkeypatch):
    script = script_of(tmp_path, "lz4", capacity=90)
    buffer = mmreplay.ReplayBuffer(script.path, **script.create_arguments(), stack=3)
    starts = [None]
    for _ in range(40):
        actor.append_rows(buffer.writer, script.plot, starts)
    buffer.sample(8)
    for _ in range(60):
        actor.append_rows(buffer.writer, script.plot, starts)
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


def test_an_epoch_is_of_one_moment_while_another_thread_takes_new_rows(tmp_path, monkeypatch):
    script = script_of(tmp_path, "lz4", capacity=50)
    buffer = mmreplay.ReplayBuffer(script.path, **script.create_arguments(), stack=3)
    starts = [None]
    for _ in range(100):
        actor.append_rows(buffer.writer, script.plot, starts)
    epoch = buffer.batches(16, shuffle=False)
    for _ in range(30):
        actor.append_rows(buffer.writer, script.plot, starts)
    recount, halfway, go_on = Index._recount, threading.Event(), threading.Event()

    def hold(self, lane):
        halfway.set()
        go_on.wait(1)
        recount(self, lane)

    monkeypatch.setattr(Index, "_recount", hold)
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
@pytest.mark.parametrize("name", ["lz4", "raw", "raw, mapped side by side"])
def test_a_store_repaired_under_a_reader_is_never_mixed_with_the_old_one(tmp_path, name, end):
    script = script_of(tmp_path, name)
    plot = script.plot
    writer = mmreplay.create(script.path, **script.create_arguments())
    starts = [None]
    for _ in range(200):
        actor.append_rows(writer, plot, starts)
    writer.close() if end == "close" else faults.kill(writer)
    with mmreplay.open(script.path) as store:
        before = store.ids
        plot.check_batch(store.transitions(before[-3:], stack=3), stack=3)
        ((_, files),) = [
            (folder, sorted(Path(script.path, "frames").glob("c.*"), key=number_of))
            for folder in ["frames"]
        ]
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
        until = time.monotonic() + 10
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


def test_a_second_writer_is_told_who_the_first_is_until_that_one_is_dead(tmp_path):
    script = script_of(tmp_path, "lz4", capacity=70)
    chronicle = actor.Chronicle(script)
    host = re.escape(socket.gethostname())
    with actor.Actors() as actors:
        for session in range(2):
            chronicle.acknowledge(chronicle.committed)
            pid = actors.start(actor.with_session(script, session, rows=10**9))
            chronicle.wait_for_rows()
            told = rf"\(pid {pid} on {host}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\)"
            with pytest.raises(mmreplay.LockedError, match=told):
                mmreplay.create(script.path, append=True)
            with pytest.raises(mmreplay.LockedError, match=told):
                mmreplay.repair(script.path)
            assert actors.kill(pid) == -9
            with mmreplay.create(script.path, append=True) as writer:
                assert writer.rows >= chronicle.committed[0]
                with pytest.raises(mmreplay.LockedError, match=rf"in this process.*{os.getpid()}"):
                    mmreplay.create(script.path, append=True)
                rows = writer.rows
            chronicle.acknowledge([rows])


ORDER_OF_STORES = """
import sys, time
import numpy as np

path, n_bytes, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
page = np.memmap(path, "u1", "r+")
words, rows = page[:4096].view("<u8").data, page[4096:].reshape(2, n_bytes)
n_values = int(sys.argv[4])
values = [np.full(n_bytes, value, "u1") for value in range(n_values)]
count, until = 0, time.monotonic() + seconds
while count % 64 or time.monotonic() < until:
    # As a step does: the row where nobody reads yet, then the word that says that it is there.
    rows[count % 2] = values[count % n_values]
    words[0] = count * 0x0000000100000001
    count += 1
"""


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="of x86-64")
@pytest.mark.parametrize("n_bytes", [1, 48, 4099, 7056, 1 << 20, 1 << 24])
def test_rows_stored_before_the_word_are_seen_before_the_word(tmp_path, n_bytes):
    path = tmp_path / "page"
    path.write_bytes(bytes(4096 + 2 * n_bytes))
    page = np.memmap(path, "u1", "r")
    words, rows = page[:4096].view("<u8").data, page[4096:].reshape(2, n_bytes)
    command = [sys.executable, "-c", ORDER_OF_STORES, str(path), str(n_bytes), str(SECONDS / 5)]
    n_values = 251 if n_bytes < 1 << 16 else 3
    command.append(str(n_values))
    seen = set()
    with subprocess.Popen(command) as writer:
        while writer.poll() is None or not seen:
            word = words[0]
            low, high = word & 0xFFFFFFFF, word >> 32
            assert low == high, "half a word"
            row = rows[low % 2].copy()
            later = words[0] & 0xFFFFFFFF
            if word and later == low:  # otherwise the row may have been taken for the next but one
                assert (row == low % n_values).all(), (
                    f"row {low} is not whole, though the word says so"
                )
                seen.add(low)
    assert writer.returncode == 0
    assert seen


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("name", sorted(FRAMES))
def test_sampling_while_another_thread_appends_and_evicts(tmp_path, name, lanes):
    script = script_of(tmp_path, name, lanes=lanes, capacity=60)
    plot, stop, failures = script.plot, threading.Event(), Failures()
    counts = {"rows": 0, "batches": 0, "again": 0, "transitions": 0}
    arguments = script.create_arguments() | {"flush_s": 0.001}
    buffer = mmreplay.ReplayBuffer(script.path, **arguments, stack=3)

    def write():
        starts = [None] * (lanes or 1)
        while not stop.is_set():
            actor.append_rows(buffer.writer, plot, starts)
            counts["rows"] += 1
            if counts["rows"] % 50 == 0:
                time.sleep(0.0005)

    def sample():
        out = None
        while not stop.is_set():
            if not len(buffer):
                continue
            batch = buffer.sample(16)
            plot.check_batch(batch, stack=3)
            out = buffer.sample(16, out=out)
            plot.check_batch(out, stack=3)
            counts["batches"] += 2

    def look_up():
        luck = random.Random(1)
        while not stop.is_set():
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

    threads = [failures.guard(task) for task in (write, sample, look_up)]
    for thread in threads:
        thread.start()
    least = {"rows": 150, "batches": 20, "transitions": 10}
    began = time.monotonic()
    while not failures:
        time.sleep(0.01)
        seconds = time.monotonic() - began
        enough = all(counts[what] >= n for what, n in least.items())
        if (enough and seconds > SECONDS / 3) or seconds > 30:
            break
    stop.set()
    for thread in threads:
        thread.join()
    buffer.close()
    if failures:
        raise failures[0]
    assert all(counts[what] >= n for what, n in least.items()), counts


@pytest.mark.parametrize("name", ["dict", "lz4", "raw", "zstd, one row a shard"])
def test_readers_in_other_threads_follow_closing_and_reopening(tmp_path, name):
    script = script_of(tmp_path, name, capacity=80)
    plot, stop, failures = script.plot, threading.Event(), Failures()
    seen, n_opened, n_verified = [], [0], [0]
    mmreplay.create(script.path, **script.create_arguments()).close()

    def look(store):
        ids = store.ids[-8:]
        if ids.size:
            try:
                plot.check_batch(store.transitions(ids, stack=3), stack=3)
            except LookupError:
                return []  # evicted since
        return ids.tolist()

    def follow():
        with mmreplay.open(script.path) as store:
            while not stop.is_set():
                store.refresh()
                seen.extend(look(store)[-1:])

    def open_afresh():
        while not stop.is_set():
            with mmreplay.open(script.path) as store:
                look(store)
                n_opened[0] += 1

    def verify():
        while not stop.is_set():
            checks.check_verified(Path(script.path))
            n_verified[0] += 1

    threads = [failures.guard(task) for task in (follow, open_afresh, verify)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    n_sessions = 0
    while not failures:
        seconds = time.monotonic() - began
        enough = n_sessions > 4 and len(set(seen)) > 4 and n_opened[0] > 4 and n_verified[0] > 1
        if (enough and seconds > SECONDS / 2) or seconds > 60:
            break
        with mmreplay.create(script.path, append=True, flush_s=0.001) as writer:
            starts = [None]
            for _ in range(1 + n_sessions * 7 % 40):
                actor.append_rows(writer, plot, starts)
        n_sessions += 1
    stop.set()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert min(n_sessions, len(set(seen)), n_opened[0]) > 4
    assert n_verified[0] > 1
    assert seen == sorted(seen)
    checks.check_verified(Path(script.path))


@pytest.mark.parametrize("name", ["raw", "lz4", "dict"])
def test_reader_of_a_writing_process_never_sees_a_torn_row(tmp_path, name):
    script = script_of(tmp_path, name, capacity=70, flush_s=0.002, rows=400)
    chronicle = actor.Chronicle(script)
    luck = random.Random(2)
    n_batches = 0
    with actor.Actors() as actors:
        pid = actors.start(script)
        chronicle.wait_for_rows()
        until = time.monotonic() + SECONDS / 2
        with mmreplay.load(script.path, stack=3, seed=0) as data:
            while time.monotonic() < until:
                if luck.random() < 0.1:
                    data.store.refresh()
                try:
                    batch = data.sample(16)
                except mmreplay.EmptyBufferError:
                    continue
                script.plot.check_batch(batch, stack=3)
                n_batches += 1
        assert actors.kill(pid) == -9
    assert n_batches > 10


def large_frames(tmp_path):
    """A writer of frames so large that it takes a while to store, or to copy, one of them."""
    script = script_of(tmp_path, "lz4", rows=10**9, capacity=40)
    return dataclasses.replace(script, frame={"frame": [(512, 512), "uint8", "lz4", 1, 1]})


def test_rows_that_leave_the_tail_while_they_are_copied_are_taken_from_their_shard(tmp_path):
    script = large_frames(tmp_path)
    chronicle, n_read = actor.Chronicle(script), 0
    with actor.Actors() as actors:
        pid = actors.start(script)
        chronicle.wait_for_rows()
        until = time.monotonic() + SECONDS
        with mmreplay.open(script.path) as store:
            while time.monotonic() < until or n_read < 6:
                newest = store.rows_of(0)
                if newest < 2:
                    continue
                # Each so often that the writer laps whoever copies them: its tail has two rows.
                rows = np.array([newest - 2, newest - 1]).repeat(64)
                some = slice(None, None, 21)
                found = store.read_rows(0, "frames", rows)[some]
                places = script.plot.frames["frame"].read(found)
                assert (places[:, 1] == rows[some]).all(), (places[:, 1], rows[some])
                n_read += 1
        assert actors.kill(pid) == -9


def test_a_frame_is_whole_at_the_moment_that_the_word_says_so(tmp_path):
    script = large_frames(tmp_path)
    chronicle, n_read = actor.Chronicle(script), 0
    with actor.Actors() as actors:
        pid = actors.start(script)
        chronicle.wait_for_rows()
        until = time.monotonic() + SECONDS
        tail = map_tail(Path(script.path), LaneReader(Path(script.path)).specs["frames"])
        words = State(Path(script.path, ".live", "state"), writable=False).words
        while time.monotonic() < until or n_read < 6:
            known = words[COMMITTED]
            while (head := words[COMMITTED]) == known and time.monotonic() < until + 30:
                pass
            frame = tail[(head - 1) % len(tail)].copy()
            if words[COMMITTED] <= head:  # and so nobody has begun to write over it
                place = script.plot.frames["frame"].read(frame)
                assert place[1] == head - 1
                n_read += 1
        assert actors.kill(pid) == -9


def test_newest_row_reads_as_a_final_row_however_fast_it_changes(tmp_path):
    script = script_of(tmp_path, "raw")
    plot, stop, failures, seen = script.plot, threading.Event(), Failures(), set()
    writer = mmreplay.create(script.path, **script.create_arguments())
    actor.append_rows(writer, plot, [None])

    def write():
        starts = [None]
        while not stop.is_set():
            actor.append_rows(writer, plot, starts)

    def read():
        with mmreplay.open(script.path) as store:
            while not stop.is_set():
                rows = len(store.rewards)
                rewards, actions = store.rewards[:rows], store.actions[:rows]
                resets = store.resets[:rows]
                for row in range(max(rows - 40, 1), rows - 1):
                    if not resets[row + 1]:
                        expected = (plot.action(0, row), plot.reward(0, row))
                    else:
                        expected = (0, 0.0)
                    found = (actions[row], rewards[row])
                    # A row may have been the newest in the one reading and not in the other.
                    assert found == expected or row >= rows - 2
                seen.add(rows)

    threads = [failures.guard(write), failures.guard(read)]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS / 3)
    stop.set()
    for thread in threads:
        thread.join()
    writer.close()
    if failures:
        raise failures[0]
    assert len(seen) > 3


MAKE_A_LANE = """
import sys, time
from pathlib import Path
from mmreplay.testing.effort import THOROUGH
import mmreplay
import numpy as np

path, name, n_rows = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
field = mmreplay.Field((4,), "int32", "lz4", 2, 4)
with mmreplay.create(path, frame=field, action=mmreplay.Field(()), lane=name) as writer:
    number = int(writer.path.name[5:])
    for row in range(n_rows):
        frame = np.full(4, 1000 * number + row, np.int32)
        writer.step(row, row, frame) if row else writer.reset(frame)
print(number, flush=True)
"""


def test_processes_that_make_the_same_store_at_once_get_a_lane_each(tmp_path):
    path = tmp_path / "s.zarr"
    command = [sys.executable, "-c", MAKE_A_LANE, str(path)]
    actors = [
        subprocess.Popen(
            [*command, f"actor-{number}", str(20 + number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for one in actors:
        assert one.stdout.readline() == "ready\n"
    outputs = []
    for one in actors:
        one.stdin.write("go\n")
        one.stdin.flush()
    for one in actors:
        outputs.append(int(one.communicate(timeout=60)[0]))
        assert one.returncode == 0
    assert sorted(outputs) == [0, 1, 2, 3]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["s.zarr"]
    checks.check_plain_zarr(path)
    checks.check_verified(path)
    with mmreplay.open(path) as store:
        for lane, view in enumerate(store.lanes):
            number = outputs.index(lane)
            assert view.name == f"actor-{number}"
            assert view.frames[:, 0].tolist() == [1000 * lane + row for row in range(20 + number)]


KEEP_WRITING_A_LANE = """
import sys
import mmreplay
from mmreplay.testing.frames import Described, Plot

path, name = sys.argv[1:]
field = mmreplay.Field((6, 8), "uint8", "lz4", 2, 4)
plot = Plot(7, {"frame": Described(field)})
settings = {"capacity": 60, "flush_s": 0.002, "lane": name}
with mmreplay.create(path, frame=field, action=mmreplay.Field((), "int64"), **settings) as writer:
    lane, start = int(writer.path.name[5:]), None
    while True:
        row = writer.rows
        if start is None or plot.begins(lane, row):
            start = row
            writer.reset(plot.frame(lane, row, start))
            continue
        ended, cut, lost = plot.flags(lane, row)
        action, reward = plot.action(lane, row - 1), plot.reward(lane, row - 1)
        writer.step(action, reward, plot.frame(lane, row, start), ended, cut, life_lost=lost)
"""


def test_writers_of_lanes_are_killed_and_come_back_under_a_reader_of_all(tmp_path):
    path, luck = tmp_path / "s.zarr", random.Random(5)
    names = ["left", "middle", "right"]
    plot = Plot(7, {"frame": Described(mmreplay.Field((6, 8), "uint8", "lz4", 2, 4))})

    def start(name):
        return subprocess.Popen([sys.executable, "-c", KEEP_WRITING_A_LANE, str(path), name])

    def wait_for(condition):
        until = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.01)

    running = {name: start(name) for name in names}
    try:
        wait_for(lambda: len([*path.glob("lane-*")]) == len(names))
        with mmreplay.load(path, stack=3, seed=0) as data:
            for _ in range(20 if THOROUGH else 3):
                name = luck.choice(names)
                running[name].kill()
                assert running[name].wait() == -9
                number = next(n for n, one in enumerate(data.store.lanes) if one.name == name)
                rows = [data.store.rows_of(n) for n in range(len(names))]
                running[name] = start(name)

                def grown(rows=rows):
                    with contextlib.suppress(mmreplay.EmptyBufferError):
                        plot.check_batch(data.sample(16), stack=3)
                    now = [data.store.rows_of(n) for n in range(len(names))]
                    assert all(map(operator.ge, now, rows))
                    return all(map(operator.gt, now, rows))

                wait_for(grown)
                assert data.store.lanes[number].name == name
    finally:
        for one in running.values():
            one.kill()
            one.wait()
    checks.check_verified(path)
