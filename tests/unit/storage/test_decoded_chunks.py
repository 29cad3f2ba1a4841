"""Chunks that stay decoded: each once while there is room, none changed under a reader."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from mmreplay.storage.decoded_chunks import DecodedChunks


class Decoder:
    """Fills a chunk with its key, and counts."""

    def __init__(self):
        self.calls = []

    def __call__(self, key, part):
        self.calls.append(key)
        part[:] = key


@pytest.fixture
def decoder():
    return Decoder()


def chunks(n=4):
    return DecodedChunks(n, 2, 3, np.uint8)


def values(kept, slots):
    return kept.rows.reshape(kept.n_chunks, 6)[slots].tolist()


def held(kept, keys, decoder):
    with kept.hold(keys, decoder) as slots:
        assert values(kept, slots) == [[key] * 6 for key in keys]


def test_the_chunk_used_longest_ago_makes_place(decoder):
    kept = chunks(3)
    for keys in ([1], [2], [3], [1], [4], [1, 3, 4], [2]):
        held(kept, keys, decoder)
    assert decoder.calls == [1, 2, 3, 4, 2]


def test_what_somebody_reads_stays(decoder):
    kept = chunks(3)
    with kept.hold([1, 2], decoder) as slots:
        with kept.hold([3, 4], decoder) as others:
            assert others is None
        held(kept, [3], decoder)
        held(kept, [4], decoder)
        assert values(kept, slots) == [[1] * 6, [2] * 6]
    held(kept, [5, 6, 7], decoder)


def test_a_chunk_that_cannot_be_decoded_is_not_kept(decoder):
    kept = chunks(4)

    def fail(key, part):
        part[:] = 9
        if key == 2:
            raise ValueError(key)

    with pytest.raises(ValueError, match="2"), kept.hold([1, 2], fail):
        pass
    held(kept, [1, 2, 3, 4], decoder)
    assert decoder.calls == [1, 2, 3, 4]


def test_after_an_interrupt_nothing_is_kept_and_nobody_waits(decoder):
    kept, inside, go_on, found = chunks(4), threading.Event(), threading.Event(), []

    def interrupt(key, part):
        inside.set()
        go_on.wait()
        raise KeyboardInterrupt

    def wait():
        inside.wait()
        go_on.set()
        with kept.hold([1, 2], decoder) as slots:
            found.append(slots)

    other = threading.Thread(target=wait)
    other.start()
    with pytest.raises(KeyboardInterrupt), kept.hold([1], interrupt):
        pass
    other.join()
    assert found == [None]
    with kept.hold([3], decoder) as slots:
        assert slots is None


def test_threads_with_little_room_read_what_they_asked_for():
    kept, wrong = chunks(6), []

    def fill(key, part):
        part[:] = key % 251

    def work(seed):
        random = np.random.default_rng(seed)
        for _ in range(300):
            keys = np.unique(random.integers(0, 30, 3)).tolist()
            with kept.hold(keys, fill) as slots:
                if slots is not None and values(kept, slots) != [[key % 251] * 6 for key in keys]:
                    wrong.append(keys)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


FORKED = """
import os, threading
import numpy as np
from mmreplay.storage.decoded_chunks import DecodedChunks

kept, inside, never = DecodedChunks(2, 2, 3, np.uint8), threading.Event(), threading.Event()

def decode(key, part):
    part[:] = key

def wait(key, part):
    with kept._lock:
        inside.set()
        never.wait()

def read():
    with kept.hold([1], wait):
        pass

threading.Thread(target=read, daemon=True).start()
inside.wait()
child = os.fork()
if child == 0:
    with kept.hold([1, 2], decode) as slots:
        print(kept.rows.reshape(2, 6)[slots, 0].tolist(), flush=True)
    os._exit(0)
os._exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_reads_whatever_its_parents_threads_were_at():
    warnings = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
    done = subprocess.run(
        [sys.executable, *warnings, "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 2]\n", "")
