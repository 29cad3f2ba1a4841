"""Without pyarrow nothing is made, and a message says what to install; see tests/exchange."""

import sys

import pytest

from mmreplay import MissingExtraError, import_dataset
from mmreplay.exchange import lerobot


def test_without_its_library_a_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match="needs pyarrow: pip install"):
        import_dataset("lerobot", tmp_path, tmp_path / "a.zarr")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([480, 640, 3], (480, 640, 3)),
        ([3, 480, 640], (480, 640, 3)),
        ([1, 84, 84], (84, 84, 1)),
        ([84, 84, 1], (84, 84, 1)),
        ([3, 8, 3], (3, 8, 3)),
    ],
)
def test_the_height_of_an_image_stands_first(given, expected):
    assert lerobot._height_first(given) == expected
