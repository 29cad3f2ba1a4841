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
from tests.support.oracle.checks import check_verified

FIELDS = {"frame": Field((), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}


class Pair:
    """A buffer, and the dict that says what its priorities must be."""

    def __init__(self, path, how, seed):
        self.path, self.how, self.seed = path, how, seed
        self.random = np.random.default_rng(seed)
        self.known = {}
        self.largest = 1.0
        self.late = 0
        self.out = []
        self.buffer = self.open(PrioritizedReplayBuffer, **FIELDS, capacity=how["capacity"])
        self.running = False

    def open(self, kind, **changes):
        given = {"flush_s": 0, "stack": None, "lanes": self.how["lanes"], "seed": self.seed}
        if kind is PrioritizedReplayBuffer:
            given |= {name: self.how[name] for name in ("variant", "alpha", "epsilon")}
        return kind(self.path, **(given | changes))

    # ------------------------------------------------------------ what is done

    def append(self, n, end):
        lanes = self.how["lanes"]
        shape = () if lanes is None else (lanes,)
        zeros = np.zeros(shape, np.uint8)
        if not self.running or end == "interrupt":
            self.buffer.reset(zeros)
        for step in range(n):
            over = end == "end" and step == n - 1
            if lanes is None:
                self.buffer.step(0, 0.0, zeros, terminated=over)
            else:
                none = np.zeros(shape, bool)
                self.buffer.step(zeros.astype(int), zeros * 1.0, zeros, none | over, none)
        self.running = not (end == "end" and n)

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

    def reopen(self, how, n):
        """Close or kill, perhaps let a plain buffer go on, and open again."""
        self.follow()
        if how == "close":
            self.buffer.close()
        elif how == "flush":
            self.buffer.flush()
        self.end()
        if n:
            self.buffer = self.open(ReplayBuffer)
            self.append(n, "go on")
            if how == "close":
                self.buffer.close()
            self.end()
        changes = {} if how == "kill" else {"capacity": self.how["capacity"] or None}
        self.buffer = self.open(PrioritizedReplayBuffer, **changes)
        self.late = 0
        # A kill may take back the largest to the last flush; never below what there is.
        found = self.buffer.sampler.largest
        kept = [self.known[i] for i in self.buffer.ids.tolist() if i in self.known]
        if how == "kill":
            assert max(kept, default=0) <= found <= self.largest
        else:
            assert found == self.largest
        self.largest = found

    def end(self):
        kill(self.buffer)
        self.running = False
        check_verified(self.path)

    # ------------------------------------------------------------ what must hold

    def follow(self):
        """New rows have the largest priority, those that went have none."""
        ids = self.buffer.ids.tolist()
        self.known = {i: self.known.get(i, self.largest) for i in ids}

    def check(self):
        self.follow()
        ids = self.buffer.ids
        assert self.buffer.priorities(ids).tolist() == [self.known[i] for i in ids.tolist()]
        assert self.buffer.sampler.largest == self.largest
        assert self.buffer.n_late_updates == self.late
        column = self.buffer._column
        assert column.ids(np.flatnonzero(column.values)).tolist() == ids.tolist()
        with_mass = np.flatnonzero(self.buffer.sampler._masses._tree.masses)
        assert with_mass.tolist() == np.flatnonzero(column.values).tolist()


settings = st.fixed_dictionaries(
    {
        "capacity": st.sampled_from([None, 1, 3, 40, 700]),
        "lanes": st.sampled_from([None, None, 3]),
        "variant": st.sampled_from(["proportional", "rank"]),
        "alpha": st.sampled_from([0.6, 1.0]),
        "epsilon": st.sampled_from([1e-6, 0.25]),
    }
).filter(lambda how: how["lanes"] is None or how["capacity"] != 1)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.one_of(st.integers(0, 9), st.sampled_from([60, 600])),
            st.sampled_from(["go on", "go on", "end", "interrupt"]),
        ),
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


@hypothesis.settings(max_examples=by_effort(6, 50, 2_000))
@given(settings, steps, st.integers(0, 99))
def test_priorities_are_those_of_a_dict_by_id(how, script, seed):
    with pytest.MonkeyPatch.context() as patch, scratch_directory() as folder:
        patch.setattr(durable_writes, "_fsync", lambda descriptor: None)
        patch.setattr(durable_writes, "_fdatasync", lambda descriptor: None)
        patch.setattr(priority_column, "_CHUNK_ROWS", memory_maps.GRANULARITY // 8)
        pair = Pair(folder / "store.zarr", how, seed)
        try:
            for step in script:
                if step[0] == "flush":
                    pair.buffer.flush()
                else:
                    getattr(pair, step[0])(*step[1:])
                pair.check()
            pair.buffer.close()
            check_verified(pair.path)
        finally:
            kill(pair.buffer)
