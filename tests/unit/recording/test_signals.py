"""Signals that end a recording: the first one stops it, the second has its former effect."""

import signal
import threading

import pytest

from mmreplay.recording.signals import stop_on_signals

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also where these tests run as a job in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_first_signal_stops_and_the_second_has_its_former_effect():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_hangup_is_caught_too():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_there_are_no_signals():
    told = []

    def run():
        with stop_on_signals() as stop:
            told.append(stop())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == [False]
