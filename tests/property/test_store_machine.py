"""A store and its model, moved together through everything that can happen to a store.

Invariant: after any sequence of resets, steps, flushes, evictions, closings, reopenings, deaths and
power cuts, every reader sees what the model says, byte for byte.
"""

import contextlib
import shutil

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import mmreplay
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.model import Model
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import episodes, gather_settings, layouts

CAPACITIES = st.sampled_from([None, None, 1, 2, 7, 30, 90, 200])
SEEDS = st.integers(0, 2**32 - 1)
CLOCKS = st.sampled_from([0, 0, 0.002])  # seconds between flushes in the background


class StoreMachine(RuleBasedStateMachine):
    """One directory, at most one writer, one reader that stays open all the time."""

    def __init__(self):
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = self.stack.enter_context(scratch_directory())
        self.buffer = None
        self.pair = None
        self.follower = None
        self.out = {}
        self.n_paths = 0

    @initialize(layout=layouts(one_lane=True), given=gather_settings(), seed=SEEDS, clock=CLOCKS)
    def create(self, layout, given, seed, clock):
        self.layout = layout
        self.settings = {**given, "padding": layout.padding}
        self.random = np.random.default_rng(seed)
        self.model = layout.model()
        self.flushed = [0] * len(self.model.lanes)
        self.path = self.folder / "store.zarr"
        self.buffer = layout.create_buffer(
            self.path, mmreplay.ReplayBuffer, **self.settings, seed=seed, flush_s=clock
        )
        self.clock = clock
        self.pair = Pair(self.buffer, self.model, self.random)
        self.follower = mmreplay.open(self.path)

    def teardown(self):
        try:
            if self.buffer is not None:
                self.close()
            checks.check_plain_zarr(self.path)
            checks.check_verified(self.path)
        finally:
            if self.follower is not None:
                self.follower.close()
            self.stack.close()

    @property
    def is_open(self):
        return self.buffer is not None

    # ------------------------------------------------------------ writing

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def reset(self, data):
        lanes = data.draw(st.sets(st.integers(0, len(self.model.lanes) - 1), min_size=1))
        self.pair.reset(sorted(lanes))

    @precondition(lambda self: self.is_open and self.pair.running)
    @rule(data=st.data())
    def step(self, data):
        lanes = data.draw(st.sets(st.sampled_from(self.pair.running), min_size=1))
        flags = st.fixed_dictionaries(
            {name: st.booleans() for name in ("terminated", "truncated", "life_lost")}
        )
        self.pair.step({lane: data.draw(flags) for lane in sorted(lanes)})

    @precondition(lambda self: self.is_open)
    @rule(n_steps=st.integers(1, 60), end=st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    def many_steps(self, n_steps, end):
        self.pair.together(n_steps, end)

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def whole_episode(self, data):
        lane = data.draw(st.integers(0, len(self.model.lanes) - 1))
        longest = min(3 * (self.model.lanes[lane].capacity or 20), 150)
        self.pair.episode(data.draw(episodes(longest)), lane)

    @precondition(lambda self: self.is_open)
    @rule()
    def wrong_calls_change_nothing(self):
        model, schema = self.model, self.model.schema
        lane = self.buffer.writer
        first = next(iter(schema.frames.values()))
        wrong = np.zeros((*first.shape, 2), first.dtype)
        frame = dict.fromkeys(schema.frames, wrong) if schema.is_dict else wrong
        before = lane.rows
        with pytest.raises(mmreplay.SchemaError):
            lane.reset(frame)
        action = np.ones(schema.action.shape, schema.action.dtype)
        extras = {name: np.ones(one.shape, one.dtype) for name, one in schema.extras.items()}
        with pytest.raises(mmreplay.SchemaError):
            lane.step(action, 0.0, frame, **extras)
        right = self.pair._frame()
        if not model.lanes[0].running:
            with pytest.raises(mmreplay.SchemaError, match="reset"):
                lane.step(action, 0.0, right, **extras)
        for bad in (
            {"action": np.zeros((*schema.action.shape, 3), schema.action.dtype)},
            {"reward": "much"},
            {"nonsense": 1.0},
        ):
            arguments = {"action": action, "reward": 7.0, "next_frame": right} | extras | bad
            with pytest.raises(mmreplay.SchemaError):
                lane.step(**arguments, life_lost=True)
        assert lane.rows == before

    # ------------------------------------------------------------ durability

    @precondition(lambda self: self.is_open)
    @rule()
    def flush(self):
        self.buffer.flush()
        self.flushed = [len(lane.rows) for lane in self.model.lanes]
        self._learn_base(exactly=True)

    def _learn_base(self, *, exactly):
        with mmreplay.open(self.path) as store:
            for view, lane in zip(store.lanes, self.model.lanes, strict=True):
                if exactly:
                    checks.check_disk(view, lane)
                assert lane.base <= view.base <= lane.base_bounds()[1]
                lane.forget(view.base)

    @precondition(lambda self: self.is_open)
    @rule(capacity=CAPACITIES, given=gather_settings(), named=st.booleans())
    def close_and_reopen(self, capacity, given, named):
        self.close()
        self._reopen(capacity, given, named)

    @precondition(lambda self: self.is_open)
    @rule()
    def close(self):
        self.buffer.close()
        self._closed()

    def _closed(self):
        self.buffer = self.pair = None
        for lane in self.model.lanes:
            lane.end_session()
        self.flushed = [len(lane.rows) for lane in self.model.lanes]
        self.out = {}
        self._learn_base(exactly=True)
        assert not any((lane / ".live").exists() for lane in self._lane_paths())

    @precondition(lambda self: not self.is_open)
    @rule(capacity=CAPACITIES, given=gather_settings(), named=st.booleans())
    def reopen(self, capacity, given, named):
        self._reopen(capacity, given, named)

    def _reopen(self, capacity, given, named):
        lanes = len(self.model.lanes)
        if capacity is not None:
            capacity = max(capacity, lanes)
            for lane, share in zip(self.model.lanes, Model.split(capacity, lanes), strict=True):
                lane.capacity = share
        self.settings = given
        fields = {"frame": self.layout.frame, "action": self.layout.action} if named else {}
        self.buffer = mmreplay.ReplayBuffer(
            self.path, capacity, **given, **fields, seed=0, flush_s=self.clock
        )
        self.pair = Pair(self.buffer, self.model, self.random)
        assert not self.pair.running

    @precondition(lambda self: self.is_open)
    @rule(capacity=CAPACITIES, given=gather_settings(), look=st.booleans())
    def die_and_recover(self, capacity, given, look):
        faults.kill(self.buffer)
        self.buffer = self.pair = None
        self.out = {}
        if look:
            with mmreplay.open(self.path) as store:
                checks.check_store(store, self.model, live=True, most=20)
            checks.check_verified(self.path)
            self.follower.refresh()
            checks.check_ids(self.follower, self.model)
        for lane in self.model.lanes:
            lane.end_session()
        self._learn_base(exactly=False)
        self._reopen(capacity, given, named=False)

    @precondition(lambda self: self.is_open)
    @rule(go_on=st.booleans(), look=st.booleans(), given=gather_settings())
    def lose_power(self, go_on, look, given):
        """A copy of the directory is a store that nobody trusts past its last checkpoint."""
        self.n_paths += 1
        path = self.folder / f"after-{self.n_paths}.zarr"
        with faults.quiet(self.buffer):
            shutil.copytree(self.path, path)
        model = self.model.copy()
        if look:
            with mmreplay.open(path) as store:
                self._cut(model, store)
                checks.check_store(store, model, live=False, settings=[given], most=20)
            checks.check_verified(path)
        with mmreplay.ReplayBuffer(path, stack=1, flush_s=0) as buffer:
            self._cut(model, buffer.store)
            pair = Pair(buffer, model, self.random)
            checks.check_ids(buffer, model)
            pair.together(7)
            checks.check_store(buffer.store, model, live=True, settings=[given], most=20)
        for lane in model.lanes:
            lane.end_session()
        if not go_on:
            with mmreplay.open(path) as store:
                checks.check_store(store, model, live=False, settings=[given], most=20)
            checks.check_plain_zarr(path)
            checks.check_verified(path)
            shutil.rmtree(path)
            return
        faults.kill(self.buffer)
        self.follower.close()
        shutil.rmtree(self.path)
        self.path, self.model = path, model
        self.follower = mmreplay.open(path)
        self._closed()

    def _cut(self, model, store):
        """Take the heads of a recovered store: nothing that was flushed may be missing."""
        for view, lane, flushed in zip(store.lanes, model.lanes, self.flushed, strict=True):
            assert flushed <= view.rows <= len(lane.rows)
            lane.cut(view.rows)
            assert lane.base <= view.base <= lane.base_bounds()[1]
            lane.forget(view.base)

    def _lane_paths(self):
        several = sorted(self.path.glob("lane-*"))
        return several or [self.path]

    # ------------------------------------------------------------ reading

    @precondition(lambda self: self.is_open)
    @rule(size=st.sampled_from([1, 2, 5, 32, 70]), again=st.booleans())
    def sample(self, size, again):
        if not len(self.model):
            with pytest.raises(mmreplay.EmptyBufferError):
                self.buffer.sample(size)
            return
        out = self.out.get(size) if again else None
        batch = self.buffer.sample(size, out=out)
        assert out is None or batch is out
        self.out[size] = batch
        assert np.isin(batch.id, self.model.ids()).all()
        expected = self.model.batch(batch.id, **self.settings, live=True)
        checks.check_batch(batch, expected, "sample")

    @rule(
        given=gather_settings(),
        reader=st.sampled_from(["new", "follower", "late follower", "buffer"]),
    )
    def read(self, given, reader):
        if reader == "new":
            with mmreplay.open(self.path) as store:
                checks.check_store(store, self.model, live=self.is_open, settings=[given], most=40)
                self._check_refused(store)
        elif reader == "follower":
            self.follower.refresh()
            checks.check_store(
                self.follower, self.model, live=self.is_open, settings=[given], most=30
            )
        elif reader == "late follower":
            self._check_late(given)
        elif self.is_open:
            ids = self._some_ids(40)
            batch = self.buffer.transitions(ids, **given)
            expected = self.model.batch(ids, **given, live=True)
            checks.check_batch(batch, expected, "transitions")

    def _check_late(self, given):
        """Without refresh, a closed store that was opened again is still what it was."""
        ids = self.follower.ids[-20:]
        rows = [(int(one) >> 40, int(one) & ((1 << 40) - 1)) for one in ids]
        assert all(self.model.lanes[lane].is_transition(row) for lane, row in rows)
        # More steps than it knows may have come to its newest rows since.
        given = {**given, "n_step": 1}
        try:
            batch = self.follower.transitions(ids, **given)
        except LookupError:
            assert any(lane.capacity is not None or lane.base for lane in self.model.lanes)
            return
        expected = self.model.batch(ids, **given)
        # Nor does it know whether the newest episode of a lane was cut off since.
        newest = np.append(np.diff(ids >> 40) != 0, np.ones(min(ids.size, 1), np.bool_))
        expected.truncated[newest & ~batch.truncated] = False
        checks.check_batch(batch, expected, "late follower")

    @rule()
    def verify(self):
        checks.check_verified(self.path)

    def _check_refused(self, store):
        """Ids beside valid ones: final rows, the newest, the evicted, other lanes."""
        valid = set(self.model.ids().tolist())
        some = {one + d for one in [*list(valid)[:5], 0] for d in (-1, 1, 2, 1 << 40, -(1 << 40))}
        for one in sorted(some - valid)[:12]:
            with pytest.raises(LookupError, match=str(one)):
                store.transitions([one])

    def _some_ids(self, most):
        ids = self.model.ids()
        if ids.size <= most:
            return self.random.permutation(ids)
        chosen = self.random.choice(ids, most - 4)
        return np.concatenate((ids[:2], chosen, ids[-2:]))

    @invariant()
    def ids_agree(self):
        if self.is_open:
            checks.check_ids(self.buffer, self.model)


pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
StoreMachine.TestCase.settings = settings(
    stateful_step_count=by_effort(20, 20, 40), max_examples=by_effort(4, 60, 2_000)
)
TestStore = StoreMachine.TestCase
