"""The lanes of a store as they are now: what other threads and writers change under a read."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field


class Interrupted:
    """A gatherer during whose first reading something else happens."""

    def __init__(self, gatherer, meanwhile):
        self.gatherer, self.meanwhile, self.readings = gatherer, meanwhile, 0

    def locate(self, index, ids):
        return self.gatherer.locate(index, ids)

    def fetch(self, columns, spans, out):
        self.readings += 1
        if self.readings == 1:
            self.meanwhile()
        return self.gatherer.fetch(columns, spans, out)


def test_rows_evicted_by_another_thread_during_a_read_are_drawn_again(make, story):
    """Mapped anew by that thread, other rows lie where those were."""
    # Whole pages, mapped side by side; of the other columns no file goes.
    frame, action = Field((64, 64), "uint8", "raw", chunk=4), Field((), "int64", chunk=4096)
    writer = make(frame=frame, action=action, capacity=150)
    story.play(writer, 200)

    def evict():
        for _ in range(6):  # never so far behind that all is loaded again
            story.play(writer, 60, reset=False)
            writer.flush()
            store.refresh()  # as another thread would, in the middle of this read

    with mmreplay.load(writer.path, stack=3) as data:
        store = data.store
        gatherer = Interrupted(store.live.gatherer(data.settings), evict)
        batch = store.live.gather(lambda index: index.ids()[:8], gatherer)
        assert gatherer.readings == 2
        assert batch.id.tolist() == store.ids[:8].tolist()
        rows = (batch.id[:, None] + np.arange(-2, 1)).ravel()
        expected = story.observed(writer.path, writer.schema, rows)
        assert batch.observation.tobytes() == expected.tobytes()


def test_rows_that_the_next_store_at_the_path_does_not_have_are_no_damage(tmp_path):
    path = tmp_path / "s.zarr"
    fields = {"frame": Field((2,)), "action": Field((), "int64", chunk=2)}

    def make(n_rows):
        with mmreplay.create(path, **fields) as writer:
            writer.reset(np.zeros(2, np.uint8))
            for number in range(n_rows):
                writer.step(number, 0.0, np.zeros(2, np.uint8))

    make(9)
    with mmreplay.open(path) as store:
        path.rename(tmp_path / "moved.zarr")
        make(3)
        store.refresh()
        with pytest.raises(IndexError, match="row 8: lane 0 has 3 rows"):
            store.live.read_rows(0, "actions", np.arange(9))
