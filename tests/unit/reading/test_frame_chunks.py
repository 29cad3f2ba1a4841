"""How frames are stored together, by lane, and the blocks that are made after that."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field

LZ4 = Field((4, 4), "uint8", "lz4", 16, 256)


@pytest.fixture
def chunks(make):
    """Of new stores, read as one, each with frames and as many environments as told."""

    def look(*stores):
        paths = []
        for number, (frame, lanes) in enumerate(stores):
            given = {"frame": frame, "lanes": lanes} if lanes else {"frame": frame}
            paths.append(make(f"{number}-{lanes}.zarr", **given).path)
        return mmreplay.load(paths).store.live.frame_chunks

    return look


def rows(blocks):
    return blocks.rows.tolist(), blocks.widths.tolist()


def test_a_block_has_four_chunks_for_each_one_beside_it_whose_frames_it_shows(chunks):
    for lanes, width in ((None, 1), (3, 3)):
        found = chunks((LZ4, lanes))
        assert found.row_bytes == 16
        assert rows(found.blocks(0, 1)) == ([64], [width])
        assert rows(found.blocks(3, 1)) == ([128], [width])
        assert rows(found.blocks(3, 17)) == ([192], [width])
        assert rows(found.blocks(16, 16)) == ([128], [width])


def test_blocks_of_a_store_begin_where_its_chunks_do(make, story):
    writer = make(frame=Field((3,), "uint8", "lz4", 4, 64))
    story.play(writer, 200)
    with mmreplay.load(writer.path, stack=None) as data:
        chunks, column = data.store.live.frame_chunks, data.store.live.columns["frames"]
        keys = chunks.at_least(1).keys(data.ids)
        assert np.array_equal(keys, column._locate(data.ids)[0])
