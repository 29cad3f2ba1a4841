"""Batches that are read ahead, when a dataset ends: closing, forks, pickles and threads."""

import subprocess
import sys
import threading

import pytest

import mmreplay
from mmreplay import (
    ClosedError,
)
from tests.support.numbered_steps import play
from tests.support.oracle.drawn_ahead import check_equal
from tests.support.processes.threads import BackgroundThreads


@pytest.fixture
def reading_threads():
    """The threads that read ahead and were started since the test began."""
    before = set(threading.enumerate())
    return lambda: [
        one for one in set(threading.enumerate()) - before if one.name.startswith("mmreplay-ahead")
    ]


def test_threads_end_with_close_and_nothing_is_given_after_it(closed, reading_threads):
    data = mmreplay.load(closed("lz4", "one environment"), prefetch=4)
    epoch = data.batches(3)
    for _ in range(3):
        data.sample(5)
        next(epoch)
    assert reading_threads()
    data.close()
    assert not reading_threads()
    calls = (lambda data: data.sample(5), lambda data: data.sample_sequences(3, 4))
    for call in (*calls, lambda data: next(epoch)):
        with pytest.raises(ClosedError):
            call(data)
    data.close()
    assert not reading_threads()


# Later Pythons warn of any fork beside threads.
WARNINGS = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, *WARNINGS, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_process_that_ends_without_close_ends(closed):
    code = """
import sys, mmreplay
data = mmreplay.load(sys.argv[1], prefetch=5)
epoch = data.batches(2)
print(len(data.sample(4)), len(next(epoch)))
"""
    done = run(code, closed("zstd", "named lanes"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "4 2\n", "")


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_saved_random_state_is_that_after_the_last_batch_given(buffer_of, kill, prefetch):
    plain = buffer_of("plain.zarr", seed=4)
    play(plain, 60)
    expected = [plain.sample(5).id.tolist() for _ in range(12)]
    found = []
    for end in ("close", "kill", "close", "kill"):
        buffer = buffer_of(seed=4, prefetch=prefetch)
        if not found:
            play(buffer, 60)
        found += [buffer.sample(5).id.tolist() for _ in range(3)]
        if end == "close":
            buffer.close()
        else:
            buffer.flush()
            kill(buffer.writer)
            buffer.store.close()
    assert found == expected


FORKED = """
import os, sys, mmreplay

def draw():
    for name, data, epoch in sources:
        for _ in range(3):
            print(name, data.sample(5).id.tolist(), next(epoch).id.tolist())

sources = []
for name, prefetch in (("plain", 0), ("ahead", 3)):
    data = mmreplay.load(sys.argv[1], seed=3, prefetch=prefetch)
    sources.append((name, data, data.batches(4)))
draw()
sys.stdout.flush()
if os.fork() == 0:
    draw()
    for _, data, _ in sources:
        data.close()
    sys.stdout.flush()
    os._exit(0)
os.wait()
draw()
"""


def test_a_forked_child_and_its_parent_go_on_as_without_prefetch(closed):
    done = run(FORKED, closed("lz4", "one environment"))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    plain, ahead = (
        [text for name, _, text in lines if name == kind] for kind in ("plain", "ahead")
    )
    assert plain == ahead
    assert len(set(plain)) == 9


def test_threads_that_sample_together_get_each_batch_of_the_stream_once(closed):
    path = closed("lz4", "one environment")
    with mmreplay.load(path, seed=1) as plain, mmreplay.load(path, seed=1, prefetch=3) as data:
        expected = [plain.sample(6) for _ in range(60)]
        found = []

        def sample(going):
            for _ in range(20):
                found.append(data.sample(6))

        with BackgroundThreads(sample, sample, sample):
            pass
    by_ids = {tuple(one.id.tolist()): one for one in expected}
    assert len(by_ids) == 60
    assert {tuple(one.id.tolist()) for one in found} == by_ids.keys()
    for one in found:
        check_equal(one, by_ids[tuple(one.id.tolist())])
