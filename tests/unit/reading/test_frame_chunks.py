"""How frames are stored together, and the blocks that are made after that."""

import numpy as np

import mmreplay
from mmreplay import Field


def test_blocks_of_a_store_begin_where_its_chunks_do(make, story):
    writer = make(frame=Field((3,), "uint8", "lz4", 4, 64))
    story.play(writer, 200)
    with mmreplay.load(writer.path, stack=None) as data:
        chunks, column = data.store.live.frame_chunks, data.store.live.columns["frames"]
        keys = chunks.at_least(1).keys(data.ids)
        assert np.array_equal(keys, column._locate(data.ids)[0])
