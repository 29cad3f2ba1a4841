"""Documents of a lane that are damaged or missing."""

import pytest

from mmreplay import verify
from tests.support.disks.trees import flip
from tests.support.tampering.findings import messages, texts
from tests.support.tampering.forgery import edit


@pytest.mark.parametrize("file", ["zarr.json", "rewards/zarr.json", "checksums/frames/zarr.json"])
def test_a_damaged_document_is_named(lz4_store, file):
    for data in (b"", b"{", b"[]", b"\xff\xfe", b'{"zarr_format": 3}'):
        (lz4_store / file).write_bytes(data)
        assert messages(lz4_store, file)


def test_missing_documents_are_named(lz4_store):
    lost = ("frames", "extras", "extras/log_prob", "checksums", "episodes/starts")
    for folder in lost:
        (lz4_store / folder / "zarr.json").unlink()
    assert sorted(texts(verify(lz4_store))) == sorted(f"{name}/zarr.json: missing" for name in lost)


def test_the_other_columns_are_checked_when_one_has_no_metadata(lz4_store):
    (lz4_store / "actions" / "zarr.json").unlink()
    flip(lz4_store / "rewards" / "c.1", 3)
    assert {one.file for one in verify(lz4_store).findings} == {"actions/zarr.json", "rewards/c.1"}


def test_a_number_of_rows_that_differs_from_the_shapes(lz4_store):
    edit(lz4_store / "zarr.json", lambda d: d["attributes"]["mmreplay"].update(rows=36))
    report = verify(lz4_store)
    assert "frames/zarr.json: shape: expected 36 rows, found 37" in texts(report)
