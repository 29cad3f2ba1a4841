"""The threads of a writer: sealing shared by two, a clock that flushes, and an end to both."""

import gc
import threading
import time
import weakref

import pytest

from mmreplay.writing.background import Background
from mmreplay.writing.seal import SealJob

WAIT = 30  # seconds, for events that come at once


class Clocked:
    """Something that is flushed."""

    def __init__(self):
        self.calls = []
        self.called = threading.Semaphore(0)

    def _flush_in_background(self, *, timer):
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
    """Whether the threads of that name end soon."""
    deadline = time.monotonic() + WAIT
    while threads_named(name) and time.monotonic() < deadline:
        for one in threads_named(name):
            one.join(0.05)
    return not threads_named(name)


# ---------------------------------------------------------------- flushing by the clock


def test_nothing_runs_before_it_is_needed():
    background = Background(30)
    assert not threads_named("mmreplay")
    lane = Clocked()
    background.attach(lane)
    assert len(threads_named("mmreplay-flush")) == 1
    background.detach(lane)
    assert not threads_named("mmreplay")


def test_the_clock_flushes_every_lane_again_and_again():
    background, lanes = Background(0.01), [Clocked(), Clocked()]
    for lane in lanes:
        background.attach(lane)
    for _ in range(3):
        for lane in lanes:
            assert lane.called.acquire(timeout=WAIT)
    for lane in lanes:
        background.detach(lane)
    assert all(lane.calls[0] is True for lane in lanes)
    assert not threads_named("mmreplay")


def test_wake_flushes_at_once_and_not_as_the_timer():
    background, lane = Background(3600), Clocked()
    background.attach(lane)
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert lane.calls == [False]
    background.detach(lane)


def test_without_a_clock_a_wake_still_flushes():
    background, lane = Background(0), Clocked()
    background.attach(lane)
    assert not threads_named("mmreplay-flush")
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert lane.calls == [False]
    background.detach(lane)
    assert not threads_named("mmreplay")


def test_one_lane_of_several_may_leave():
    background, first, second = Background(3600), Clocked(), Clocked()
    background.attach(first)
    background.attach(second)
    background.detach(first)
    background.wake()
    assert second.called.acquire(timeout=WAIT)
    assert first.calls == []
    background.detach(second)


def test_a_lane_may_be_detached_by_the_flushing_thread_itself():
    background = Background(3600)

    class Leaving(Clocked):
        def _flush_in_background(self, *, timer):
            background.detach(self)
            self.called.release()

    lane = Leaving()
    background.attach(lane)
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert gone("mmreplay-flush")


def test_threads_end_when_the_writer_is_dropped_without_a_close():
    background, lane = Background(0.02), Clocked()
    background.attach(lane)
    background.submit(lambda: None).result()
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
    second = background.submit(lambda: order.append(("second", threading.current_thread().name)))
    assert order == []
    first.set()
    second.result(WAIT)
    assert [name for name, _ in order] == ["first", "second"]
    assert all(thread.startswith("mmreplay-seal") for _, thread in order)
    background.submit(lambda: order.append(("third", "")))
    background.detach(lane)  # waits for what was submitted
    assert order[-1] == ("third", "")


# ---------------------------------------------------------------- a job shared by two threads


def job_of(n_parts, encode=None, finish=None):
    done = []
    job = SealJob(
        n_parts,
        encode or (lambda part, fast: bytes([part])),
        finish or (lambda parts: done.append(list(parts))),
    )
    return job, done


def in_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_job_encodes_every_part_in_order_and_finishes_once():
    job, done = job_of(5)
    job.run()
    assert done == [[bytes([n]) for n in range(5)]]
    assert job.done.is_set()
    assert job.error is None


def test_two_threads_share_the_parts_and_none_is_encoded_twice():
    # The sealing thread is held up in part 0; the writer does all the others.
    begun, held, who = threading.Event(), threading.Event(), {}

    def encode(part, fast):
        assert part not in who
        who[part] = (threading.current_thread().name, fast)
        if part == 0:
            begun.set()
            assert held.wait(WAIT)
        return bytes([part])

    job, done = job_of(6, encode)
    sealing = in_thread(job.run)
    assert begun.wait(WAIT)
    job.work(fast=True)
    assert not job.done.is_set()
    held.set()
    assert job.done.wait(WAIT)
    sealing.join()
    assert done == [[bytes([n]) for n in range(6)]]
    me = threading.current_thread().name
    assert who[0] == (sealing.name, False)
    assert {who[part] for part in range(1, 6)} == {(me, True)}


def test_the_sealing_thread_hurries_once_the_writer_has_to_help():
    ways, hurry = [], threading.Event()

    def encode(part, fast):
        ways.append(fast)
        if part == 0:
            in_thread(lambda: (job.work(fast=True), hurry.set())).join()
        return b""

    # The writer takes parts 1 and up in the middle of part 0; those left are hurried too.
    job, _ = job_of(3, encode)
    job.run()
    assert hurry.is_set()
    assert ways == [False, True, True]


def test_finishing_waits_for_the_writers_share():
    begun, held = threading.Event(), threading.Event()

    def encode(part, fast):
        if fast:
            begun.set()
            assert held.wait(WAIT)
        return bytes([part])

    job, done = job_of(1, encode)
    writer = in_thread(lambda: job.work(fast=True))
    assert begun.wait(WAIT)
    sealing = in_thread(job.run)
    sealing.join(0.05)
    assert not job.done.is_set()
    assert done == []
    held.set()
    assert job.done.wait(WAIT)
    writer.join()
    assert done == [[b"\0"]]


@pytest.mark.parametrize("part", [0, 2, 4])
def test_an_encoding_that_fails_is_kept_as_the_jobs_error_and_nothing_is_finished(part):
    def encode(this, fast):
        if this == part:
            raise RuntimeError("no memory")
        return b""

    job, done = job_of(5, encode)
    job.run()
    assert job.done.is_set()
    assert str(job.error) == "no memory"
    assert done == []


def test_an_encoding_that_fails_in_the_writers_thread_ends_the_job_too():
    begun, held = threading.Event(), threading.Event()

    def encode(part, fast):
        if fast:
            raise RuntimeError("in the writer")
        begun.set()
        assert held.wait(WAIT)
        return b""

    job, done = job_of(3, encode)
    sealing = in_thread(job.run)
    assert begun.wait(WAIT)
    job.work(fast=True)
    held.set()
    assert job.done.wait(WAIT)
    sealing.join()
    assert str(job.error) == "in the writer"
    assert done == []


def test_a_finish_that_fails_is_the_jobs_error():
    def finish(parts):
        raise OSError("disk")

    job, _ = job_of(2, None, finish)
    job.run()
    assert job.done.is_set()
    assert isinstance(job.error, OSError)


def test_a_writer_that_is_interrupted_while_it_helps_leaves_nobody_waiting():
    begun, held = threading.Event(), threading.Event()

    def encode(part, fast):
        if fast:
            raise KeyboardInterrupt
        begun.set()
        assert held.wait(WAIT)
        return b""

    job, done = job_of(2, encode)
    sealing = in_thread(job.run)
    assert begun.wait(WAIT)
    with pytest.raises(KeyboardInterrupt):
        job.work(fast=True)
    held.set()
    assert job.done.wait(WAIT)
    sealing.join(WAIT)
    assert isinstance(job.error, KeyboardInterrupt)
    assert done == []


def test_what_was_recovered_is_flushed_without_waiting_for_the_clock():
    background, lane = Background(3600), Clocked()
    background.attach(lane)
    background.flush_soon()
    assert lane.called.acquire(timeout=WAIT)
    assert lane.calls == [True]
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert lane.calls == [True, False]
    background.detach(lane)


def test_without_a_clock_nothing_is_flushed_soon():
    background, lane = Background(0), Clocked()
    background.attach(lane)
    background.flush_soon()
    background.wake()
    assert lane.called.acquire(timeout=WAIT)
    assert lane.calls == [False]
    background.detach(lane)


def test_task_runs_in_place_once_the_pool_is_shut_down():
    background, done = Background(0), []
    background._executor.shutdown()
    background.submit(lambda: done.append(1)).result(0)
    assert done == [1]
