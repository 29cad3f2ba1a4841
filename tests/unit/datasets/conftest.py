"""What the tests of datasets share."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """A closed store of 30 transitions in 5 episodes, to be loaded with settings."""
    frame = np.zeros(3, np.uint8)
    path = tmp_path_factory.mktemp("shared") / "store.zarr"
    fields = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}
    with mmreplay.create(path, **fields, flush_s=0) as writer:
        for row in range(0, 35, 7):
            writer.reset(frame + row)
            for step in range(1, 7):
                writer.step(row, row / 4 + step, frame + row + step, terminated=step == 6)
    return lambda **settings: mmreplay.load(path, **settings)
