"""`episodes_table` for DuckDB and Polars."""

import duckdb
import numpy as np
import polars as pl
import pytest

import mmreplay
from mmreplay import Field, Text

FIELDS = {"task": Text(8), "success": Field((), "int8"), "goal": Field((2,), "float32")}
STARTED = 1_700_000_000 * 10**9


@pytest.fixture
def path(tmp_path):
    path, frame = tmp_path / "s.zarr", np.zeros(1, np.uint8)
    with mmreplay.create(path, Field((1,)), Field((), "int64"), episode=FIELDS) as writer:
        for number, task in enumerate(["lift", "push", "lift", "lägg"]):
            writer.reset(frame, task=task, success=number, goal=[number, 0], started=STARTED)
            for t in range(number + 1):
                writer.step(0, 1.0, frame, terminated=t == number)
    return path


@pytest.fixture(params=["store", "dataset"])
def episodes(request, path):
    opened = mmreplay.open(path) if request.param == "store" else mmreplay.load(path)
    with opened:
        yield opened.episodes_table()


def test_columns(episodes):
    own = ["id", "lane", "env", "length", "return", "terminated", "truncated", "started"]
    assert episodes.column_names == [*own, "task", "success", "goal"]
    assert episodes["task"].to_pylist() == ["lift", "push", "lift", "lägg"]
    assert episodes["goal"].to_pylist()[2] == [2, 0]
    assert episodes["started"][0].as_py().timestamp() == STARTED / 10**9


def test_duckdb_queries_it(episodes):
    query = 'select task, sum("return"), max(success) from episodes group by task order by task'
    assert duckdb.sql(query).fetchall() == [("lift", 4, 2), ("lägg", 4, 3), ("push", 2, 1)]


def test_polars_queries_it(episodes):
    found = pl.from_arrow(episodes).filter(pl.col("success") > 1).sort("success")
    assert found["task"].to_list() == ["lift", "lägg"]
    assert found["length"].to_list() == [3, 4]
