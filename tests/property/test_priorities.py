"""Priorities against a plain dict of id to priority, whatever happens to the store in between."""

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmreplay import Field, PrioritizedReplayBuffer, ReplayBuffer
from mmreplay.errors import EmptyBufferError
from mmreplay.storage import priority_column
from mmreplay.system import durable_writes, memory_maps
from tests.support.disks.faults import kill
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import MODES, Pair


class Prioritized:
    """A buffer, and the dict that says what its priorities must be."""

    def __init__(self, path, how, seed):
        self.path, self.how, self.seed = path, how, seed
        self.random = np.random.default_rng(seed)
        small = Field((), "uint8", "raw", chunk=8), Field((), "int64", chunk=8)
        self.layout = Layout(*small, capacity=how["capacity"], environments=how["environments"])
        self.known = {}
        self.largest = 1.0
        self.late = 0
        self.out = []
        self.pair = Pair([None], self.layout.model(), self.random)
        self.open(PrioritizedReplayBuffer)

    def open(self, kind):
        given = {"stack": None, "seed": self.seed}
        if kind is PrioritizedReplayBuffer:
            given |= {name: self.how[name] for name in ("variant", "alpha", "epsilon")}
        self.buffer = self.layout.create_buffer(self.path, kind, **given)
        self.pair.reopened(self.buffer)

    # ------------------------------------------------------------ what is done

    def play(self, n, end, mode):
        self.pair.play(n, end, mode)

    def sample(self, n):
        if not len(self.buffer):
            with pytest.raises(EmptyBufferError):
                self.buffer.sample(n)
            return
        batch = self.buffer.sample(n)
        self.follow()
        assert set(batch.id.tolist()) <= self.known.keys()
        found = np.array([self.known[i] for i in batch.id.tolist()])
        if self.how["variant"] == "proportional":
            alpha = self.how["alpha"]
            masses = found**alpha / (np.array(list(self.known.values())) ** alpha).sum()
            weights = (len(self.known) * masses) ** -0.4
            np.testing.assert_allclose(batch.weight, weights / weights.max(), rtol=1e-5)
        self.out.append(batch.id)

    def update(self, which):
        if not self.out:
            return
        ids = self.out.pop(which % len(self.out))
        errors = self.random.normal(size=ids.size) * 10.0 ** self.random.integers(-3, 3)
        self.follow()
        self.buffer.update_priorities(ids, errors)
        given = np.abs(errors) + self.how["epsilon"]
        for i, priority in zip(ids.tolist(), given.tolist(), strict=True):
            if i in self.known:
                self.known[i] = priority
                self.largest = max(self.largest, priority)
            else:
                self.late += 1

    def flush(self):
        self.buffer.flush()

    def reopen(self, how, n):
        """Close or kill, perhaps let a plain buffer go on, and open again."""
        self.follow()
        if how == "flush":
            self.buffer.flush()
        self.end(how)
        if n:
            self.open(ReplayBuffer)
            self.pair.play(n, mode="any")
            self.end(how)
        self.open(PrioritizedReplayBuffer)
        self.late = 0
        # A kill may take back the largest to the last flush; never below what there is.
        found = self.buffer.sampler.largest
        kept = [self.known[i] for i in self.buffer.ids.tolist() if i in self.known]
        if how == "kill":
            assert max(kept, default=0) <= found <= self.largest
        else:
            assert found == self.largest
        self.largest = found

    def end(self, how):
        self.buffer.close() if how == "close" else kill(self.buffer)
        checks.check_verified(self.path)

    # ------------------------------------------------------------ what must hold

    def follow(self):
        """New steps have the largest priority, those that went have none."""
        self.known = {i: self.known.get(i, self.largest) for i in self.buffer.ids.tolist()}

    def check(self):
        checks.check_ids(self.buffer, self.pair.model)
        self.follow()
        ids = self.buffer.ids
        assert self.buffer.priorities(ids).tolist() == [self.known[i] for i in ids.tolist()]
        assert self.buffer.sampler.largest == self.largest
        assert self.buffer.n_late_updates == self.late
        column = self.buffer._column
        assert column.ids(np.flatnonzero(column.values)).tolist() == ids.tolist()
        with_mass = np.flatnonzero(self.buffer.sampler._masses._tree.masses)
        assert with_mass.tolist() == np.flatnonzero(column.values).tolist()


SETTINGS = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from([None, 5, 40, 700]),
        "environments": st.sampled_from([None, None, 1, 3]),
        "variant": st.sampled_from(["proportional", "rank"]),
        "alpha": st.sampled_from([0.6, 1.0]),
        "epsilon": st.sampled_from([1e-6, 0.25]),
    }
)
LENGTHS = st.one_of(st.integers(1, 9), st.sampled_from([60, 600]))
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("play"), LENGTHS, st.sampled_from([0.01, 0.3]), st.sampled_from(MODES)),
        st.tuples(st.just("sample"), st.integers(1, 20)),
        st.tuples(st.just("update"), st.integers(0, 5)),
        st.tuples(st.just("update"), st.integers(0, 5)),
        st.tuples(st.just("flush")),
        st.tuples(
            st.just("reopen"),
            st.sampled_from(["close", "flush", "kill"]),
            st.sampled_from([0, 0, 5, 600]),
        ),
    ),
    max_size=25,
)


@hypothesis.settings(max_examples=by_effort(6, 25, 2_000))
@given(SETTINGS, ACTS, st.integers(0, 99))
def test_priorities_are_those_of_a_dict_by_id(how, acts, seed):
    with pytest.MonkeyPatch.context() as patch, scratch_directory() as folder:
        patch.setattr(durable_writes, "_fsync", lambda descriptor: None)
        patch.setattr(durable_writes, "_fdatasync", lambda descriptor: None)
        patch.setattr(priority_column, "_CHUNK_ROWS", memory_maps.GRANULARITY // 8)
        one = Prioritized(folder / "store.zarr", how, seed)
        try:
            for name, *given in acts:
                getattr(one, name)(*given)
                one.check()
            one.end("close")
        finally:
            kill(one.buffer)
