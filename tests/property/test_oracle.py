"""Everything that a store gives equals what a list of everything says, byte for byte."""

import itertools

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import mmreplay
from tests.support.disks.scratch import scratch_directory
from tests.support.effort import by_effort
from tests.support.oracle import checks, disk
from tests.support.oracle.layout import Episode, Layout
from tests.support.oracle.pair import MODES, Pair
from tests.support.oracle.strategies import episodes, gather_settings, layouts
from tests.support.quiet import quiet, settle

Field = mmreplay.Field
ACTS = st.lists(
    st.one_of(
        st.just("flush"),
        episodes(60),
        st.tuples(st.integers(1, 40), st.sampled_from([0.02, 0.1, 0.6]), st.sampled_from(MODES)),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=by_effort(4, 15, 500))
@given(layouts(), ACTS, st.lists(gather_settings(), min_size=1, max_size=3), st.integers(0, 99))
def test_any_store_equals_the_oracle_while_live_and_after_closing(layout, acts, gatherings, seed):
    model, random = layout.model(), np.random.default_rng(seed)
    with scratch_directory() as folder:
        path = folder / "store.zarr"
        writers = layout.create_lanes(path)
        pair, follower = Pair(writers, model, random), mmreplay.open(path)
        learner = mmreplay.load(path, update=[*layout.derived])
        for act in acts:
            if act == "flush":
                for number, writer in enumerate(writers):
                    writer.flush()
                    with quiet(writer):
                        disk.check_disk(disk.lane_paths(path)[number], model.lanes[number])
            elif isinstance(act, tuple):
                pair.play(*act)
            else:
                lane = int(random.integers(len(writers)))
                pair.episode(act, int(random.integers(model.lanes[lane].n)), lane)
            checks.forget(follower.refresh(), model)
            checks.check_ids(follower, model)
            if model.ids().size:
                pair.update(learner)
        for writer in writers:
            settle(writer)  # what it evicts meanwhile, `info` would not have
        with mmreplay.open(path) as store:
            checks.check_store(store, model, settings=gatherings, most=60)
            checks.check_info(store, model)
        checks.check_store(follower, model, settings=gatherings[:1], most=30)
        if seed % 2:
            learner.close()
        for writer in writers:
            writer.close()
        model.end_session()
        learner.close()
        disk.check_closed(path, model)
        with mmreplay.open(path) as store:
            checks.check_store(store, model, settings=gatherings, most=60)
            checks.check_info(store, model)
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
][:: by_effort(7, 4, 1)]


@pytest.mark.deep
@pytest.mark.parametrize("environments", [None, 3])
@pytest.mark.parametrize("name", sorted(FRAMES))
def test_every_setting_rebuilds_every_transition_of_every_kind_of_frame(
    tmp_path, name, environments
):
    layout = Layout(FRAMES[name], Field((), "int64", chunk=7), {}, "float32", 25, environments)
    model = layout.model()
    ends = ("terminated", "truncated", "both", "interrupted")
    with layout.create(tmp_path / "s.zarr") as writer:
        pair = Pair(writer, model, np.random.default_rng(0))
        for number, length in enumerate((1, 0, 3, 90, 2, 5, 4, 1, 9)):
            lost = frozenset({length // 2}) if number % 3 else frozenset()
            pair.episode(Episode(length, ends[number % 4], lost), number % model.lanes[0].n)
        with mmreplay.open(tmp_path / "s.zarr") as store:
            ids = model.ids()
            assert 20 < ids.size <= 25
            for one in SETTINGS:
                expected = model.batch(ids, **one)
                checks.check_batch(store.transitions(ids, **one), expected, str(one))


@pytest.mark.parametrize("environments", [None, 3])
@pytest.mark.parametrize("capacity", [None, 9])
def test_ids_are_refused_unless_they_are_transitions(tmp_path, capacity, environments):
    layout = Layout(
        Field((2,)), Field((), chunk=8), capacity=capacity, environments=environments, lanes=2
    )
    model = layout.model()
    writers = layout.create_lanes(tmp_path / "s.zarr")
    Pair(writers, model, np.random.default_rng(0)).play(40, 0.3, "any")
    with mmreplay.open(tmp_path / "s.zarr") as store:
        valid = set(model.ids().tolist())
        n_refused = 0
        for lane, entry in itertools.product(range(-1, 3), range(-2, 130)):
            one = (lane << 40) + entry
            if one in valid:
                assert store.transitions([one]).id.tolist() == [one]
                continue
            with pytest.raises(mmreplay.InvalidIdError, match=str(one)):
                store.transitions([one, one])
            n_refused += 1
    assert n_refused > 200
    for writer in writers:
        writer.close()


@pytest.mark.parametrize("environments", [None, 3])
def test_who_knows_only_the_arrays_finds_the_same_transitions(tmp_path, environments):
    """As the first screen of docs/format.md says: mask by `step`, look for what ended in finals."""
    layout = Layout(Field((2,), "int16"), Field((), "int64"), environments=environments)
    model, n = layout.model(), environments or 1
    with layout.create(tmp_path / "s.zarr") as writer:
        Pair(writer, model, np.random.default_rng(0)).play(60, 0.2, "any")
    model.end_session()
    group = zarr.open_group(tmp_path / "s.zarr", mode="r")
    flat = {
        name: group[name][:].reshape(-1, *group[name].shape[1 + (environments is not None) :])
        for name in ("frames", "actions", "rewards", "non_terminals", "ends", "step")
    }
    final = dict(zip(group["finals/id"][:].tolist(), group["finals/frames"][:], strict=True))
    ids = np.flatnonzero(flat["step"] > 0)
    after = [final[i] if flat["ends"][i] else flat["frames"][i + n] for i in ids.tolist()]
    expected = model.batch(model.ids(), stack=None)
    assert ids.tolist() == expected.id.tolist()
    for name, found in (
        ("observation", flat["frames"][ids]),
        ("action", flat["actions"][ids]),
        ("reward", flat["rewards"][ids]),
        ("non_terminal", flat["non_terminals"][ids] != 0),
        ("next_observation", np.stack(after)),
    ):
        checks.check_same(found, getattr(expected, name), name)
