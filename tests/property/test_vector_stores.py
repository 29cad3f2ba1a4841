"""Random histories of vector stores: what is read is what the same experience in lanes gives."""

import contextlib
import dataclasses
from typing import Any

import hypothesis
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import mmreplay
from mmreplay.errors import EmptyBufferError
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.strategies import gather_settings, layouts
from tests.support.oracle.vector_pair import VectorPair
from tests.support.oracle.vectors import VectorModel
from tests.support.oracle.windows import check_sequences, window_starts


class History:
    """A vector store, the same experience in a store of lanes, and the model of both."""

    def __init__(self, folder, layout, width, seed, settings):
        self.random = np.random.default_rng(seed)
        self.layout = dataclasses.replace(layout, lanes=None)
        if layout.capacity is not None:
            self.layout = dataclasses.replace(self.layout, capacity=max(layout.capacity, width))
        self.settings = settings
        self.width = width
        self.path, self.apart = folder / "vector.zarr", folder / "lanes.zarr"
        self.model = VectorModel(layout.schema, width, self.layout.capacity)
        self.open()
        self.follower = mmreplay.open(self.path)

    def open(self):
        """Make or open both, the vector store as a writer or as a buffer."""
        arguments = self.layout.create_arguments() | {"flush_s": 0}
        if self.random.random() < 0.5:
            buffer = mmreplay.ReplayBuffer(self.path, **arguments, lanes=self.width)
            owner: Any = buffer
            writer = buffer.writer
        else:
            arguments |= {"append": True}
            writer = mmreplay.create(self.path, **arguments, lanes=self.width)
            owner = writer
        self.owner = owner
        whole = dataclasses.replace(self.layout, capacity=None, lanes=self.width)
        self.lanes_writer = whole.create(self.apart, append=True)
        self.pair = VectorPair([writer, self.lanes_writer], self.model, self.random)

    def act(self, n_ticks, end, how):
        self.pair.play(n_ticks, end)
        self.check(self.follower.refresh())
        if how == "flush":
            self.owner.flush()
        elif how == "reset":
            self.pair.reset([int(self.random.integers(self.width))])
        elif how in ("close", "kill"):
            for one in (self.owner, self.lanes_writer):
                one.close() if how == "close" else faults.kill(one)
            self.model.end_session()
            if how == "close":
                checks.check_plain_zarr(self.path)
            with mmreplay.open(self.path) as store:
                self.check(store, ended=how == "close")
            self.open()
            with mmreplay.open(self.path) as store:
                self.check(store)
        self.check(self.follower.refresh())

    def check(self, store, *, ended=True):
        self.model.forget(store.lanes[0].base)
        # Who died has left the episodes that ran as running: who opens the store ends them.
        self.model.check(store, [self.settings], most=60, ended=ended)
        ids = self.model.ids()[-60:]
        with mmreplay.open(self.apart) as lanes:
            found = store.transitions(ids, **self.settings)
            found = dataclasses.replace(found, id=self.model.rows(ids))
            checks.check_batch(found, lanes.transitions(self.model.rows(ids), **self.settings))

    def check_sequences(self, length, burn_in, boundary, stride):
        cells = {
            row: cell for cell, row in zip(self.model.ids().tolist(), self.rows(), strict=True)
        }
        starts = window_starts(self.model.lanes, length, burn_in, boundary, stride)
        order = sorted(cells[one] for one in starts)
        with mmreplay.load(self.path, **self.settings) as data:
            try:
                batches = list(
                    data.sequence_batches(
                        max(len(order), 1),
                        length,
                        burn_in,
                        boundary=boundary,
                        stride=stride,
                        shuffle=False,
                    )
                )
            except EmptyBufferError:
                batches = []
        assert len(batches) == bool(order)
        for batch in batches:
            found = dataclasses.replace(batch, id=self.model.rows(batch.id))
            rows = self.model.rows(np.array(order)).tolist()
            check_sequences(
                found,
                self.model.lanes,
                rows,
                length,
                burn_in,
                begins_are_known=True,
                **self.settings,
            )

    def rows(self):
        return self.model.rows(self.model.ids()).tolist()

    def end(self):
        self.follower.close()
        for one in (self.owner, self.lanes_writer):
            faults.kill(one)


acts = st.lists(
    st.tuples(
        st.sampled_from([1, 3, 12, 40]),
        st.sampled_from([0.02, 0.1, 0.6]),
        st.sampled_from(["flush", "flush", "reset", "close", "kill", "go on"]),
    ),
    min_size=1,
    max_size=6,
)


@hypothesis.settings(max_examples=by_effort(4, 500, 2_000))
@given(
    layouts(),
    st.sampled_from([1, 2, 3, 5]),
    st.integers(0, 1 << 32),
    gather_settings(),
    acts,
    st.sampled_from(["drop", "pad", "shift"]),
    st.integers(1, 3),
)
def test_a_vector_store_gives_what_lanes_of_its_own_give(
    layout, width, seed, settings, script, boundary, stride
):
    with contextlib.ExitStack() as stack:
        history = History(stack.enter_context(scratch_directory()), layout, width, seed, settings)
        stack.callback(history.end)
        for n_ticks, end, how in script:
            history.act(n_ticks, end, how)
        history.check_sequences(3, 2, boundary, stride)
