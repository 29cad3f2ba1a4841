"""Columns that keep what they decode: as long as they are the columns that are read."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.reading.kept_frames import KeptFrames
from mmreplay.storage.shard_column import KeptColumn

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_only_compressed_columns_keep_anything(make):
    frame = {"a": Field((4,), "uint8", "lz4", 4, 16), "b": Field((2,), "uint8", "raw")}
    with mmreplay.load(make(frame=frame).path) as data:
        columns = data.store.live.columns
        kept = KeptFrames(100).columns(columns)
        assert kept.keys() == columns.keys()
        assert isinstance(kept["frames/a"], KeptColumn)
        assert all(kept[path] is columns[path] for path in columns if path != "frames/a")


def test_another_opening_has_columns_that_keep_nothing_yet(make, story, same):
    writer = make(frame=Field((3,), "uint8", "lz4", 4, 16))
    story.play(writer, 37, "terminated")
    writer.close()
    with mmreplay.load(writer.path, stack=None) as data:
        live, kept = data.store.live, KeptFrames(1000)

        def gather(ids):
            return live.gather(live.valid_ids(ids), data.samplers.gatherer, kept=kept)

        assert same(gather(data.ids), data.transitions(data.ids))
        before = kept.columns(live.columns)
        assert kept.columns(live.columns) is before
        again = make(append=True)  # the last chunk of the shard was not full
        story.play(again, 30)
        data.refresh()
        assert same(gather(data.ids), data.transitions(data.ids))
        assert kept.columns(live.columns) is not before
        expected = story.observed(again.path, again.schema, data.ids)
        assert np.array_equal(gather(data.ids).observation, expected)
