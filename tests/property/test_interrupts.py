"""A call that is interrupted in any line, after which all calls equal what a list of everything says.

Invariant: the interrupted call may have taken effect or not; no later call fails or is wrong.
"""

import collections
import contextlib
import itertools
import random

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from tests.support.effort import by_effort
from tests.support.interrupts import interrupted
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Numbers, Pair
from tests.support.oracle.windows import window_starts

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("quick_disk")]

SHARE, TIMES = by_effort(0.03, 0.12, 1), by_effort(1, 1, 4)
"""Of all lines, that are interrupted; and in how many of the times that they run in one call."""
FOLLOWING = ["episode_index/", "sampling/"]
MORE = ["datasets/read_ahead", "reading/joined_lanes", "reading/live_lanes", "storage/priority"]
# Not `system`: in the lines between an `open` and its `try` a descriptor would be lost.
EVERYTHING = ["batches/", "datasets/", "episode_index/", "reading/", "sampling/", "storage/"]
PLACES = by_effort(FOLLOWING, FOLLOWING + MORE, EVERYTHING)
GOALS = {
    "achieved_goal": Field((2,), "float32", "lz4", chunk=2, shard=4),
    "desired_goal": Field((2,), "float32", "raw", chunk=4),
}
LAYOUTS = {
    "two lanes": Layout(GOALS, Field((), "int64", chunk=512), capacity=20, lanes=2),
    "three environments": Layout(GOALS, Field((), "int64", chunk=4), capacity=40, environments=3),
}
WINDOWS = {"length": 3, "boundary": "pad"}
HOW = {"stack": None, "seed": 0}


def reward(achieved_goal, desired_goal, info):
    return np.float32(achieved_goal[:, 0] > desired_goal[:, 0])


def same(batch, generator):
    return batch


def consumed(batches):
    return sum(map(len, batches))


def selected(data):
    some = data.select(episodes=[0, 1], ids=data.ids[1:])
    some.sample(4)
    some.sample_sequences(2, 1)
    return consumed(some.sequence_batches(8, 1))


def split(data):
    for part in data.split(0.5):
        part.sample_sequences(4, 1)
        part.sample(4)


def stated(data):
    with contextlib.closing(data.batches(8)) as batches:  # an interrupt in `__del__` would be lost
        consumed(itertools.islice(batches, 2))
    data.load_state_dict(data.state_dict())
    return consumed(data.batches(8))


CALLS = (
    lambda data: data.sample(8),
    lambda data: data.sample(8, replace=False),
    lambda data: data.sample(8, group=2),
    lambda data: data.sample_sequences(4, **WINDOWS),
    lambda data: data.sample_sequences(2, 2, boundary="cross"),
    lambda data: data.sample_windows(4, {"action": (-1, 1), "observation": 1}),
    lambda data: data.sample_windows(4, {"action": (0, 0)}, "drop"),
    lambda data: data.sample_portions(4, 1),
    lambda data: [one.read() for one in data.sample_trajectories(2)],
    lambda data: consumed(data.batches(8)),
    lambda data: consumed(data.sequence_batches(8, **WINDOWS)),
    lambda data: data.transitions(data.ids[::3]),
    lambda data: data.trajectory(0),
    lambda data: data.episodes,
    lambda data: data.refresh(),
    lambda data: mmreplay.Hindsight(data, reward).sample(8),
    lambda data: mmreplay.Mixture([data, data]).sample(8),
    lambda data: mmreplay.Decorated(data, same).sample_sequences(4, **WINDOWS),
    selected,
    split,
    stated,
)
PRIORITIES = np.arange(1.0, 9.0)
OF_PRIORITIES = (
    lambda data: data.sample(8),
    lambda data: data.update_priorities(data.ids[-8:], PRIORITIES),
    lambda data: data.probabilities(data.ids),
)


class Interrupts:
    """Each line is interrupted once in a test, and each of the first times that a call runs it."""

    def __init__(self):
        self._luck, self._seen = random.Random(0), set()

    def __call__(self, call):
        """Whether a call was interrupted, which it is at the first line that never was before."""
        times = collections.Counter()

        def is_wanted(frame):
            line = frame.f_code, frame.f_lineno
            times[line] += 1
            this = line, times[line]
            if times[line] > TIMES or this in self._seen:
                return False
            self._seen.add(this)
            return self._luck.random() < SHARE

        return interrupted(call, is_wanted, *PLACES)


class Recorded:
    """A store that is recorded on and on, and its model."""

    def __init__(self, layout, writers):
        self.pair = Pair(writers, layout.model(), np.random.default_rng(0), Numbers())
        self.model = self.pair.model
        self.play(70)

    def play(self, n_steps):
        self.pair.play(n_steps, 0.3, "any")

    def check(self, data):
        """Everything that depends on where the rows and the episodes of a dataset are."""
        if not isinstance(data, mmreplay.PrioritizedReplayBuffer):
            # Else a state that was loaded refuses other arguments until its epoch has continued.
            data.load_state_dict({**data.state_dict(), "position": 0})
        checks.forget(data.store, self.model)
        checks.check_ids(data, self.model)
        expected = window_starts(self.model, **WINDOWS)
        batches = [*data.sequence_batches(64, **WINDOWS, shuffle=False)]
        assert [one for batch in batches for one in batch.id[:, 0].tolist()] == expected
        for draw in (lambda: data.sample(8), lambda: data.sample_sequences(4, **WINDOWS)):
            ids = draw().id
            assert {*ids.reshape(len(ids), -1)[:, 0].tolist()} <= {*self.model.ids().tolist()}
        ids = data.ids
        checks.check_batch(data.transitions(ids), self.model.batch(ids, stack=None))
        whole = {self.model.ids_of(lane, one)[0] for lane, one in self.model.episodes()}
        assert {*data.episodes["id"].tolist()} == whole
        assert not whole or {int(one.ids[0]) for one in data.sample_trajectories(4)} <= whole


@contextlib.contextmanager
def recorded(path, name):
    layout = LAYOUTS[name]
    with contextlib.ExitStack() as stack:
        yield Recorded(layout, [stack.enter_context(one) for one in layout.create_lanes(path)])


@pytest.mark.parametrize(("name", "prefetch"), [("two lanes", 0), ("three environments", 2)])
def test_the_first_call_of_a_dataset_may_be_interrupted_in_any_line(tmp_path, name, prefetch):
    interrupt, path = Interrupts(), tmp_path / "s.zarr"
    with recorded(path, name) as one:
        for call in CALLS:
            hit = True
            while hit:
                with mmreplay.load(path, **HOW, prefetch=prefetch) as data:
                    hit = interrupt(lambda call=call, data=data: call(data))
                    if hit:
                        one.check(data)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_call_that_finds_new_rows_may_be_interrupted_in_any_line(tmp_path, name):
    interrupt, path = Interrupts(), tmp_path / "s.zarr"
    with recorded(path, name) as one, mmreplay.load(path, **HOW) as data:
        for call in CALLS:
            hit = True
            while hit:
                one.play(3)
                hit = interrupt(lambda call=call: call(data))
                if hit:
                    one.check(data)
        one.check(data)


@pytest.mark.parametrize("variant", ["proportional", "rank"])
def test_priorities_survive_an_interrupt_in_any_line(tmp_path, variant):
    layout, interrupt = LAYOUTS["three environments"], Interrupts()
    how = {**HOW, "variant": variant, "stratified": True, "alpha": 1.0, "epsilon": 0.0}
    kind = mmreplay.PrioritizedReplayBuffer
    with layout.create_buffer(tmp_path / "s.zarr", kind, **how) as data:
        one = Recorded(layout, data)
        for call in OF_PRIORITIES:
            hit = True
            while hit:
                data.update_priorities(data.ids, np.linspace(1, 7, len(data)))
                one.play(2)
                hit = interrupt(lambda call=call: call(data))
                one.check(data)
                shares = data.probabilities(data.ids)
                assert abs(shares.sum() - 1) < 1e-9
                if variant == "proportional":
                    known = data.priorities(data.ids)
                    assert np.allclose(shares, known / known.sum(), rtol=1e-9)
                # One of each of 256 equal shares of the mass.
                found = np.searchsorted(data.ids, data.sample(256).id)
                counts = np.bincount(found, minlength=len(data))
                assert (np.abs(counts - 256 * shares) < 2).all()
