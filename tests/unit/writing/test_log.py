"""One log: windows that are prepared ahead of their first row."""

import errno
import threading

import pytest

import mmreplay
from mmreplay.errors import DiskFullError
from mmreplay.system import durable_writes
from mmreplay.writing import log as log_module
from tests.support.writers import chunks, drain

pytestmark = pytest.mark.usefixtures("quick_disk")

WAIT = 300  # seconds, for events that come at once: only a hang takes as long


@pytest.fixture
def large(monkeypatch):
    """Every chunk file counts as large."""
    monkeypatch.setattr(log_module, "_AHEAD_BYTES", 1)


def test_the_next_large_chunk_is_ready_before_its_first_row(make, story, large, log):
    writer = make()
    story.play(writer, 8)
    drain(writer)
    assert chunks(writer) == [0, 1, 2]
    log.clear()
    story.play(writer, 8, reset=False)  # row 16 lies in chunk 2, which is there
    drain(writer)
    assert ("allocate", "rewards/c.2") not in log
    assert ("allocate", "rewards/c.3") in log
    with mmreplay.open(writer.path) as store:
        story.check(store)
    writer.close()
    assert chunks(writer) == [0, 1, 2]
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_a_chunk_made_ahead_goes_when_a_killed_lane_is_opened(make, story, kill, large):
    writer = make()
    story.play(writer, 8)
    drain(writer)
    kill(writer)
    writer = make(append=True)
    assert chunks(writer) == [0, 1]


def test_no_room_for_the_next_chunk_is_no_error_before_it_is_needed(
    make, story, large, monkeypatch
):
    writer = make()
    story.play(writer, 7)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        writer.log.prepare_window(writer.specs["rewards"], 1)
        patch.setattr(durable_writes, "_fallocate", full)
        writer.log.prepare_window(writer.specs["rewards"], 2)
        with pytest.raises(DiskFullError):
            story.step(writer)
    story.step(writer)
    with mmreplay.open(writer.path) as store:
        story.check(store)


def test_preparing_the_next_chunk_never_removes_a_file_that_a_step_has_made(
    make, story, large, monkeypatch
):
    writer = make()
    story.play(writer, 7)
    spec, real = writer.specs["rewards"], durable_writes._fallocate
    begun, stepping = threading.Event(), threading.Event()

    def full_ahead(descriptor, size):
        if threading.current_thread() is ahead:
            begun.set()
            stepping.wait(0.1)  # the step waits for its turn, or would be done by then
            raise OSError(errno.ENOSPC, "full")
        real(descriptor, size)

    ahead = threading.Thread(target=writer.log.prepare_window, args=(spec, 2))
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", full_ahead)
        ahead.start()
        assert begun.wait(WAIT)
        window = writer.log.open_window(spec, 2)
        stepping.set()
        ahead.join()
    assert window.chunk == 2
    assert chunks(writer)[-1] == 2
