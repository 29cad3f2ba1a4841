"""Without pyarrow nothing is made, and a message says what to install; see tests/exchange."""

import sys

import pytest

from mmreplay import MissingExtraError, SchemaError, export_dataset, import_dataset
from tests.support.disks.trees import names
from tests.support.played_episodes import play, write


def test_without_its_library_nothing_is_made(tmp_path, quick_disk, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    store = write(tmp_path / "a.zarr", play())
    (tmp_path / "a.parquet").touch()
    with pytest.raises(MissingExtraError, match=r"pyarrow: pip install .mmreplay\[exchange\]"):
        export_dataset(store, "parquet", tmp_path / "b.parquet")
    with pytest.raises(MissingExtraError, match="needs pyarrow"):
        import_dataset("parquet", tmp_path / "a.parquet", tmp_path / "b.zarr")
    assert names(tmp_path) == ["a.parquet", "a.zarr"]


@pytest.mark.parametrize("compression", ["foo", 9, None, [1]])
def test_a_compression_that_there_is_not(tmp_path, quick_disk, compression):
    store = write(tmp_path / "a.zarr", play())
    with pytest.raises(
        SchemaError, match="compression: expected one of zstd, snappy, gzip, brotli, lz4, none, fou"
    ):
        export_dataset(store, "parquet", tmp_path / "b.parquet", compression=compression)
    assert names(tmp_path) == ["a.zarr"]
