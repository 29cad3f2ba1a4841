"""One protocol: a wrapper has each method of a dataset, as its data has it, or refuses it by name."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay import Decorated, Field, Hindsight, Mixture, SchemaError, UnsupportedError
from mmreplay.batches.batch import arrays_of

GOAL = Field((2,), "float32")
FIELDS = {
    "frame": {"observation": Field((3,)), "achieved_goal": GOAL, "desired_goal": GOAL},
    "action": Field((), "int64"),
    "extras": {"speed": Field((), "float32")},
    "derived": {"togo": Field((), "float32")},
}
OWN = {
    *("after_fork_in_child", "begin_sample", "begin_windows", "check_has", "of_datasets"),
    *("limiter", "read_batches"),
}
"""For the rest of the package, or of one class only."""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A closed store of four episodes of six steps."""
    path = tmp_path_factory.mktemp("protocol") / "store.zarr"
    write(path)
    return path


def write(path):
    with mmreplay.create(path, **FIELDS, flush_s=0) as writer:
        play(writer, 4)


def play(target, n_episodes):
    for episode in range(n_episodes):
        target.reset(frame(0, episode))
        for step in range(1, 7):
            given = {"terminated": step == 6, "speed": step, "togo": 6 - step}
            target.step(step, step / 4, frame(step, episode), **given)


def frame(step, episode):
    goal = np.array([step, episode], np.float32)
    return {
        "observation": np.full(3, step, np.uint8),
        "achieved_goal": goal,
        "desired_goal": goal * 0,
    }


def reward(achieved, desired, info):
    return (achieved == desired).all(1) - 1.0


def noise(batch, generator):
    if isinstance(batch, mmreplay.WindowBatch):
        return batch
    return dataclasses.replace(batch, reward=generator.random(batch.reward.shape, "float32"))


def loaded(path, seed=3, **settings):
    return mmreplay.load(path, seed=seed, stack=None, **settings)


def mixed(data):
    columns = [*data.schema.extra_fields]
    return Mixture([data, loaded(data.store.path, seed=4, columns=columns)], [1, 2])


WRAPPERS = {
    "Decorated": lambda data: Decorated(data, noise),
    "Hindsight": lambda data: Hindsight(data, reward),
    "Decorated Hindsight": lambda data: Decorated(Hindsight(data, reward), noise),
    "Mixture": mixed,
    "Decorated Mixture": lambda data: Decorated(mixed(data), noise),
}
PLAIN = {"Dataset": lambda data: data, "select": lambda data: data.select(ids=data.ids)}
OTHERS = {
    "select": lambda path: PLAIN["select"](loaded(path)),
    "ReplayBuffer": lambda path: mmreplay.ReplayBuffer(path, stack=None),
    "PrioritizedReplayBuffer": lambda path: mmreplay.PrioritizedReplayBuffer(path, stack=None),
}
WHOLE = {"trajectory", "sample_trajectories", "statistics", "prefetch", "episodes_table"}
WINDOWS = {
    *("sample_sequences", "sequence_batches", "sample_portions"),
    *("sample_windows", "windows", "window_batches", "field_windows"),
}
OFFSETS = {"action": (-1, 0, 1)}
LACKS = {
    "Decorated": WHOLE,
    "Hindsight": WHOLE | WINDOWS | {"transitions"},
    "Mixture": WHOLE
    | WINDOWS
    | {"batches", "transitions", "ids", "episodes", "store", "select", "split"}
    | {"update", "n_late_updates", "flush"},
}
CALLS = {
    "__len__": len,
    "sample": lambda data, **more: data.sample(9, **more),
    "batches": lambda data: list(data.batches(7, epochs=2)),
    "transitions": lambda data: data.transitions([3, 1], n_step=2),
    "sample_sequences": lambda data: data.sample_sequences(5, 2, 1, "pad", 2),
    "sequence_batches": lambda data: list(data.sequence_batches(4, 3, stride=2)),
    "sample_portions": lambda data: data.sample_portions(5, 3),
    "sample_windows": lambda data: data.sample_windows(5, OFFSETS),
    "windows": lambda data: data.windows([3, 1], OFFSETS),
    "window_batches": lambda data: list(data.window_batches(7, OFFSETS, epochs=2)),
    "field_windows": lambda data: data.field_windows(OFFSETS, "drop").boundary,
    "sample_trajectories": lambda data: [one.ids for one in data.sample_trajectories(3)],
    "trajectory": lambda data: data.trajectory(-1).ids,
    "ids": lambda data: data.ids,
    "episodes": lambda data: data.episodes,
    "episodes_table": lambda data: data.episodes_table(),
    "paths": lambda data: data.paths,
    "prefetch": lambda data: data.prefetch,
    "store": lambda data: data.store.path,
    "schema": lambda data: data.schema.action,
    "settings": lambda data: data.settings,
    "generator": lambda data: data.generator.bit_generator.state,
    "select": lambda data: data.select(episodes=[0, 2]).sample(6),
    "split": lambda data: [part.sample(4) for part in data.split(0.5, seed=1)],
    "state_dict": lambda data: data.state_dict(),
    "load_state_dict": lambda data: data.load_state_dict(data.state_dict()),
    "statistics": lambda data: data.statistics(["action"])["action"].mean,
    "update": lambda data: data.update([3, -1]),
    "n_late_updates": lambda data: data.n_late_updates,
    "flush": lambda data: data.flush(),
    "refresh": lambda data: len(data.refresh()),
    "close": lambda data: data.close(),
}
UNDRAWN = {
    *("__len__", "transitions", "windows", "field_windows", "trajectory", "ids", "episodes"),
    *("prefetch", "schema", "settings", "statistics", "update", "n_late_updates", "flush"),
    *("refresh", "load_state_dict"),
}
"""Methods that give the same, whatever the random state is."""


def comparable(value):
    """What a wrapper may not change: of a batch its ids."""
    if isinstance(value, list):
        return [comparable(one) for one in value]
    value = getattr(value, "id", value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_")} | {"__len__"}


def methods():
    attributes = {"settings", "generator", "store"}  # annotated, set in the constructor
    return sorted((public(mmreplay.Dataset) | attributes) - OWN)


def test_there_is_a_call_of_each_method():
    assert CALLS.keys() >= set(methods())


@pytest.mark.parametrize("kind", OTHERS)
def test_a_selection_and_buffers_have_all_methods(path, tmp_path, quick_disk, kind):
    shutil.copytree(path, tmp_path / "s.zarr")
    with loaded(path) as plain, OTHERS[kind](tmp_path / "s.zarr") as other:
        for method in methods():
            if method in {"close", "episodes_table"}:  # which needs pyarrow: tests/exchange
                continue
            found, expected = (comparable(CALLS[method](one)) for one in (other, plain))
            if method in UNDRAWN:
                assert found == expected, method
            else:
                assert type(found) is type(expected), method


@pytest.mark.parametrize("kind", [*PLAIN, *WRAPPERS])
def test_only_the_columns_that_are_named_are_read(path, kind):
    own = {"Hindsight": "hindsight", "Mixture": "source"}
    data = (WRAPPERS | PLAIN)[kind](loaded(path, columns=["togo"]))
    expected = {"togo", *(own[one] for one in kind.split() if one in own)}
    assert data.sample(3).extras.keys() == expected
    refused = SchemaError, UnsupportedError  # Hindsight and Mixture have no windows at all
    before = data.state_dict()
    with pytest.raises(refused, match=r"found 'speed'|\.sample_windows: "):
        data.sample_windows(3, {"speed": 0})
    assert data.state_dict() == before
    if "sample_windows" not in {*itertools.chain(*(LACKS.get(one, ()) for one in kind.split()))}:
        assert data.sample_windows(3, {"togo": (0, 1)})["togo"].shape == (3, 2)


@pytest.mark.parametrize("method", methods())
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_method_gives_what_the_data_gives_or_is_refused_by_name(path, kind, method):
    wrapper, plain = WRAPPERS[kind](loaded(path)), loaded(path)
    refusing = next((one for one in kind.split() if method in LACKS[one]), None)
    if refusing:
        before = wrapper.state_dict()
        with pytest.raises(UnsupportedError, match=rf"^{refusing}\.{method}: .*`data"):
            CALLS[method](wrapper)
        assert wrapper.state_dict() == before
        with pytest.raises(UnsupportedError, match=rf"^{refusing}\.{method}: "):
            wrapper.check_has(method)
        assert refusing != kind or not hasattr(wrapper, method)
    elif "Mixture" in kind:
        CALLS[method](wrapper)  # what it gives: test_mixture.py
    else:
        assert comparable(CALLS[method](wrapper)) == comparable(CALLS[method](plain))


def test_priorities_are_updated_through_wrappers_and_only_where_there_are_some(
    tmp_path, quick_disk
):
    with mmreplay.PrioritizedReplayBuffer(tmp_path / "s.zarr", stack=None, **FIELDS) as buffer:
        play(buffer, 1)
        for number, kind in enumerate(("Decorated", "Hindsight", "Decorated Hindsight")):
            WRAPPERS[kind](buffer).update_priorities([number], [7.0])
            assert buffer.priorities([number]) > 6
        part = WRAPPERS["Decorated Hindsight"](buffer).select(ids=[1, 2])
        assert not hasattr(part, "update_priorities")
        with pytest.raises(AttributeError, match="'Decorated' object has no attribute 'smaple'"):
            part.smaple(3)


# ---------------------------------------------------------------- resuming

STREAMS = {
    "sample": lambda data: (data.sample(8) for _ in range(9)),
    "batches": lambda data: data.batches(5, epochs=2, shuffle_rows=16),
    "sequence_batches": lambda data: data.sequence_batches(3, 4, epochs=2),
    "window_batches": lambda data: data.window_batches(5, OFFSETS, epochs=2),
}


def arrays(batches):
    return [{key: one.tolist() for key, one in arrays_of(batch).items() if key != "burn_in"}
            for batch in batches]  # fmt: skip


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("kind", [*WRAPPERS, *PLAIN])
def test_a_wrapper_goes_on_exactly_where_its_state_was_taken(path, kind, stream, prefetch):
    if any(stream in LACKS.get(one, ()) for one in kind.split()):
        return
    wrap = (WRAPPERS | PLAIN)[kind]
    source = wrap(loaded(path, prefetch=prefetch))
    source.sample(3)
    batches = STREAMS[stream](source)
    some = arrays(itertools.islice(batches, 4))
    state = json.loads(json.dumps(source.state_dict()))
    n_left = 5 if stream == "sample" else None
    rest = arrays(itertools.islice(batches, n_left))
    again = wrap(loaded(path, seed=77, prefetch=prefetch))
    again.load_state_dict(state)
    assert arrays(itertools.islice(STREAMS[stream](again), n_left)) == rest
    assert len(rest) > 3
    assert rest != some


def test_the_state_of_a_mixture_has_the_weights_and_one_that_does_not_fit_changes_nothing(path):
    mixture = WRAPPERS["Mixture"](loaded(path))
    mixture.weights = [0.1, 0.7]
    state, first = mixture.state_dict(), mixture.sample(30)
    other = WRAPPERS["Mixture"](loaded(path, seed=9))
    before = other.state_dict()
    one = state["sources"][0]
    for wrong in (
        {}, None, one, state | {"sources": [one]}, state | {"sources": [one, {}]},
        state | {"weights": [1]}, state | {"weights": [0, 0]}, state | {"sources": 3},
    ):  # fmt: skip
        with pytest.raises(SchemaError, match=r"state: .* Mixture of 2 sources returned, found an"):
            other.load_state_dict(wrong)
        assert other.state_dict() == before
    other.load_state_dict(state)
    assert other.weights.tolist() == mixture.weights.tolist()
    assert other.sample(30).id.tolist() == first.id.tolist()
