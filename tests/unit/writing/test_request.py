"""What `create` may be asked for: capacities, and arguments that cannot be."""

import threading

import numpy as np
import pytest

from mmreplay.errors import (
    SchemaError,
)
from tests.support.writers import check

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("capacity", [0, -1, True, 2.5, "5", np.float32(3), [4]])
def test_a_capacity_that_is_no_number_of_transitions_is_refused(make, tmp_path, capacity):
    with pytest.raises(SchemaError, match="capacity: expected a whole number, 1 to"):
        make(capacity=capacity)
    assert list(tmp_path.iterdir()) == []


def test_a_capacity_that_no_lane_could_ever_fill_is_refused(make, tmp_path):
    for capacity in (1 << 40, 10**30):
        with pytest.raises(SchemaError, match=f"1 to {(1 << 40) - 1:,}, or None"):
            make(capacity=capacity)
    assert list(tmp_path.iterdir()) == []
    make(capacity=(1 << 40) - 1).close()
    assert make(append=True).metadata["capacity"] == (1 << 40) - 1


@pytest.mark.parametrize("seconds", [float("inf"), np.float64("inf"), 10**400])
def test_an_infinite_flush_interval_means_no_flush_by_the_clock(make, story, seconds):
    writer = make(flush_s=seconds)
    story.play(writer, 3, "truncated")
    assert writer._background.flush_s == 0
    assert not [one for one in threading.enumerate() if one.name == "mmreplay-flush"]
    writer.close()
    check(story, writer)


@pytest.mark.parametrize("place", ["lane-00002", "lane-00000/more.zarr", "more.zarr"])
def test_no_store_is_made_within_another(make, tmp_path, place):
    make("outer.zarr", n_lanes=2)
    with pytest.raises(SchemaError, match=r"lies within the store .*outer\.zarr"):
        make(f"outer.zarr/{place}")
    assert not (tmp_path / "outer.zarr" / place).exists()
