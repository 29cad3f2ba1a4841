"""The file of a tail: its name and its size."""

import numpy as np
import pytest

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import ArraySpec
from mmreplay.storage import tail_file
from tests.support.oracle.handmade_lanes import LZ4, compressed_spec


def test_a_tail_has_a_file_name_of_its_own_whatever_its_key(tmp_path):
    spec = ArraySpec("frames/a.b", (3,), np.dtype("uint8"), 12, 4, LZ4)
    assert tail_file.tail_path(tmp_path, spec) == tmp_path / ".live" / "frames~a.b.tail"


def test_a_tail_is_two_shards_long_and_mapped_for_writing_on_demand(tmp_path):
    spec = compressed_spec(shape=(2,), dtype="int16")
    with pytest.raises(FileNotFoundError):
        tail_file.map_tail(tmp_path, spec)
    path = tail_file.tail_path(tmp_path, spec)
    path.parent.mkdir()
    path.write_bytes(bytes(2 * 12 * 4))
    writing, reading = (
        tail_file.map_tail(tmp_path, spec, writable=True),
        tail_file.map_tail(tmp_path, spec),
    )
    assert writing.shape == (24, 2)
    writing[23] = [5, 6]
    assert reading[23].tolist() == [5, 6]
    assert not reading.flags.writeable
    path.write_bytes(bytes(2 * 12 * 4 - 1))
    with pytest.raises(CorruptStoreError, match="expected 96 bytes, found 95"):
        tail_file.map_tail(tmp_path, spec)
