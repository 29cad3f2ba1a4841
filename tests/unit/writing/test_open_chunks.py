"""Borders of chunk files: crossed at every kind of row, and by a ring on a full disk."""

import errno
import itertools

import pytest

import mmreplay
from mmreplay import Field
from mmreplay.errors import (
    DiskFullError,
)
from mmreplay.storage.state_page import COMMITTED
from mmreplay.system import durable_writes
from mmreplay.writing import build_lane
from mmreplay.writing import writer as writer_module
from tests.support.writers import assert_store_matches, checkpoint, chunks, drain

pytestmark = pytest.mark.usefixtures("quick_disk")


# In a quick run each pair of two of them, and not each three together.
@pytest.mark.parametrize(
    ("codec", "scalars", "extra"),
    [
        pytest.param(
            *(codec, scalars, extra),
            marks=() if quick else pytest.mark.deep(only=True),
        )
        for number, scalars in enumerate([1, 2, 3, 8])
        for codec, extra in itertools.product(["raw", "lz4"], [1, 5])
        for quick in [((codec == "raw") == (extra == 1)) == (number % 2 == 0)]
    ],
)
def test_every_border_of_every_column_is_crossed_at_every_kind_of_row(
    make, story, codec, scalars, extra
):
    writer = make(
        frame={
            "a": Field((2,), "uint8", codec, chunk=2, shard=6),
            "b": Field((), "float32", "raw", chunk=3),
        },
        action=Field((), "int64", chunk=scalars),
        extras={"x": Field((), "float32", chunk=extra)},
    )
    for length in (0, 1, 2, 3, 0, 5, 7, 1, 12, 0, 4):
        story.play(writer, length, ("terminated", "truncated", "")[length % 3])
    drain(writer)
    assert_store_matches(story, writer)
    writer.close()
    assert_store_matches(story, writer)


def test_a_reader_sees_each_row_as_soon_as_it_is_committed(make, story):
    writer = make()
    with mmreplay.open(writer.path) as store:
        reader = store.live.readers[0]
        for step in range(20):
            story.play(writer, 1, reset=not step)
            reader.poll()
            assert reader.head == writer.rows == writer.log.words[COMMITTED]


def test_a_row_is_readable_from_the_moment_committed_passes_it_and_not_before(
    make, story, monkeypatch
):
    writer = make(extras={"x": Field((), "float32")})
    seen = []
    story.play(writer, 2)
    with mmreplay.open(writer.path) as store:

        def barrier():
            rows = store.refresh().lanes[0].rows
            newest = rows - 1
            scalars = [store.actions[newest], store.rewards[newest], store.extras["x"][newest]]
            seen.append((rows, writer.rows, [float(one) for one in scalars]))

        monkeypatch.setattr(writer_module, "_publish", barrier)
        story.step(writer)
        story.reset(writer)
        story.step(writer, terminated=True)
        # At the barrier all is written, and the row before is still a final row to everybody.
        assert seen == [(rows, rows, [0, 0, 0]) for rows in (3, 4, 5)]
        store.refresh()
        story.check(store)


def test_a_ring_on_a_full_disk_evicts(make, story, monkeypatch):
    writer = make(capacity=8)
    monkeypatch.setattr(writer._background, "wake", lambda: None)  # nobody else evicts
    writer.files.on_flush = lambda: "state"
    story.play(writer, 30)
    story.play(writer, 65)
    before, real = chunks(writer), durable_writes._fallocate
    n_full = []

    def full(descriptor, size):
        if chunks(writer)[0] == before[0]:
            n_full.append(1)
            raise OSError(errno.ENOSPC, "full")
        real(descriptor, size)

    def full_write(path, data, **how):
        if chunks(writer)[0] == before[0]:
            raise DiskFullError("full")
        write_file(path, data, **how)

    write_file = durable_writes.write_file
    with monkeypatch.context() as patch:
        patch.setattr(durable_writes, "_fallocate", full)
        patch.setattr(durable_writes, "write_file", full_write)
        story.play(writer, 9)
    assert n_full
    assert chunks(writer)[0] > before[0]
    assert checkpoint(writer).base > 0
    assert build_lane.read_generator(writer.path) == "state"
