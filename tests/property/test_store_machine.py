"""A store and its model, moved together through everything that can happen to a store.

Invariant: after any sequence of resets, steps, flushes, evictions, closings, reopenings, deaths and
power cuts, every reader sees what the model says, byte for byte, and so are the files.
"""

import contextlib
import dataclasses
import shutil
from typing import Any

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
from tests.support.effort import by_effort
from tests.support.oracle import checks, disk
from tests.support.oracle.layout import random_value
from tests.support.oracle.model import FLAGS
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import DTYPES, episodes, gather_settings, layouts
from tests.support.quiet import quiet

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

    @initialize(layout=layouts(lanes=False), given=gather_settings(), seed=SEEDS, clock=CLOCKS)
    def create(self, layout, given, seed, clock):
        self.layout = layout
        self.settings = {**given, "padding": layout.padding}
        self.random = np.random.default_rng(seed)
        self.model = layout.model()
        self.flushed = 0
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
            disk.check_closed(self.path, self.model)
            checks.check_verified(self.path)
        finally:
            if self.follower is not None:
                self.follower.close()
            self.stack.close()

    @property
    def is_open(self):
        return self.buffer is not None

    @property
    def lane(self):
        return self.model.lanes[0]

    # ------------------------------------------------------------ writing

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def reset(self, data):
        self.pair.reset(data.draw(st.sets(st.integers(0, self.lane.n - 1), min_size=1)))

    @precondition(lambda self: self.is_open and self.lane.running)
    @rule(data=st.data())
    def step(self, data):
        some = st.sets(st.sampled_from(sorted(self.lane.running)))
        self.pair.step(**{name: data.draw(some) for name in FLAGS})

    @precondition(lambda self: self.is_open)
    @rule(
        n_steps=st.integers(1, 60),
        end=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        mode=st.sampled_from(MODES),
    )
    def many_steps(self, n_steps, end, mode):
        self.pair.play(n_steps, end, mode)

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def whole_episode(self, data):
        longest = min(3 * (self.lane.capacity or 20), 150)
        env = data.draw(st.integers(0, self.lane.n - 1))
        self.pair.episode(data.draw(episodes(longest)), env)

    # ------------------------------------------------------------ columns that change

    @precondition(lambda self: len(self.model) > 0)
    @rule(by_other=st.booleans())
    def update(self, by_other):
        if self.is_open and not by_other:
            self.pair.update(self.buffer)
            return
        names = [] if self.is_open and self.buffer.updates._held else [*self.model.schema.derived]
        with mmreplay.load(self.path, stack=None, update=names) as data:
            known = self.pair or Pair(None, self.model, self.random)
            if names:
                known.update(data)

    @precondition(lambda self: not self.is_open and len(self.model) > 0)
    @rule(how=st.sampled_from(["array", "function", "pairs"]), dtype=st.sampled_from(DTYPES))
    def add_or_drop_a_column(self, how, dtype):
        schema, ids = self.model.schema, self.model.ids()
        name, derived = "added", {**schema.derived}
        if name in derived and how != "pairs":
            del derived[name]
            mmreplay.drop_column(self.path, name)
            values = None
        else:
            field = derived[name] = mmreplay.Field((2,), dtype)
            values = np.stack([random_value(field, self.random) for _ in ids])
            source: Any = {"array": values, "pairs": iter([(ids, values)])}.get(how)
            if how == "function":
                by_id = dict(zip(ids.tolist(), values, strict=True))
                source = lambda one: np.stack([by_id[i] for i in one.ids.tolist()])  # noqa: E731
                whole = self.lane.whole_episodes()
                kept = np.isin(ids, [i for one in whole for i in one.entries(self.lane.n)])
                values[~kept] = 0
            n_values = mmreplay.add_column(self.path, name, source, field, replace=True)
            assert n_values == (kept.sum() if how == "function" else ids.size)
        self._take_columns(derived)
        for one, value in zip(ids.tolist(), [] if values is None else values, strict=False):
            self.lane.update(one, name, value)

    def _take_columns(self, derived):
        """The model has these from now on, 0 where a step has none; readers have to open again."""
        old = self.model.schema
        schema = dataclasses.replace(old, derived=derived)
        self.model.schema = self.lane.schema = schema
        for one in self.lane.episodes:
            for number, step in enumerate(one.steps):
                extras = {
                    name: step.extras[name]
                    if name in old.extra_fields and name != "added"
                    else np.zeros(field.shape, field.dtype)
                    for name, field in schema.extra_fields.items()
                }
                one.steps[number] = dataclasses.replace(step, extras=extras)
        self.follower.close()
        self.follower = mmreplay.open(self.path)

    # ------------------------------------------------------------ durability

    @precondition(lambda self: self.is_open)
    @rule()
    def flush(self):
        expected = self.lane.next_base
        self.buffer.flush()
        assert self.buffer.writer.base == expected
        self.flushed = len(self.lane.rows)
        self.lane.forget(expected)

    @precondition(lambda self: self.is_open)
    @rule()
    def look_at_the_files(self):
        with quiet(self.buffer):
            disk.check_disk(self.path, self.lane)

    @precondition(lambda self: self.is_open)
    @rule(capacity=CAPACITIES, given=gather_settings(), named=st.booleans())
    def close_and_reopen(self, capacity, given, named):
        self.close()
        self._reopen(capacity, given, named)

    @precondition(lambda self: self.is_open)
    @rule()
    def close(self):
        expected = self.lane.next_base
        self.buffer.close()
        self._closed()
        disk.check_closed(self.path, self.model)
        with mmreplay.open(self.path) as store:
            checks.forget(store, self.model)
        assert self.lane.base == expected

    def _closed(self):
        self.buffer = self.pair = None
        self.model.end_session()
        self.flushed = len(self.lane.rows)
        self.out = {}

    @precondition(lambda self: not self.is_open)
    @rule(capacity=CAPACITIES, given=gather_settings(), named=st.booleans())
    def reopen(self, capacity, given, named):
        self._reopen(capacity, given, named)

    def _reopen(self, capacity, given, named):
        if capacity is not None:
            self.lane.capacity = capacity = max(capacity, self.lane.n)
        self.settings = given
        fields = {"frame": self.layout.frame, "action": self.layout.action} if named else {}
        self.buffer = mmreplay.ReplayBuffer(
            self.path, capacity, **given, **fields, seed=0, flush_s=self.clock
        )
        self.pair = Pair(self.buffer, self.model, self.random)

    @precondition(lambda self: self.is_open)
    @rule(capacity=CAPACITIES, given=gather_settings(), look=st.booleans())
    def die_and_recover(self, capacity, given, look):
        faults.kill(self.buffer)
        self.buffer = self.pair = None
        self.out = {}
        with mmreplay.open(self.path) as store:
            if look:  # nobody knows yet that the episodes that run are over
                checks.check_store(store, self.model, most=20)
                checks.check_verified(self.path)
                self.follower.refresh()
                checks.check_ids(self.follower, self.model)
            checks.forget(store, self.model)
        self.model.end_session()
        self._reopen(capacity, given, named=False)

    @precondition(lambda self: self.is_open)
    @rule(go_on=st.booleans(), look=st.booleans(), given=gather_settings())
    def lose_power(self, go_on, look, given):
        """A copy of the directory is a store that nobody trusts past its last checkpoint."""
        self.n_paths += 1
        path = self.folder / f"after-{self.n_paths}.zarr"
        with quiet(self.buffer):
            shutil.copytree(self.path, path)
        model = self.model.copy()
        if look:
            with mmreplay.open(path) as store:
                self._cut(model, store)
                checks.check_store(store, model, settings=[given], most=20)
            checks.check_verified(path)
        with mmreplay.ReplayBuffer(path, stack=1, flush_s=0) as buffer:
            self._cut(model, buffer.store)
            pair = Pair(buffer, model, self.random)
            checks.check_ids(buffer, model)
            pair.play(7, mode="any")
            checks.check_store(buffer.store, model, settings=[given], most=20)
        model.end_session()
        disk.check_closed(path, model)
        if not go_on:
            with mmreplay.open(path) as store:
                checks.check_store(store, model, settings=[given], most=20)
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
        """Take the head of a recovered store: nothing that was flushed may be missing."""
        (view,), (lane,) = store.lanes, model.lanes
        assert self.flushed <= view.rows <= len(lane.rows)
        lane.cut(view.rows)
        checks.forget(store, model)

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
        checks.check_batch(batch, self.model.batch(batch.id, **self.settings), "sample")

    @rule(
        given=gather_settings(),
        reader=st.sampled_from(["new", "follower", "late follower", "buffer"]),
    )
    def read(self, given, reader):
        if reader == "new":
            with mmreplay.open(self.path) as store:
                checks.check_store(store, self.model, settings=[given], most=40)
                checks.check_info(store, self.model)
                self._check_refused(store)
        elif reader == "follower":
            self.follower.refresh()
            checks.check_store(self.follower, self.model, settings=[given], most=30)
        elif reader == "late follower":
            self._check_late(given)
        elif self.is_open:
            ids = self._some_ids(40)
            batch = self.buffer.transitions(ids, **given)
            checks.check_batch(batch, self.model.batch(ids, **given), "transitions")

    def _check_late(self, given):
        """Without refresh, a closed store that was opened again is still what it was."""
        ids = self.follower.ids[-20:]
        # More steps than it knows may have come to its newest rows since.
        given = {**given, "n_step": 1}
        try:
            batch = self.follower.transitions(ids, **given)
        except LookupError:
            assert self.lane.capacity is not None or self.lane.base
            return
        expected = self.model.batch(ids, **given)
        # Nor does it know which of the episodes in its newest row were over since.
        unknown = ~(batch.terminated | batch.truncated)
        for name in ("terminated", "truncated"):
            getattr(expected, name)[unknown & (ids // self.lane.n == ids[-1:] // self.lane.n)] = (
                False
            )
        checks.check_batch(batch, expected, "late follower")

    @rule()
    def verify(self):
        checks.check_verified(self.path)

    def _check_refused(self, store):
        """Ids beside valid ones: entries left out, past the newest, the evicted, other lanes."""
        valid, n = set(self.model.ids().tolist()), self.lane.n
        near = (-1, 1, 2, n, -n, 1 << 40, -(1 << 40))
        some = {one + d for one in [*list(valid)[:5], *sorted(valid)[-3:], 0] for d in near}
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


StoreMachine.TestCase.settings = settings(
    stateful_step_count=by_effort(15, 20, 40), max_examples=by_effort(3, 15, 2_000)
)
TestStore = StoreMachine.TestCase
