"""A lane read-only: what it is, and which of its logs is trusted."""

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import FormatError
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.state_page import State
from tests.support.documents import edit
from tests.support.oracle.checks import check_store
from tests.support.oracle.pair import of_writer

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_a_store_of_lanes_is_no_lane(make):
    with pytest.raises(FormatError, match="expected a lane, found a store of lanes"):
        LaneReader(make("many.zarr", n_lanes=1).path)


@pytest.mark.parametrize("name", ["rows", "finals"])
def test_a_root_that_says_more_than_its_arrays_is_refused(closed_lane, name):
    edit(
        closed_lane.path / "zarr.json",
        lambda document: document["attributes"]["mmreplay"].update({name: 1000}),
    )
    with pytest.raises(FormatError, match=f"the root says 1,000 {name}, the arrays"):
        LaneReader(closed_lane.path)


@pytest.fixture(params=[None, 3])
def distrusted(make, kill, request):
    """A lane of 10 rows that are durable and 20 that are not; the state of its finals is lost."""
    pair = of_writer(make(lanes=request.param))
    pair.play(10)
    pair.writer.flush()
    model = pair.model.copy()
    pair.play(20)
    path = pair.writer.path
    kill(pair.writer)
    reader = LaneReader(path)
    assert (reader.head, reader.is_live) == (30, True)
    State(path / "finals" / ".live" / "state", writable=True).distrust()
    return path, model


def test_rows_are_trusted_only_with_their_finals_as_an_opening_for_writing_does(distrusted, make):
    path, model = distrusted
    reader = LaneReader(path)
    assert (reader.head, reader.is_live, reader.rows.untrusted) == (10, False, 20)
    assert reader.poll()
    model.end_session()
    with mmreplay.open(path) as store:
        found = [store.episodes.tolist(), store.transitions(store.ids, 3).next_observation]
    writer = make(append=True)
    assert writer.rows == 10
    writer.close()
    with mmreplay.open(path) as store:
        check_store(store, model)
        assert found[0] == store.episodes.tolist()
        assert np.array_equal(found[1], store.transitions(store.ids, 3).next_observation)
