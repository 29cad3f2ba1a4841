"""What `create` may be asked for: capacities, and arguments that cannot be."""

import threading

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import (
    SchemaError,
)
from tests.support.writers import ACTION, FRAME, attributes, check

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


def test_a_capacity_may_be_a_numpy_integer(make):
    assert attributes(make(capacity=np.int64(5)).path)["capacity"] == 5


# ---------------------------------------------------------------- arguments that cannot be


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": [1]}, "metadata: expected a dict, found list"),
        ({"metadata": "words"}, "metadata: expected a dict, found str"),
        ({"flush_s": "3"}, "flush_s: expected seconds, 0 for never; found '3'"),
        ({"flush_s": None}, "flush_s: expected seconds"),
        ({"flush_s": float("nan")}, "flush_s: expected seconds, 0 for never; found nan"),
        ({"flush_s": -1}, "flush_s: expected seconds"),
        ({"flush_s": np.float32("-inf")}, "flush_s: expected seconds"),
        ({"codec": 5}, "codec: expected 'raw', 'lz4', 'zstd', a name with a level"),
    ],
)
def test_an_invalid_argument_is_refused_before_anything_is_made(tmp_path, given, message):
    with pytest.raises(SchemaError, match=message):
        mmreplay.create(tmp_path / "store.zarr", **{"frame": FRAME, "action": ACTION} | given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", [float("inf"), np.float64("inf"), 10**400])
def test_an_infinite_flush_interval_means_no_flush_by_the_clock(make, story, seconds):
    writer = make(flush_s=seconds)
    story.play(writer, 3, "truncated")
    assert writer._background.flush_s == 0
    assert not [one for one in threading.enumerate() if one.name == "mmreplay-flush"]
    writer.close()
    check(story, writer)


@pytest.mark.parametrize("seconds", [np.float32(0.5), np.int64(2), 3, 4.5])
def test_seconds_are_any_number(make, seconds):
    assert make(flush_s=seconds)._background.flush_s == seconds


@pytest.mark.parametrize("place", ["lane-00002", "lane-00000/more.zarr", "more.zarr"])
def test_no_store_is_made_within_another(make, tmp_path, place):
    make("outer.zarr", n_lanes=2)
    with pytest.raises(SchemaError, match=r"lies within the store .*outer\.zarr"):
        make(f"outer.zarr/{place}")
    assert not (tmp_path / "outer.zarr" / place).exists()
