"""Vector lanes give, byte for byte, what the same experience gives in lanes of one environment."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmreplay.batches.relabel import STRATEGIES, Relabelling, Task
from mmreplay.batches.sequences import SequenceGatherer
from mmreplay.batches.settings import Settings
from mmreplay.batches.transitions import TransitionGatherer
from mmreplay.episode_index import JoinedIndex, TickIndex
from mmreplay.errors import EmptyBufferError
from mmreplay.ids import LANE_SHIFT
from mmreplay.sampling.trajectories import TrajectorySampler
from mmreplay.sampling.windows import BOUNDARIES, PortionSampler, Windows, WindowSampler
from tests.support.even_draws import even_draws
from tests.support.oracle.checks import check_same
from tests.support.oracle.naive_windows import starts_of
from tests.support.oracle.ticks import PartsColumn, Rows, TicksModel, TicksOnDisk, play


@st.composite
def models(draw):
    """Environments that have stepped together for a while."""
    width = draw(st.sampled_from([1, 2, 3, 7]))
    model = TicksModel(width, draw(st.none() | st.integers(width, 80)))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    rate = draw(st.sampled_from([0.02, 0.1, 0.4, 0.9]))
    for _ in range(draw(st.integers(1, 3))):
        play(model, random, draw(st.integers(0, 70)), rate)
        model.evict(draw(st.sampled_from([0.0, 0.5, 1.0])))
    return model


all_settings = st.builds(
    Settings,
    stack=st.sampled_from([None, 1, 2, 4, 65]),
    n_step=st.sampled_from([1, 2, 3, 6]),
    gamma=st.just(0.5),
    padding=st.sampled_from(["reset", "zero"]),
    stack_axis=st.sampled_from([0, -1]),
    clip_reward=st.sampled_from([None, (-1, 3)]),
)
shapes = st.sampled_from([(), (2,), (1, 2, 3)])


class Schema:
    """What a gatherer asks of a schema, of one frame column and no extras."""

    is_dict = False
    frame_paths = {"frame": "frames"}  # noqa: RUF012
    extra_paths = {}  # noqa: RUF012


def index_of(model, disk):
    index = TickIndex(disk, "lane")
    index.load(model.base, len(model.ticks), model.capacity, disk.starts)
    return index


class Lanes:
    """The index and columns of a model, alone or joined to others, and what they must give."""

    def __init__(self, model, shape=(), *, joined=False):
        self.model = model
        disk = TicksOnDisk(model, shape)
        self.index, self.columns = index_of(model, disk), disk.columns
        self.rows = Rows(model, shape)
        self.lane = 0
        if joined:
            self._join(shape)

    def _join(self, shape):
        """This lane as number 2, behind two of rows, before one of another vector lane."""
        other = TicksModel(3)
        play(other, np.random.default_rng(0), 20, 0.2)
        last = TicksOnDisk(other, shape)
        single = TicksModel(2)
        play(single, np.random.default_rng(1), 30, 0.1)
        rows = Rows(single, shape)
        parts = [(rows.index, [0, 1]), (self.index, [2]), (index_of(other, last), [3])]
        self.index, self.lane = JoinedIndex(parts), 2
        columns = {
            name: [*rows.columns[name].parts, mine.parts[0], last.columns[name].parts[0]]
            for name, mine in self.columns.items()
        }
        columns["frames"] += [self.columns["frames"].parts[1], last.columns["frames"].parts[1]]
        self.columns = {
            name: PartsColumn(parts, mine.row_shape, mine.dtype.name)
            for (name, mine), parts in zip(self.columns.items(), columns.values(), strict=True)
        }

    def cells(self, ids):
        """The cells of ids of this lane; -1 stays."""
        return np.where(ids < 0, -1, ids - (self.lane << LANE_SHIFT))

    def ids(self):
        ids = self.index.ids()
        return ids[ids >> LANE_SHIFT == self.lane]

    def check(self, make, ids):
        """The batch of these ids is that of the rows."""
        cells = self.cells(ids)
        for where, index, columns, wanted in (
            ("ticks", self.index, self.columns, ids),
            ("rows", self.rows.index, self.rows.columns, self.rows.ids(cells)),
        ):
            gatherer = make()
            batch = gatherer.fetch(columns, gatherer.locate(index, wanted))
            if where == "ticks":
                found = batch
        found = dataclasses.replace(found, id=self.rows.ids(self.cells(found.id)))
        for field in dataclasses.fields(batch):
            name = field.name
            check_same(getattr(found, name), getattr(batch, name), name)


lanes = st.builds(Lanes, models(), shapes, joined=st.booleans())


@given(lanes, all_settings)
def test_transitions_are_those_of_lanes_of_one_environment(lane, settings):
    lane.check(lambda: TransitionGatherer(Schema(), settings), lane.ids())


@given(
    lanes,
    all_settings,
    st.builds(
        Windows,
        st.integers(1, 6),
        st.integers(0, 4),
        st.sampled_from(BOUNDARIES),
        st.integers(1, 3),
    ),
)
def test_windows_and_sequences_are_those_of_lanes_of_one_environment(lane, settings, windows):
    kept = [[step.cell for step in steps] for _, steps in lane.model.kept()]
    expected = sorted(starts_of(kept, windows))
    sampler = WindowSampler(windows)
    try:
        every = sampler.every(lane.index)
    except EmptyBufferError:
        every = np.empty(0, np.int64)
    assert np.array_equal(every, np.sort(every))
    ids = every[every >> LANE_SHIFT == lane.lane]
    assert lane.cells(ids).tolist() == expected
    if every.size:
        drawn = sampler.draw(lane.index, even_draws(3 * every.size))
        assert np.sort(drawn).tolist() == every.repeat(3).tolist()
        assert np.sort(sampler.draw(lane.index, even_draws(every.size))).tolist() == every.tolist()
    gatherer = SequenceGatherer(Schema(), settings, windows.length, windows.burn_in)
    lane.check(lambda: gatherer, ids)


@given(lanes, st.integers(1, 9))
def test_whole_episodes_are_drawn_uniformly_and_portions_by_their_length(lane, length):
    whole = [one for one in lane.model.kept() if len(one[1]) == len(one[0].steps)]
    firsts = sorted(steps[0].cell for _, steps in whole)
    sampler = TrajectorySampler()
    index = lane.index
    if lane.lane:  # alone, so that all draws are of this lane
        index = index_of(lane.model, TicksOnDisk(lane.model))
    if not firsts:
        with pytest.raises(EmptyBufferError):
            sampler.draw(index, even_draws(3))
    else:
        drawn = sampler.draw(index, even_draws(2 * len(firsts)))
        assert np.sort(drawn).tolist() == np.repeat(firsts, 2).tolist()
        distinct = sampler.draw_distinct(index, len(firsts), 5)
        assert np.sort(distinct).tolist() == firsts
    portions = PortionSampler(Windows(length))
    weights = {s[0].cell: len(s) for _, s in whole if len(s) >= length}
    if weights:
        total, width = sum(weights.values()), lane.model.width
        draws = even_draws(total)
        drawn = portions.draw(index, np.stack((draws, np.zeros(total))))
        assert np.sort(drawn).tolist() == sorted(np.repeat(*zip(*weights.items(), strict=True)))
        newest = portions.draw(index, np.stack((draws, np.full(total, 1 - 1e-9))))
        assert {*newest.tolist()} == {c + (n - length) * width for c, n in weights.items()}


class Goals(Schema):
    """Achieved and desired goals, both in the frames of this one."""

    is_dict = True
    frame_paths = {"a": "frames", "d": "desired"}  # noqa: RUF012
    extra_paths = {"hindsight": "mark"}  # noqa: RUF012


TASK = Task(
    "frames",
    "desired",
    {},
    "mark",
    lambda achieved, desired, _: (achieved * 3 - desired).reshape(len(achieved), -1)[:, 0],
    lambda achieved, desired, _: (achieved == desired).reshape(len(achieved), -1)[:, 0],
)


@given(lanes, all_settings, st.sampled_from(STRATEGIES), st.integers(0, 99))
def test_goals_are_those_of_lanes_of_one_environment(lane, settings, strategy, seed):
    for columns in (lane.columns, lane.rows.columns):
        columns["desired"] = columns["frames"]
    ids = lane.ids()
    chances, draws = np.random.default_rng(seed).random((2, ids.size))

    def relabelling():
        gatherer = TransitionGatherer(Goals(), settings)
        return _Unmarked(Relabelling(gatherer, TASK, strategy, chances < 0.8, draws))

    lane.check(relabelling, ids)


class _Unmarked:
    """Without the ids of the goals' rows, which differ."""

    def __init__(self, inner):
        self.inner = inner
        self.locate = inner.locate

    def fetch(self, columns, steps):
        batch = self.inner.fetch(columns, steps)
        assert ((batch.extras["hindsight"] != -1) == self.inner._some).all()
        return dataclasses.replace(batch, extras={})
