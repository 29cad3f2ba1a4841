"""Files of arrays, written in pieces: numpy reads them."""

import numpy as np
import pytest

from mmreplay.exchange.npy_files import NpyFiles, zip_members

SHAPES = {"a": ((4, 2), np.dtype("float32")), "b/c": ((0,), np.dtype("int64"))}


def write(folder):
    rows = np.arange(8, dtype="float32").reshape(4, 2)
    with NpyFiles(folder, SHAPES) as files:
        files.append("a", rows[:3])
        files.append("a", rows[3:])
        files.append("b/c", np.empty(0, np.int64))
    return rows


def test_pieces_make_one_array(tmp_path):
    rows = write(tmp_path / "out")
    assert np.array_equal(np.load(tmp_path / "out" / "a.npy"), rows)
    assert np.load(tmp_path / "out" / "b" / "c.npy").shape == (0,)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_zip_of_them_is_an_npz_and_the_folder_is_gone(tmp_path, compressed):
    rows = write(tmp_path / "out")
    zip_members(tmp_path / "out", tmp_path / "out.npz", compressed=compressed)
    with np.load(tmp_path / "out.npz") as found:
        assert sorted(found.files) == ["a", "b/c"]
        assert np.array_equal(found["a"], rows)
    assert not (tmp_path / "out").exists()


def test_fewer_rows_than_were_promised_are_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="rows written"), NpyFiles(tmp_path, SHAPES) as files:
        files.append("a", np.zeros((1, 2), np.float32))
