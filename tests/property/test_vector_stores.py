"""Random histories of vector stores: what is read is what happened, also as lanes of their own."""

import contextlib
import copy
import dataclasses
import shutil
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmreplay
from mmreplay import Field, Hindsight, PrioritizedReplayBuffer, ReplayBuffer
from mmreplay.batches.relabel import STRATEGIES
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import LANE_SHIFT
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.system import durable_writes
from tests.support.chance import goodness
from tests.support.disks import faults
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.even_draws import EvenGenerator
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout, random_value
from tests.support.oracle.model import LaneModel, Model
from tests.support.oracle.strategies import gather_settings, layouts
from tests.support.oracle.vector_pair import Numbers, VectorPair
from tests.support.oracle.vectors import VectorModel
from tests.support.oracle.windows import check_sequences, window_starts

MODES = ["at once", "next step", "any"]
MOST = 40  # transitions that are compared at once, the oldest and the newest
LARGE = Field((64, 64), "uint8", "raw", 7)  # they lie environment by environment
GOALS = {
    "observation": Field((2,), "uint8", "lz4", 2, 4),
    "achieved_goal": Field((2,), "float32", "raw", 4),
    "desired_goal": Field((2,), "float32", "raw", 4),
}


def reward(achieved, desired, _):
    return (achieved * 3 - desired)[:, 0]


def reached(achieved, desired, _):
    return (achieved[:, 0] % 5 == desired[:, 0] % 5) & (achieved[:, 0] % 2 == 0)


class History:
    """A vector store, the same experience in a store of lanes, and the model of both."""

    def __init__(self, folder, how):
        self.how = how
        self.random = np.random.default_rng(how["seed"])
        layout, self.width = how["layout"], how["width"]
        if how["large"]:
            layout = dataclasses.replace(layout, frame=LARGE)
        if how["goals"]:
            layout = dataclasses.replace(layout, frame=GOALS, reward_dtype="float32")
        capacity = layout.capacity and max(layout.capacity, self.width)
        self.layout = dataclasses.replace(layout, lanes=None, capacity=capacity)
        self.settings = how["settings"]
        self.path, self.apart = folder / "vector.zarr", folder / "lanes.zarr"
        self.model = VectorModel(self.layout.schema, self.width, capacity)
        self.values = Numbers() if how["goals"] or how["numbers"] else random_value
        self.priorities = {}
        self.flushed = (0, 0)
        whole = dataclasses.replace(self.layout, capacity=None, lanes=self.width)
        self.lanes_writer = whole.create(self.apart)
        self.open()
        self.follower = mmreplay.open(self.path)

    def open(self):
        """Make or open the vector store, as a writer or as a buffer."""
        arguments = self.layout.create_arguments() | {"flush_s": 0, "lanes": self.width}
        kind = (mmreplay.create, ReplayBuffer, PrioritizedReplayBuffer)[self.random.integers(3)]
        self.owner: Any
        if kind is mmreplay.create:
            self.owner = writer = kind(self.path, **arguments, append=True)
        else:
            given = {name: one for name, one in self.settings.items() if name != "padding"}
            self.owner = kind(self.path, **arguments, **given)
            writer = self.owner.writer
        self.writer = writer
        self.pair = VectorPair([writer, self.lanes_writer], self.model, self.random, self.values)

    def act(self, n_ticks, end, how):
        long = [0] if self.how["long"] else []
        self.pair.play(n_ticks, end, self.how["mode"], long)
        self.check(self.follower.refresh())
        self.sample()
        if how == "flush":
            base = max(self.model.first - 65, self.model.base)
            self.owner.flush()
            assert self.writer.base == base
            self.flushed = len(self.model.ticks), len(self.model.episodes)
        elif how == "reset":
            self.pair.reset([int(self.random.integers(self.width))])
        elif how == "copy":
            self.copy()
        elif how in ("close", "kill"):
            self.reopen(how)
        self.check(self.follower.refresh())

    def reopen(self, how):
        self.owner.close() if how == "close" else faults.kill(self.owner)
        ends = copy.deepcopy(self.model)
        self.model.end_session()
        if how == "close":
            checks.check_plain_zarr(self.path)
        with mmreplay.open(self.path) as store:
            # Who opens the store to write sets the ends of episodes that ran.
            ends.forget(store.lanes[0].base)
            ends.check_columns(store)
            self.model.forget(store.lanes[0].base)
            self.model.check(store, [self.settings], MOST, ended=how == "close")
        self.open()
        with mmreplay.open(self.path) as store:
            self.check(store)

    def copy(self):
        """A directory that is copied while it is written has what was flushed, and can go on."""
        path = self.path.with_name("copy.zarr")
        with faults.quiet(self.owner):
            shutil.copytree(self.path, path)
        kept = [
            CheckpointFile(path / log / ".live" / "checkpoint", self.writer.metadata["uuid"]).best
            for log in ("ticks", "starts")
        ]
        heads = [one.head for one in kept]
        assert (np.array(heads) >= self.flushed).all()
        model = copy.deepcopy(self.model)
        model.cut(*heads)
        mmreplay.create(path, append=True, flush_s=0).close()
        with mmreplay.open(path) as store:
            model.forget(store.lanes[0].base)
            model.check(store, [self.settings], MOST)
            model.check_columns(store)
        checks.check_verified(path)
        shutil.rmtree(path)

    # ------------------------------------------------------------ what must hold

    def check(self, store):
        self.model.forget(store.lanes[0].base)
        self.model.check(store, [self.settings], MOST)
        self.model.check_columns(store)

    def sample(self):
        """What a buffer draws, beside its writer; and the priorities of every transition."""
        if not isinstance(self.owner, ReplayBuffer):
            return
        self.model.forget(self.writer.base)
        ids = self.model.ids()
        assert self.owner.ids.tolist() == ids.tolist()
        if not ids.size:
            return
        batch = self.owner.sample(9)
        rows, settings = self.model.rows(batch.id), self.settings
        expected = self.model.lanes.batch(rows, **settings | {"padding": self.layout.padding})
        found = dataclasses.replace(batch, id=rows, weight=expected.weight)
        checks.check_batch(found, expected, "sample")
        if isinstance(self.owner, PrioritizedReplayBuffer):
            self.prioritize(ids, batch)

    def prioritize(self, ids, batch):
        how, largest = self.owner.sampler.how, self.owner.sampler.largest
        known = {one: self.priorities.get(one, largest) for one in ids.tolist()}
        found = self.owner.priorities(ids)
        assert found.tolist() == list(known.values())
        masses = found**how.alpha / (found**how.alpha).sum()
        np.testing.assert_allclose(self.owner.probabilities(ids), masses, rtol=1e-9)
        weights = (ids.size * masses[ids.searchsorted(batch.id)]) ** -0.4
        np.testing.assert_allclose(batch.weight, weights / weights.max(), rtol=1e-5)
        errors = self.random.random(batch.id.size) * 3
        self.owner.update_priorities(batch.id, errors)
        given = (errors + how.epsilon).tolist()
        self.priorities = known | dict(zip(batch.id.tolist(), given, strict=True))

    def check_beside_lanes(self):
        """As data of both stores, which has everything twice."""
        cells = self.model.ids()
        rows = self.model.rows(cells)
        some = np.sort(self.random.permutation(cells.size)[:MOST])
        order = self.random.permutation(2 * some.size)
        ids = np.concatenate((cells[some], rows[some] + (1 << LANE_SHIFT)))
        known = np.tile(rows[some], 2)
        with mmreplay.load([self.path, self.apart], **self.settings) as data:
            batch = data.transitions(ids[order])
            assert batch.id.tolist() == ids[order].tolist()
            found = dataclasses.replace(batch, id=known[order])
            expected = self.model.lanes.batch(known[order], **self.settings)
            # Of a live lane of rows nobody knows whether its newest episode ended; see semantics.md.
            lanes = Model(self.model.schema, [])
            for own in self.model.lanes.lanes:
                lanes.lanes.append(LaneModel(self.model.schema))
                lanes.lanes[-1].rows = own.rows
            is_live = data.store.live.readers[1].is_live
            rows_alone = lanes.batch(known[order], **self.settings, live=is_live)
            of_rows = ids[order] >> LANE_SHIFT > 0
            for name in ("terminated", "truncated"):
                getattr(expected, name)[of_rows] = getattr(rows_alone, name)[of_rows]
            checks.check_batch(found, expected, "both")

    def check_windows(self, length, burn_in, boundary, stride):
        cells = self.model.ids()
        of = dict(zip(self.model.rows(cells).tolist(), cells.tolist(), strict=True))
        windows = window_starts(self.model.lanes, length, burn_in, boundary, stride)
        starts = sorted(of[one] for one in windows)
        given = {"boundary": boundary, "stride": stride}
        # Also beside another lane, whose windows are others.
        paths = [self.path] if self.random.random() < 0.5 else [self.path, self.apart]
        with mmreplay.load(paths, **self.settings) as data:
            found: list[int] = []
            with contextlib.suppress(EmptyBufferError):
                for batch in data.sequence_batches(64, length, burn_in, shuffle=False, **given):
                    firsts = batch.id[:, burn_in]
                    here = firsts >> LANE_SHIFT == 0
                    found += firsts[here].tolist()
                    if here.all():
                        self.check_sequences(batch, length, burn_in)
            assert found == starts
        if not starts:
            return
        with mmreplay.load(self.path, **self.settings) as data:
            data.generator = EvenGenerator()
            batch = data.sample_sequences(2 * len(starts), length, burn_in, **given)
            firsts = np.sort(batch.id[:, burn_in])
            assert firsts.tolist() == np.repeat(starts, 2).tolist()
            if len(starts) <= MOST:
                self.check_sequences(batch, length, burn_in)

    def check_sequences(self, batch, length, burn_in):
        found = dataclasses.replace(batch, id=self.model.rows(batch.id))
        starts = found.id[:, burn_in].tolist()
        known = {"begins_are_known": True, **self.settings}
        check_sequences(found, self.model.lanes, starts, length, burn_in, **known)

    def check_draws(self):
        """Each transition, and each whole episode, comes as often as another."""
        ids = self.model.ids()
        with mmreplay.load(self.path, stack=None) as data:
            data.generator = EvenGenerator()
            if ids.size:
                batch = data.sample(2 * ids.size)
                assert np.sort(batch.id).tolist() == np.repeat(ids, 2).tolist()
            firsts = sorted(c[0] for one, c in self.model.kept() if len(c) == one.length)
            if not firsts:
                with pytest.raises(EmptyBufferError):
                    data.sample_trajectories(2)
                return
            distinct = data.sample_trajectories(len(firsts), replace=False)
            assert sorted(int(one.ids[0]) for one in distinct) == firsts
            drawn = data.sample_trajectories(2 * len(firsts))
            assert sorted(int(one.ids[0]) for one in drawn) == np.repeat(firsts, 2).tolist()

    def check_goals(self, strategy, *, terminal):
        """Goals, and what follows from them, are those of the lanes with the same draws.

        Both are closed, so that both know of every end.
        """
        for one in (self.owner, self.lanes_writer):
            one.close()
        self.model.end_session()
        with mmreplay.open(self.path) as store:
            self.model.forget(store.lanes[0].base)
        kept = self.model.kept()
        whole = [c for one, c in kept if strategy != "episode" or len(c) == one.length]
        cells = np.sort(np.concatenate([*whole, []]).astype(np.int64))[-MOST:]
        self.model.ids()
        batches = []
        for path, ids in ((self.path, cells), (self.apart, self.model.rows(cells))):
            with mmreplay.load(path, **self.settings, seed=3) as data:
                hindsight = Hindsight(
                    data, reward, strategy, terminal=reached if terminal else None
                )
                batches.append(hindsight.relabel(ids))
        found, expected = batches
        marks = found.extras["hindsight"].tolist()
        of = {cell: one for one, cells in kept for cell in cells}
        for place, (cell, mark) in enumerate(zip(cells.tolist(), marks, strict=True)):
            one = of[cell]
            if mark >= 0:
                marks[place] = int(self.model.rows(np.array([mark]))[0]) + 1
            elif mark == -2:
                marks[place] = one.env << LANE_SHIFT | one.row
        found.extras["hindsight"][:] = marks
        found = dataclasses.replace(found, id=self.model.rows(found.id))
        checks.check_batch(found, expected, f"goals: {strategy}")

    def end(self):
        self.follower.close()
        for one in (self.owner, self.lanes_writer):
            faults.kill(one)


histories = st.fixed_dictionaries(
    {
        "layout": layouts(),
        "width": st.sampled_from([3, 1, 2, 5]),
        "large": st.sampled_from([False, False, True]),
        "seed": st.integers(0, 1 << 32),
        "mode": st.sampled_from(MODES),
        "settings": gather_settings(),
        "goals": st.sampled_from([False, False, True]),
        "numbers": st.booleans(),  # whether each value is another one
        "long": st.booleans(),  # whether an episode goes on while others end
    }
)
acts = st.lists(
    st.tuples(
        st.sampled_from([12, 1, 3, 40]),
        st.sampled_from([0.02, 0.1, 0.6]),
        st.sampled_from(["flush", "flush", "reset", "close", "kill", "copy", "go on"]),
    ),
    min_size=1,
    max_size=6,
)
windows = st.tuples(
    st.integers(1, 6),
    st.integers(0, 4),
    st.sampled_from(["drop", "pad", "shift"]),
    st.integers(1, 3),
)


OLD_START = {
    "layout": Layout(Field((), "uint8", "raw", 16), Field(()), {}, capacity=20),
    "width": 5,
    "large": False,
    "seed": 0,
    "mode": "at once",
    "settings": {"stack": None, "n_step": 3, "gamma": 0.5, "padding": "reset", "stack_axis": 0},
    "goals": False,
    "numbers": True,
    "long": True,
}
"""An episode that goes on until hundreds of later starts were evicted, but for its own."""


@hypothesis.example(
    OLD_START, [(130, 0.6, "flush"), (3, 0.6, "flush")], (3, 1, "pad", 1), "future", False
)
@hypothesis.settings(max_examples=by_effort(3, 50, 2_000))
@given(histories, acts, windows, st.sampled_from(STRATEGIES), st.booleans())
def test_a_vector_store_gives_what_lanes_of_their_own_give(how, script, window, strategy, terminal):
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("_fsync", "_fdatasync"):
            patch.setattr(durable_writes, name, lambda descriptor: None)
        history = History(stack.enter_context(scratch_directory()), how)
        stack.callback(history.end)
        for n_ticks, end, act in script:
            history.act(n_ticks, end, act)
        history.check_beside_lanes()
        history.check_windows(*window)
        history.check_draws()
        if how["goals"]:
            history.check_goals(strategy, terminal=terminal)


# ---------------------------------------------------------------- chance, and the same again


@pytest.fixture
def buffer(tmp_path, quick_disk):
    """Make or open a vector lane of small frames as a buffer."""
    with contextlib.ExitStack() as stack:

        def opened(name="s.zarr", **changes):
            layout = Layout(Field((), "uint8"), Field(()), {}, capacity=130)
            given = {"lanes": 4, "stack": None, "flush_s": 0, **changes}
            out = ReplayBuffer(tmp_path / name, **layout.create_arguments() | given)
            return stack.enter_context(out)

        yield opened


def played(buffer, seed=0):
    model = VectorModel(buffer.store.schema, 4, buffer.capacity)
    return VectorPair([buffer.writer], model, np.random.default_rng(seed))


@pytest.mark.parametrize("mode", MODES)
def test_draws_are_uniform_while_a_store_grows_and_evicts(buffer, mode):
    buffer = buffer(seed=1)
    pair = played(buffer)
    for _ in range(5):
        pair.play(30, 0.2, mode)
        buffer.flush()
        pair.forget(buffer.writer.base)
        ids, counts = np.unique(buffer.sample(20_000).id, return_counts=True)
        assert ids.tolist() == pair.ids().tolist()
        assert abs(goodness(counts, 20_000 / ids.size)) < 5
        # Portions are of an episode by its length, and anywhere in it.
        whole = [cells for one, cells in pair.kept() if len(cells) == one.length > 1]
        chances = {cell: len(cells) / (len(cells) - 1) for cells in whole for cell in cells[:-1]}
        found, counts = np.unique(buffer.sample_portions(20_000, 2).id[:, 0], return_counts=True)
        assert found.tolist() == sorted(chances)
        expected = np.array([chances[one] for one in sorted(chances)])
        assert abs(goodness(counts, 20_000 * expected / expected.sum())) < 5
    assert pair.base > 0
    assert (len(pair.ids()) < 4 * (len(pair.ticks) - pair.first)) == (mode != "at once")


def test_the_same_seed_gives_the_same_batches_also_after_a_resume(buffer):
    def record(name, *, resumed):
        one = buffer(name, seed=7)
        pair = played(one)
        out = []
        for _ in range(5):
            pair.reset()
            pair.play(25, 0.2, "next step")
            pair.reset()  # so that a resume cuts nothing off
            out += [one.sample(16).id.tolist(), one.sample(9, replace=False).id.tolist()]
            out.append(one.sample_sequences(8, 3, 2, "pad").id.tolist())
            out.append(one.sample_portions(8, 2).id.tolist())
            out.append([trajectory.ids.tolist() for trajectory in one.sample_trajectories(3)])
            if resumed:
                one.close()
                one = buffer(name, seed=99)
                pair.reopened(one.writer)
        return out

    whole = record("a.zarr", resumed=False)
    assert record("b.zarr", resumed=True) == whole
    assert len({str(one) for one in whole}) == len(whole)
