"""Another store at a path is told from the one that was open there, and lanes that come later are not."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError


def test_a_reader_says_that_another_store_has_its_path_by_now(tmp_path, caplog):
    path = tmp_path / "s.zarr"
    fields = {"frame": Field((2,)), "action": Field((), "int64")}
    mmreplay.create(path, **fields).close()
    with mmreplay.open(path) as store:
        path.rename(tmp_path / "moved.zarr")
        with mmreplay.create(path, **fields) as writer:
            writer.reset(np.zeros(2, np.uint8))
            writer.step(0, 1.0, np.ones(2, np.uint8))
        assert len(store.refresh()) == 1
        assert [one.message for one in caplog.records if "another store" in one.message] == [
            caplog.records[-1].message
        ]
        assert str(path) in caplog.text
        caplog.clear()
        store.refresh()
        assert not caplog.records
        path.rename(tmp_path / "moved too.zarr")
        mmreplay.create(path, Field((3,)), Field((), "int64")).close()
        with pytest.raises(SchemaError, match="another store, with other columns"):
            store.refresh()
