"""Everything that a store gives equals what a list of everything says, byte for byte."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.layout import Episode, Layout
from tests.support.oracle.pair import Pair
from tests.support.oracle.strategies import episodes, gather_settings, layouts

pytestmark = pytest.mark.timeout(0 if THOROUGH else 900)
Field = mmreplay.Field
GATHERINGS = st.lists(gather_settings(), min_size=1, max_size=3)


@settings(max_examples=by_effort(8, 80, 500))
@given(st.data())
def test_any_store_equals_the_oracle_while_live_and_after_closing(data):
    with scratch_directory() as folder:
        check_life_of_a_store(folder / "store.zarr", data)


def check_life_of_a_store(path, data):
    layout = data.draw(layouts())
    longest = 3 * (layout.capacity or 10)
    script = data.draw(
        st.lists(
            st.tuples(st.integers(0, (layout.lanes or 1) - 1), episodes(min(longest, 120))),
            min_size=1,
            max_size=6,
        )
    )
    gatherings = data.draw(GATHERINGS)
    flush_after = data.draw(st.frozensets(st.integers(0, 5), max_size=3))
    model = layout.model()
    random = np.random.default_rng(len(script))
    with layout.create(path) as writer:
        pair = Pair(writer, model, random)
        follower = mmreplay.open(path)
        for number, (lane, episode) in enumerate(script):
            pair.episode(episode, lane)
            checks.check_ids(follower, model)
            if number in flush_after:
                writer.flush()
                with mmreplay.open(path) as store:
                    for view, own in zip(store.lanes, model.lanes, strict=True):
                        checks.check_disk(view, own)
                        own.forget(view.base)
        with mmreplay.open(path) as store:
            for view, own in zip(store.lanes, model.lanes, strict=True):
                own.forget(view.base)
            checks.check_store(store, model, live=True, settings=gatherings, most=60)
        follower.refresh()
        checks.check_store(follower, model, live=True, settings=gatherings[:1], most=30)
    model_ends(model)
    with mmreplay.open(path) as store:
        for view, own in zip(store.lanes, model.lanes, strict=True):
            checks.check_disk(view, own)
            own.forget(view.base)
        checks.check_store(store, model, live=False, settings=gatherings, most=60)
    checks.check_verified(path)
    follower.refresh()
    checks.check_ids(follower, model)
    follower.close()


FRAMES = {
    "scalar": Field((), "float32", "raw", 3),
    "vector": Field((3,), "int16", "lz4", 2, 6),
    "plane": Field((4, 5), "uint8", "zstd", 3, 12),
    "image": Field((2, 3, 3), "uint8", "lz4", 1, 4),
    "image of one channel": Field((3, 2, 1), "uint8", "raw", 4),
    "four dimensions": Field((2, 1, 2, 2), "float64", "raw", 5),
    "dict": {"a": Field((2, 2, 3), "uint8", "lz4", 2, 4), "b": Field((2,), "float32", "raw", 4)},
}
SETTINGS = [
    {"stack": stack, "n_step": n_step, "padding": padding, "stack_axis": axis, "gamma": 0.9}
    for stack, n_step, padding, axis in itertools.product(
        (None, 1, 2, 4, 65), (1, 2, 7), ("reset", "zero"), (0, -1)
    )
]


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_every_setting_rebuilds_every_transition_of_every_kind_of_frame(tmp_path, name):
    layout = Layout(FRAMES[name], Field((), "int64", chunk=7), {}, capacity=25)
    model = layout.model()
    ends = ("terminated", "truncated", "both", "interrupted")
    lengths = (1, 0, 3, 90, 2, 5, 4, 1, 9)
    with layout.create(tmp_path / "s.zarr") as writer:
        pair = Pair(writer, model, np.random.default_rng(0))
        for number, length in enumerate(lengths):
            lost = frozenset({length // 2}) if number % 3 else frozenset()
            pair.episode(Episode(length, ends[number % 4], lost))
        with mmreplay.open(tmp_path / "s.zarr") as store:
            ids = model.ids()
            assert ids.size == 25
            for one in SETTINGS:
                expected = model.batch(ids, **one, live=True)
                checks.check_batch(store.transitions(ids, **one), expected, str(one))


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("capacity", [None, 9])
def test_ids_are_refused_unless_they_are_transitions(tmp_path, capacity, lanes):
    layout = Layout(Field((2,)), Field((), chunk=8), {}, capacity=capacity, lanes=lanes)
    model = layout.model()
    with layout.create(tmp_path / "s.zarr") as writer:
        Pair(writer, model, np.random.default_rng(0)).together(40, end=0.3)
        with mmreplay.open(tmp_path / "s.zarr") as store:
            valid = set(model.ids().tolist())
            n_refused = 0
            for lane in range(-1, (lanes or 1) + 1):
                for row in range(-2, 90):
                    one = (lane << 40) + row
                    if one in valid:
                        assert store.transitions([one]).id.tolist() == [one]
                        continue
                    with pytest.raises(mmreplay.InvalidIdError, match=str(one)):
                        store.transitions([one, one])
                    n_refused += 1
    assert n_refused > 200


def test_lanes_written_as_a_vector_environment_equal_the_oracle(tmp_path):
    layout = Layout(
        {"a": Field((3,), "uint8", "lz4", 2, 4), "b": Field((), "float32", "raw", 3)},
        Field((2,), "float32", chunk=4),
        {"log_prob": Field((), "float32", chunk=5)},
        capacity=70,
        lanes=4,
    )
    model = layout.model()
    with layout.create(tmp_path / "s.zarr") as writer:
        pair = Pair(writer, model, np.random.default_rng(0))
        for _ in range(4):
            pair.together(20, end=0.2)
            writer.flush()
            with mmreplay.open(tmp_path / "s.zarr") as store:
                for view, lane in zip(store.lanes, model.lanes, strict=True):
                    checks.check_disk(view, lane)
                    lane.forget(view.base)
                checks.check_store(store, model, live=True, settings=SETTINGS[::17], most=40)


def model_ends(model):
    for lane in model.lanes:
        lane.end_session()
