"""Threads that an interrupt cannot harm, and the same call for many things at once."""

import _thread
import functools
import os
import subprocess
import sys
import threading

import pytest

from mmreplay.system import threads
from mmreplay.system.threads import Flag, Workers, run_all

WAIT = 60  # seconds, for what comes at once: only a hang takes as long


@pytest.fixture
def at_once(monkeypatch):
    """Threads help from the first call on."""
    monkeypatch.setattr(threads, "_ALONE_S", 0)


@pytest.mark.parametrize("n_threads", [0, 1, 9])
@pytest.mark.usefixtures("at_once")
def test_each_is_called_once_however_many_threads_there_are(monkeypatch, n_threads):
    real, left, called = _thread.start_new_thread, [n_threads], []

    def start(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        return real(*arguments)

    def call(one):
        called.append(one)
        if one == 3:
            raise ValueError(one)

    monkeypatch.setattr(_thread, "start_new_thread", start)
    failures = run_all(functools.partial(call, one) for one in range(20))
    assert sorted(called) == list(range(20))
    assert [str(one) for one in failures] == ["3"]


@pytest.mark.usefixtures("at_once")
def test_what_ends_a_call_in_a_thread_ends_the_caller_once_all_have_ended():
    begun, ended = threading.Barrier(2, timeout=60), []

    def call(one):
        if one < 2:
            begun.wait()
        if one == 1:
            raise KeyboardInterrupt
        ended.append(one)

    with pytest.raises(KeyboardInterrupt):
        run_all(functools.partial(call, one) for one in range(20))
    assert sorted(ended) == [0, *range(2, 20)]
    assert run_all([]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="a priority is of a process elsewhere")
def test_workers_give_way_and_nobody_else():
    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    mine, found, all_done = priority(), [], Flag()
    workers = Workers(1, "nice", nice=3)
    workers.hand_over(lambda: found.append(priority()))
    workers.hand_over(all_done.set)
    all_done.wait()
    assert found == [min(mine + 3, 19)]
    assert priority() == mine


def test_workers_do_tasks_in_order_and_end_when_they_are_dropped():
    workers, done, names, all_done = Workers(1, "mine"), [], set(), Flag()
    for number in range(50):
        assert workers.hand_over(functools.partial(done.append, number))
    workers.hand_over(lambda: names.add(threading.current_thread().name))
    workers.hand_over(all_done.set)
    all_done.wait()
    assert (done, names) == (list(range(50)), {"mine_0"})
    thread = workers._threads[0]
    del workers
    thread.wait()
    assert not [one for one in threading.enumerate() if one.name == "mine_0"]


def test_workers_that_have_ended_take_nothing():
    workers, done = Workers(3, "mine"), []
    workers.hand_over(lambda: done.append("before"))
    workers.end()
    assert done == ["before"]
    assert not workers.hand_over(lambda: done.append("after"))
    workers.end()
    assert done == ["before"]


ENDING = """
import os, sys, time
from mmreplay.system.threads import Workers
workers = Workers(1, "mine")
for number in range(3):
    workers.hand_over(lambda number=number: (time.sleep(0.05), print(number, flush=True)))
child = os.fork()
if child == 0:
    print(workers.hand_over(print), flush=True)  # its parent's thread is not waited for
    sys.exit()
os.waitpid(child, 0)
"""


def test_what_was_handed_over_is_done_before_the_process_ends():
    code = [sys.executable, "-W", "ignore", "-c", ENDING]
    done = subprocess.run(code, capture_output=True, text=True, timeout=WAIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["0", "1", "2", "False"]


def test_a_flag_wakes_all_who_wait_for_it():
    flag = Flag()
    waiting = [threading.Thread(target=flag.wait, daemon=True) for _ in range(5)]
    for thread in waiting:
        thread.start()
    flag.set()
    for thread in waiting:
        thread.join(WAIT)
        assert not thread.is_alive()
    flag.wait()
