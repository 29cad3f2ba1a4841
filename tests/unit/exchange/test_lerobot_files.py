"""Options of an export, and what is an image; the files themselves are read in tests/exchange."""

import sys

import pytest

from mmreplay import MissingExtraError, SchemaError, export_dataset
from mmreplay.exchange import lerobot_files
from tests.support.disks.trees import names
from tests.support.played_episodes import play, write


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0}, "fps: expected a whole number of at least 1, found 0"),
        ({"fps": 2.5}, "fps: expected a whole number of at least 1, found 2.5"),
        ({"fps": True}, "fps: expected a whole number of at least 1, found True"),
        ({"task": ""}, "task: expected a text, found ''"),
        ({"task": 3}, "task: expected a text, found 3"),
    ],
)
def test_options_that_are_wrong_leave_nothing_behind(tmp_path, quick_disk, options, message):
    store = write(tmp_path / "a.zarr", play())
    with pytest.raises(SchemaError, match=message):
        export_dataset(store, "lerobot", tmp_path / "out", **options)
    assert names(tmp_path) == ["a.zarr"]


def test_without_its_library_nothing_is_made(tmp_path, quick_disk, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    store = write(tmp_path / "a.zarr", play())
    with pytest.raises(MissingExtraError, match="needs pyarrow"):
        export_dataset(store, "lerobot", tmp_path / "out")
    assert names(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize(
    ("shape", "is_picture"),
    [((8, 6), True), ((8, 6, 1), True), ((8, 6, 3), True), ((4, 8, 6), False), ((6,), False)],
)
def test_what_a_png_can_be(shape, is_picture):
    assert lerobot_files._is_picture(shape) == is_picture
