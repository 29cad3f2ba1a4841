"""Columns are read in order, a block at a time; damaged files and pickles are refused."""

import io

import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.columns import NpyColumn


def npy(array, **settings):
    stream = io.BytesIO()
    np.save(stream, array, **settings)
    return stream.getvalue()


def column(data):
    return NpyColumn(io.BytesIO(data), "x.npy")


def test_an_array_comes_back_in_pieces():
    array = np.random.default_rng(0).standard_normal((10, 3)).astype(">f4")
    read = column(npy(array))
    assert (read.shape, read.dtype) == ((10, 3), np.dtype(">f4"))
    parts = [read.read(start, start + 5) for start in (0, 5)]
    assert np.array_equal(np.concatenate(parts), array)
    assert parts[0].dtype == np.dtype("float32")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(np.array([{}], object), allow_pickle=True), "a pickle of Python objects"),
        (b"not an array at all", "not an array in numpy's format"),
        (npy(np.asfortranarray(np.ones((3, 4)))), "Fortran order"),
        (b"", "not an array in numpy's format"),
    ],
)
def test_what_is_no_plain_array_is_refused(data, message):
    with pytest.raises(FormatError, match=f"x.npy: .*{message}"):
        column(data)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "  a\n b\n",
        "-" * 9000 + "1",
        "{[]: 1}",
        "'" * 3,
    ],
)
def test_a_header_that_is_damaged_is_refused(header):
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    with pytest.raises(FormatError, match=r"x.npy: not an array in numpy's format: "):
        column(data)
