"""Grain reads each transition once an epoch, in threads and workers, and goes on from its state."""

import dataclasses
import functools
import json
import operator
import pickle

import grain
import numpy as np
import pytest
from absl import flags

import mmreplay
from mmreplay import Field
from mmreplay.adapters.grain import TransitionSource
from mmreplay.batches.batch import arrays_of
from tests.support.numbered_steps import ACTION, play

flags.FLAGS.mark_as_parsed()  # Grain's workers ask for a flag, which a program reads in app.run


def assert_same(found, batch):
    """A dict of arrays holds those of a batch."""
    expected = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    flat = arrays_of(batch)
    assert found.keys() == expected.keys()
    for name, array in flat.items():
        one = functools.reduce(operator.getitem, name.replace("']", "").split("['"), found)
        assert (one.dtype, one.shape) == (array.dtype, array.shape), name
        assert np.array_equal(one, array), name


def loader(source, workers, seed=0):
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=seed, num_epochs=1)
    return grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.transforms.Batch(32)],
        worker_count=workers,
    )


def ids_of(batches):
    return [batch["id"].tolist() for batch in batches]


def flat(lists):
    return [number for one in lists for number in one]


@pytest.mark.parametrize("kind", ["one lane", "two lanes", "many environments", "dict", "vectors"])
def test_elements_are_transitions_without_the_batch_axis(stores, kind):
    source = TransitionSource(stores(kind), stack=2, n_step=3, gamma=0.5)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    with mmreplay.load(stores(kind), stack=2, n_step=3, gamma=0.5) as data:
        assert len(source) == len(data)
        for number in (0, 7, len(data) - 1, -1):
            batch = data.transitions(data.ids[[number]])
            first = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
            element = source[number]
            expected = {
                name: {key: one[0] for key, one in value.items()}
                if isinstance(value, dict)
                else value[0]
                for name, value in first.items()
            }
            assert all(
                isinstance(one, np.ndarray)
                for value in element.values()
                for one in (value.values() if isinstance(value, dict) else [value])
            )
            np.testing.assert_equal(element, expected)
        assert_same(source.batch([5, 0, 5]), data.transitions(data.ids[[5, 0, 5]]))
    with pytest.raises(IndexError):
        source[len(source)]


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_gives_each_id_once_and_goes_on_from_its_state(stores, workers):
    source = TransitionSource(stores("two lanes"), stack=2)
    iterator = iter(loader(source, workers))
    given = [next(iterator) for _ in range(5)]
    state, rest = iterator.get_state(), ids_of(iterator)
    every = flat(ids_of(given)) + flat(rest)
    assert sorted(every) == source.data.ids.tolist()
    assert every != sorted(every)
    for batch in given:
        assert_same(batch, source.data.transitions(batch["id"]))
    again = iter(loader(TransitionSource(stores("two lanes"), stack=2), workers))
    again.set_state(state)
    assert ids_of(again) == rest


PIPELINES = {
    "one by one": lambda source: grain.MapDataset.source(source).seed(1).shuffle().batch(32),
    "read at once": lambda source: (
        grain.MapDataset.range(len(source)).seed(1).shuffle().batch(32).map(source.batch)
    ),
}


@pytest.mark.parametrize("kind", PIPELINES)
def test_pipeline_gives_each_id_once_and_goes_on_from_its_state(stores, kind):
    source = TransitionSource(stores("one lane"), n_step=3)

    def made(source=source):
        return PIPELINES[kind](source).to_iter_dataset()

    iterator = iter(made())
    given = [next(iterator) for _ in range(3)]
    state, rest = json.loads(json.dumps(iterator.get_state())), ids_of(iterator)
    assert sorted(flat(ids_of(given)) + flat(rest)) == source.ids.tolist()
    for batch in given:
        assert_same(batch, source.data.transitions(batch["id"]))
    again = iter(made(TransitionSource(stores("one lane"), n_step=3)))
    again.set_state(state)
    assert ids_of(again) == rest
    assert ids_of(made()) == ids_of(PIPELINES["one by one"](source))


@pytest.mark.parametrize("kind", ["one lane", "two lanes", "dict"])
def test_windows_are_elements_too(stores, kind):
    given = {"observation": (-1, 0), "action": range(4), "reward": 0}
    source = TransitionSource(stores(kind), windows=given, stack=2)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    whole = source.batch([0, 7, -1])
    assert_same(whole, source.data.windows(source.ids[[0, 7, -1]], given))
    one = source[7]
    assert (one["id"], one["mask"]["reward"].shape) == (source.ids[7], ())
    assert np.array_equal(one["fields"]["action"], whole["fields"]["action"][1])
    batches = [*loader(pickle.loads(pickle.dumps(source)), 0)]
    assert sorted(flat(ids_of(batches))) == source.ids.tolist()
    assert batches[0]["fields"]["action"].shape[:2] == (32, 4)
    assert repr(source) != repr(TransitionSource(stores(kind), windows={"action": 0}, stack=2))
    with pytest.raises(mmreplay.SchemaError, match="windows: expected names among"):
        TransitionSource(stores(kind), windows={"actions": 0})


def test_a_state_of_other_transitions_is_refused(tmp_path):
    path = tmp_path / "grows.zarr"
    with mmreplay.create(path, Field((3,)), ACTION) as writer:
        play(writer, 50)
    source = TransitionSource(path, stack=None)
    ids, iterator = source.ids, iter(loader(source, 0))
    next(iterator)
    state, rest = iterator.get_state(), ids_of(iterator)
    with mmreplay.create(path, append=True) as writer:
        play(writer, 50)
    same_size = TransitionSource(mmreplay.load(path, stack=None).select(ids=lambda ids: ids[-50:]))
    assert len(same_size) == 50
    for source in (
        TransitionSource(path, stack=None),
        TransitionSource(path, stack=2),
        same_size,
    ):
        with pytest.raises(ValueError, match="in checkpoint does not match"):
            iter(loader(source, 0)).set_state(state)
    of_then = mmreplay.load(path, stack=None).select(ids=ids)
    again = iter(loader(TransitionSource(of_then), 0))
    again.set_state(state)
    assert ids_of(again) == rest


def test_a_pickle_of_it_has_the_same_numbers(tmp_path):
    path = tmp_path / "live.zarr"
    with mmreplay.create(path, Field((3,)), ACTION) as writer:
        play(writer, 30)
        source = TransitionSource(path, stack=None)
        play(writer, 30)
        again = pickle.loads(pickle.dumps(source))
        assert len(again) == len(source) == 30
        assert repr(again) == repr(source)
        np.testing.assert_equal(again[29], source[29])


def test_a_transition_that_was_evicted_is_not_another_one(tmp_path):
    fields = {"frame": Field((3,)), "action": ACTION}
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", 20, stack=None, **fields) as buffer:
        play(buffer, 20)
        source = TransitionSource(buffer)
        play(buffer, 10)
        assert source[19]["id"] == source.ids[19]
        with pytest.raises(mmreplay.InvalidIdError):
            source[0]
