"""Arrays as bytes for the page."""

import json
import struct

import numpy as np
import pytest

from mmreplay.viewer.documents import pack
from tests.support.packed import unpack

DTYPES = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float32 float64".split()


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_come_back_as_they_were(dtype):
    one, two = np.arange(15).reshape(5, 3).astype(dtype), np.array(7, dtype)
    arrays, about = unpack(pack({"one": one, "two": two}, why="because"))
    assert about == {"why": "because"}
    for found, expected in zip(arrays.values(), (one, two), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(found, expected)


def test_every_array_begins_at_a_multiple_of_eight():
    data = pack({"a": np.ones(3, np.uint8), "b": np.arange(2.0)}, note="ä")
    (length,) = struct.unpack_from("<I", data)
    assert (4 + length) % 8 == 0
    assert json.loads(data[4 : 4 + length])["arrays"] == [
        ["a", "uint8", [3]],
        ["b", "float64", [2]],
    ]
    assert np.frombuffer(data, np.float64, 2, 4 + length + 8).tolist() == [0, 1]


def test_what_browsers_do_not_know_is_sent_as_something_else():
    halves, flags = np.array([0.5, -2], np.float16), np.array([True, False])
    arrays, _ = unpack(pack({"halves": halves, "flags": flags}))
    assert (arrays["halves"].dtype.name, arrays["flags"].dtype.name) == ("float32", "uint8")
    assert (arrays["halves"].tolist(), arrays["flags"].tolist()) == ([0.5, -2], [1, 0])
