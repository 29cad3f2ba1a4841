"""The lane of one environment: what it is told from, and the index of its episodes' starts."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.reading.lane_reader import LaneReader
from tests.support.documents import drop_copy, edit

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_a_store_of_lanes_is_no_lane(make):
    with pytest.raises(FormatError, match="expected a lane, found a store of lanes"):
        LaneReader(make("many.zarr", n_lanes=1).path)


def starts_of(path, values):
    spec = json.loads((path / "episodes" / "starts" / "zarr.json").read_bytes())
    rows = spec["chunk_grid"]["configuration"]["chunk_shape"][0]
    data = np.array(values, "<i8").tobytes().ljust(8 * rows, b"\0")
    (path / "episodes" / "starts" / "c.0").write_bytes(data)


@pytest.mark.parametrize("values", [[13, 0], [0, 0], [-1, 13], [0, 21], [1 << 62, 3]])
def test_an_invalid_index_of_episodes_is_refused(closed_lane, values):
    starts_of(closed_lane.path, values)
    with pytest.raises(CorruptStoreError, match=r"expected ascending rows in \[0, 21\)"):
        mmreplay.open(closed_lane.path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d.update(data_type="int32"), "expected raw int64"),
        (lambda d: d["shape"].__setitem__(0, 22), "expected at most 21 episodes, found 22"),
        (lambda d: d["shape"].__setitem__(0, (1 << 40) - 1), "expected at most 21 episodes"),
        (lambda d: d["shape"].append(2), "whole rows"),
    ],
)
def test_an_index_of_another_kind_is_refused(closed_lane, change, match):
    edit(closed_lane.path / "episodes" / "starts" / "zarr.json", change)
    with pytest.raises(FormatError, match=match):
        mmreplay.open(closed_lane.path)


def test_an_index_that_is_missing_is_named(closed_lane):
    drop_copy(closed_lane.path)
    (closed_lane.path / "episodes" / "starts" / "zarr.json").unlink()
    with pytest.raises(FormatError, match="a closed lane has its index"):
        mmreplay.open(closed_lane.path)
