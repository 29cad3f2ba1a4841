"""What was looked up and is read later: the same as at once, or nothing."""

import dataclasses

import numpy as np
import pytest

import mmreplay
from mmreplay import ClosedError, Field

# Whole pages, mapped side by side; of the other columns no file goes.
PAGES = {
    "frame": Field((64, 64), "uint8", "raw", chunk=4),
    "action": Field((), "int64", chunk=4096),
}


def oldest_eight(index):
    return index.ids()[:8]


@pytest.fixture
def located_in(story):
    """What is looked up in a store of 200 rows of a writer, its lanes, and the writer."""
    opened = []

    def locate(writer, stack=3):
        story.play(writer, 200)
        data = mmreplay.load(writer.path, stack=stack)
        opened.append(data)
        live = data.store.live
        return live.locate(oldest_eight, live.gatherer(data.settings)), live

    yield locate
    for one in opened:
        one.close()


def check_read(batch, story, writer):
    assert batch is not None
    rows = (batch.id[:, None] + np.arange(-2, 1)).ravel()
    expected = story.observed(writer.path, writer.schema, rows)
    assert batch.observation.tobytes() == expected.tobytes()


def test_what_is_looked_up_is_read_later_as_it_was(make, story, located_in):
    writer = make(**PAGES)
    located, live = located_in(writer)
    story.play(writer, 300, reset=False)
    batch = located.fetch()
    assert batch.id.tolist() == list(range(8))
    assert live.renewed(located) is not None
    assert live.renewed(located).version > located.version


def test_rows_that_lie_elsewhere_by_now_are_read_only_after_another_look(make, story, located_in):
    writer = make(**PAGES)
    located, live = located_in(writer)
    story.play(writer, 600, reset=False)
    live.refresh()  # maps more files, at other addresses
    assert live.follow().remaps.count > located.n_remaps
    assert located.fetch() is None
    batch = live.renewed(located).fetch()
    assert batch.id.tolist() == list(range(8))


def test_rows_that_were_evicted_are_not_read(make, story, located_in):
    writer = make(**PAGES, capacity=150)
    located, live = located_in(writer)
    for _ in range(6):
        story.play(writer, 60, reset=False)
        writer.flush()
        live.refresh()
    assert located.fetch() is None
    assert live.renewed(located) is None


def test_evicted_rows_whose_files_are_there_are_not_renewed(make, story, located_in):
    writer = make(**PAGES, capacity=150)
    located, live = located_in(writer)
    check_read(located.fetch(), story, writer)
    story.play(writer, 1, reset=False)
    check_read(located.fetch(), story, writer)  # still on disk, as nobody has flushed
    assert live.renewed(located) is None


def test_a_session_that_ended_is_noticed(make, story, located_in, lz4):
    writer = make(**lz4)
    located, live = located_in(writer)
    assert located.fetch().id.tolist() == list(range(8))
    writer.close()
    assert located.fetch() is None
    assert live.renewed(located) is None


def test_an_error_of_a_read_that_nothing_disturbed_is_raised(make, located_in):
    located, live = located_in(make(**PAGES))

    class Wrong:
        def fetch(self, columns, places, out):
            raise IndexError("too far")

    n_remaps = live.follow().remaps.count
    wrong = dataclasses.replace(located, gatherer=Wrong(), n_remaps=n_remaps)
    with pytest.raises(IndexError, match="too far"):
        wrong.fetch()
    assert dataclasses.replace(wrong, n_remaps=n_remaps - 1).fetch() is None


def test_a_store_that_was_closed_says_so(make, located_in):
    located, live = located_in(make(**PAGES))
    live.close()
    assert located.fetch() is not None  # a thread that reads goes on with its own maps
    with pytest.raises(ClosedError):
        live.renewed(located)
