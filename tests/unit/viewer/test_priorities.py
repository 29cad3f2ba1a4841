"""Priorities are read beside their writer, and what cannot be read is NaN."""

import numpy as np

import mmreplay
from mmreplay.viewer.shown_columns import has_priorities, read_priorities


def test_priorities_are_those_that_were_given(prioritized_of, story):
    buffer = prioritized_of()
    story.play(buffer.writer, 20)
    ids = buffer.ids
    values = 0.5 + np.arange(ids.size)
    buffer.update_priorities(ids, values)
    with mmreplay.open(buffer.writer.path) as store:
        assert has_priorities(store)
        # A little is added to each, so that none is 0.
        assert np.allclose(read_priorities(store, ids[::-1]), values[::-1], rtol=0, atol=1e-5)


def test_a_store_without_priorities_has_none(make, story):
    writer = make()
    story.play(writer, 5, "terminated")
    with mmreplay.open(writer.path) as store:
        assert not has_priorities(store)
        assert np.isnan(read_priorities(store, store.ids)).all()


def test_a_damaged_column_of_priorities_is_nan(prioritized_of, story):
    buffer = prioritized_of()
    story.play(buffer.writer, 20)
    buffer.close()
    for chunk in (buffer.writer.path / "priorities").glob("c.*"):
        chunk.write_bytes(b"short")
    with mmreplay.open(buffer.writer.path) as store:
        assert has_priorities(store)
        assert np.isnan(read_priorities(store, store.ids)).all()
    (buffer.writer.path / "priorities" / "zarr.json").write_text("{")
    with mmreplay.open(buffer.writer.path) as store:
        assert not has_priorities(store)
