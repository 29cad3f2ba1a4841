"""The threads of a writer: one for tasks, one that flushes by the clock, and an end to both."""

import gc
import threading
import weakref

import pytest

from mmreplay.writing.seal import Background

WAIT = 300  # seconds, for events that come at once: only a hang takes as long


class Clocked:
    """Something that is flushed."""

    def __init__(self):
        self.calls = []
        self.called = threading.Semaphore(0)

    def flush_in_background(self, *, timer):
        self.calls.append(timer)
        self.called.release()


OTHERS = weakref.WeakSet()


@pytest.fixture(autouse=True)
def threads_of_other_tests():
    """Of writers that were dropped without close in this process; they are none of ours."""
    gc.collect()
    OTHERS.update(threading.enumerate())


def threads_named(name):
    mine = (one for one in threading.enumerate() if one not in OTHERS)
    return [one for one in mine if one.name.startswith(name)]


def gone(name):
    """Whether the threads of that name end."""
    for one in threads_named(name):
        one.join(WAIT)
    return not threads_named(name)


def test_nothing_runs_before_it_is_needed():
    background = Background(30)
    assert not threads_named("mmreplay")
    lane = Clocked()
    background.attach(lane)
    background.flush_soon()
    assert lane.called.acquire(timeout=WAIT)
    assert len(threads_named("mmreplay")) == len(threads_named("mmreplay-flush")) == 1
    background.end()
    assert not threads_named("mmreplay")


def test_without_a_clock_a_wake_still_flushes():
    background, lane = Background(0), Clocked()
    background.attach(lane)
    background.flush_soon()  # there is none by the clock that could come earlier
    assert not threads_named("mmreplay-flush")
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert lane.calls == [False]
    background.end()
    assert not threads_named("mmreplay")


def test_a_writer_may_be_let_go_of_by_the_flushing_thread_itself():
    background = Background(3600)

    class Leaving(Clocked):
        def flush_in_background(self, *, timer):
            background.end()
            self.called.release()

    lane = Leaving()
    background.attach(lane)
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert gone("mmreplay-flush")


def test_threads_end_when_the_writer_is_dropped_without_a_close():
    background, lane = Background(0.02), Clocked()
    background.attach(lane)
    background.finish_tasks()
    assert lane.called.acquire(timeout=WAIT)
    known = weakref.ref(lane)
    del lane
    assert known() is None  # the threads do not keep it
    del background
    gc.collect()
    assert gone("mmreplay")


def test_tasks_run_one_after_the_other_in_a_thread_of_their_own():
    background, lane, order = Background(0), Clocked(), []
    background.attach(lane)
    first = threading.Event()
    background.submit(
        lambda: (first.wait(WAIT), order.append(("first", threading.current_thread().name)))
    )
    background.submit(lambda: order.append(("second", threading.current_thread().name)))
    assert order == []
    first.set()
    background.finish_tasks()
    assert [name for name, _ in order] == ["first", "second"]
    assert all(thread.startswith("mmreplay-seal") for _, thread in order)
    background.submit(lambda: order.append(("third", "")))
    background.end()  # waits for what was submitted
    assert order[-1] == ("third", "")
    background.submit(lambda: order.append(("here", threading.current_thread().name)))
    assert order[-1] == ("here", threading.current_thread().name)  # no other thread is left
