"""Priorities of rows that others write, against a plain dict of id to priority."""

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmreplay
from mmreplay.errors import EmptyBufferError
from mmreplay.storage import priority_column
from mmreplay.system import durable_writes, memory_maps
from tests.support.disks.faults import kill
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.even_draws import EvenGenerator, assert_counts_fit
from tests.support.prioritized import RAW, play, release

WIDTHS = None, 3, None, 2
EPSILON = 1e-6


class Run:
    """Lanes that are written here, a learner that samples them, and what it must find."""

    def __init__(self, path, variant, seed):
        self.path, self.how = path, {"variant": variant, "alpha": 0.7, "epsilon": EPSILON}
        self.random = np.random.default_rng(seed)
        self.writers, self.known, self.largest = {}, {}, 1.0
        self.data = None
        self.out = []

    def writer(self, number):
        if number not in self.writers:
            # Small chunks, so that files are evicted.
            self.writers[number] = mmreplay.create(
                self.path, **RAW, lane=f"actor-{number}", lanes=WIDTHS[number],
                capacity=(None, 900, 40, 1500)[number], flush_s=0,
            )  # fmt: skip
        return self.writers[number]

    def play(self, number, n, end):
        writer = self.writer(number)
        play(_Played(writer), n, end=end, reset=not np.all(writer.running))

    def flush(self, number):
        self.writer(number).flush()

    def end(self, number, how):
        if number in self.writers:
            writer = self.writers.pop(number)
            writer.close() if how == "close" else kill(writer)

    def learner(self, how):
        """A new one, after the old one was closed or killed."""
        if self.data is not None:
            self.follow()
            if how == "close":
                self.data.close()
            else:
                release(self.data._column)
                self.data.store.close()
        self.data = mmreplay.load(self.path, stack=None, prioritized=self.how, seed=3)
        found = self.data.sampler.largest
        kept = [self.known[i] for i in self.data.ids.tolist() if i in self.known]
        assert found == max(kept, default=1.0)  # without the state that may say more
        self.largest = found

    def sample(self, n):
        self.data.refresh()  # as it does once a second
        if not len(self.data):
            with pytest.raises(EmptyBufferError):
                self.data.sample(n)
            return
        batch = self.data.sample(n)
        self.follow()
        assert set(batch.id.tolist()) <= self.known.keys()
        if self.how["variant"] == "proportional":
            every = np.array(list(self.known.values())) ** 0.7
            found = np.array([self.known[i] for i in batch.id.tolist()]) ** 0.7
            weights = (len(self.known) * found / every.sum()) ** -0.4
            np.testing.assert_allclose(batch.weight, weights / weights.max(), rtol=1e-5)
        self.out.append(batch.id)

    def update(self, which):
        if not self.out:
            return
        ids = self.out.pop(which % len(self.out))
        errors = self.random.normal(size=ids.size) * 10.0 ** self.random.integers(-3, 3)
        self.follow()
        late = self.data.n_late_updates
        self.data.update_priorities(ids, errors)
        for i, priority in zip(ids.tolist(), (np.abs(errors) + EPSILON).tolist(), strict=True):
            if i in self.known:
                self.known[i] = priority
                self.largest = max(self.largest, priority)
            else:
                late += 1
        assert self.data.n_late_updates == late

    def follow(self):
        """New steps of all lanes have the largest priority, those that went have none."""
        self.known = {i: self.known.get(i, self.largest) for i in self.data.ids.tolist()}

    def check(self):
        if self.data is None:
            return
        self.follow()
        ids = self.data.ids
        assert self.data.priorities(ids).tolist() == [self.known[i] for i in ids.tolist()]
        assert self.data.sampler.largest == self.largest
        column = self.data._column
        assert column.ids(np.flatnonzero(column.values)).tolist() == ids.tolist()
        masses = self.data.sampler._masses._tree.masses
        assert np.flatnonzero(masses).tolist() == np.flatnonzero(column.values).tolist()

    def finish(self):
        """Draws of all lanes, then everything closed, and what is on the disk."""
        if self.data is None or not len(self.data):
            return
        self.data.refresh()
        self.check()
        ids, self.data.generator = self.data.ids, EvenGenerator()
        drawn = self.data.sample(5000).id
        counts = np.bincount(ids.searchsorted(drawn), minlength=ids.size)
        assert_counts_fit(counts, self.data.probabilities(ids))
        if self.how["variant"] == "proportional":
            masses = np.array(list(self.known.values())) ** 0.7
            np.testing.assert_allclose(self.data.probabilities(ids), masses / masses.sum())


class _Played:
    """What `play` takes."""

    def __init__(self, writer):
        self.writer, self.reset, self.step = writer, writer.reset, writer.step


LANES = st.integers(0, 3)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("play"), LANES, st.sampled_from([1, 3, 40, 700]), st.booleans()),
        st.tuples(st.just("play"), LANES, st.sampled_from([1, 3, 40, 700]), st.booleans()),
        st.tuples(st.just("flush"), LANES),
        st.tuples(st.just("end"), LANES, st.sampled_from(["close", "kill"])),
        st.tuples(st.just("sample"), st.integers(1, 20)),
        st.tuples(st.just("update"), st.integers(0, 5)),
        st.tuples(st.just("sample"), st.integers(1, 20)),
        st.tuples(st.just("update"), st.integers(0, 5)),
        st.tuples(st.just("learner"), st.sampled_from(["close", "kill"])),
    ),
    max_size=25,
)


@hypothesis.settings(max_examples=by_effort(12, 40, 2_000))
@given(st.sampled_from(["proportional", "proportional", "rank"]), ACTS, st.integers(0, 99))
def test_priorities_stay_with_their_ids_in_lanes_that_others_write(variant, acts, seed):
    with pytest.MonkeyPatch.context() as patch, scratch_directory() as folder:
        patch.setattr(durable_writes, "_fsync", lambda descriptor: None)
        patch.setattr(durable_writes, "_fdatasync", lambda descriptor: None)
        patch.setattr(priority_column, "_CHUNK_ROWS", memory_maps.GRANULARITY // 8)
        run = Run(folder / "store.zarr", variant, seed)
        run.play(0, 3, end=False)
        run.learner("close")
        try:
            for name, *given in acts:
                getattr(run, name)(*given)
                run.check()
            run.finish()
            for number in [*run.writers]:
                run.end(number, "close")
            run.check()
            run.data.close()
            assert mmreplay.verify(run.path).findings == []
        finally:
            for number in [*run.writers]:
                run.end(number, "kill")
            release(run.data._column)
            run.data.store.close()
