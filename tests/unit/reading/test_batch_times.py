"""Where the time of a batch goes: what is timed is what is read."""

import numpy as np
import pytest

import mmreplay
from mmreplay import CorruptStoreError, Field
from mmreplay.reading.batch_times import TimedColumn, timed
from tests.support.oracle.checks import check_batch

PARTS = ["index", "io", "decode", "copy", "other"]


@pytest.fixture(params=["row", "vector"])
def path(request, make, story, vector_of):
    """A closed store with a compressed and a raw column of frames."""
    frame = {
        "a": Field((3,), "uint8", "lz4", chunk=4, shard=8),
        "b": Field((5000,), "uint8", "raw"),
    }
    if request.param == "row":
        writer = make(frame=frame)
        story.play_every_end(writer)
        writer.close()
        return writer.path
    return vector_of(frame)


@pytest.fixture
def vector_of(make):
    def create(frame):
        writer, no = make("vector.zarr", frame=frame, lanes=3), np.zeros(3, bool)
        row = {key: np.zeros((3, *one.shape), one.dtype) for key, one in frame.items()}
        writer.reset(row)
        for t in range(30):
            row = {key: np.full_like(value, t) for key, value in row.items()}
            writer.step(np.zeros(3, np.int64), [t, 1, 2], row, no, no)
        writer.close()
        return writer.path

    return create


def test_timed_columns_give_what_columns_give(path):
    with mmreplay.open(path) as store:
        lanes = store.live.follow()
        ids = store.ids[::-1].copy()
        for name, column in timed(lanes.columns).items():
            plain = lanes.columns[name]
            if name == "resets":
                continue
            for wanted in (ids, ids[:6].reshape(3, 2), ids[:0]):
                assert np.array_equal(column.take(wanted), plain.take(wanted)), name
            out = np.empty((len(ids), *plain.row_shape), plain.dtype)
            assert column.take(ids, out) is out
            assert np.array_equal(out, plain.take(ids))
            spent = column.io_s + column.decode_s + column.copy_s
            assert 0 < column.copy_s <= spent <= column.spent_s
            assert (column.decode_s > 0) == (name == "frames/a")


def test_a_column_decodes_as_before_once_it_was_timed(path):
    with mmreplay.open(path) as store:
        column = store.live.follow().columns["frames/a"]
        with pytest.raises(CorruptStoreError):
            TimedColumn(column).take(np.array([1 << 30]))
        assert column.decoder is None


def test_a_batch_that_is_timed_is_the_one_that_would_have_been_drawn(path):
    with (
        mmreplay.load(path, n_step=2, seed=3) as data,
        mmreplay.load(path, n_step=2, seed=3) as twin,
    ):
        for _ in range(3):
            batch, seconds = data.sample_times(8)
            check_batch(batch, twin.sample(8))
            assert list(seconds) == PARTS
            assert all(value >= 0 for value in seconds.values())
            assert all(seconds[part] > 0 for part in ("index", "decode", "copy", "other"))
        again, _ = data.sample_times(8, out=batch)
        assert again is batch
        check_batch(again, twin.sample(8))
