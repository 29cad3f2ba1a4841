"""The same call for many things at once."""

import _thread
import threading

import pytest

from mmreplay.system.threads import run_in_threads


@pytest.mark.parametrize("n_threads", [0, 1, 9])
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
        return -one

    monkeypatch.setattr(_thread, "start_new_thread", start)
    out, failures = run_in_threads(call, range(20))
    assert sorted(called) == list(range(20))
    assert out == [-one for one in range(20) if one != 3]
    assert [str(one) for one in failures] == ["3"]


def test_what_ends_a_call_in_a_thread_ends_the_caller_once_all_have_ended():
    begun, ended = threading.Barrier(2, timeout=60), []

    def call(one):
        if one < 2:
            begun.wait()
        if one == 1:
            raise KeyboardInterrupt
        ended.append(one)

    with pytest.raises(KeyboardInterrupt):
        run_in_threads(call, range(20))
    assert sorted(ended) == [0, *range(2, 20)]
    assert run_in_threads(call, []) == ([], [])
