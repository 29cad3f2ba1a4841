"""A batch: its fields, and that nothing else can change it."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from mmreplay.batches.batch import Batch
from tests.support.oracle.handmade_rows import IDS, SCALARS, Column, Frames, Rows, gathered


def test_a_batch_has_the_fields_of_the_interface():
    rows = Rows(SCALARS, extras={"x": Column(np.arange(24).reshape(12, 2), "float16")})
    batch = gathered(IDS, rows=rows, stack=3)
    assert [one.name for one in dataclasses.fields(Batch)] == [
        "observation", "next_observation", "action", "reward", "discount", "non_terminal", "id",
        "weight", "extras", "terminated", "truncated",
    ]  # fmt: skip
    assert len(batch) == 9
    assert batch.id.tolist() == IDS
    assert batch.id.dtype == np.int64
    assert batch.weight.tolist() == [1] * 9
    assert batch.weight.dtype == np.float32
    assert batch.non_terminal.dtype == np.bool_
    assert batch.terminated.dtype == batch.truncated.dtype == np.bool_
    assert batch.observation.dtype == np.uint8
    assert batch.extras["x"].tolist() == [[2 * row, 2 * row + 1] for row in IDS]
    assert batch.extras["x"].dtype == np.float16
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.reward = batch.discount  # type: ignore[misc]


def test_a_batch_is_shown_by_the_shapes_of_its_arrays():
    rows = Rows(SCALARS, extras={"x": Column(np.arange(24).reshape(12, 2), "float16")})
    batch = dataclasses.replace(gathered(IDS, rows=rows, stack=3), next_observation=None)
    assert repr(batch) == (
        "Batch(observation=uint8[9, 3], next_observation=None, action=int64[9], "
        "reward=float32[9], discount=float32[9], non_terminal=bool[9], id=int64[9], "
        "weight=float32[9], extras['x']=float16[9, 2], terminated=bool[9], truncated=bool[9])"
    )


def test_a_notebook_shows_the_newest_frames_of_a_batch():
    screens = np.arange(12 * 81, dtype=np.uint16).reshape(12, 9, 9).astype(np.uint8)
    batch = gathered(IDS, rows=Rows(Frames(screens, "uint8")), stack=4)
    with Image.open(io.BytesIO(batch._repr_png_())) as found:
        assert np.array_equal(np.asarray(found)[:90:10, :90:10], batch.observation[0, -1])
