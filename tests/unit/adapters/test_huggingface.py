"""Hugging Face datasets have the transitions, or the episodes, of a store: values and dtypes."""

import dataclasses
import pickle

import datasets
import numpy as np
import pytest
from datasets import Array2D, Array3D, List, Value
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import mmreplay
from mmreplay import Field
from mmreplay.adapters.huggingface import to_dataset, to_iterable_dataset
from tests.support.numbered_steps import ACTION, play


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """A cache of its own for each test, and no progress bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def columns_of(batch):
    """The arrays of a batch or trajectory as columns: by name, dicts within."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: one for name, one in values.items() if name != "weight"}


def assert_rows(rows, columns):
    """Rows of a dataset, as Arrow has them, are those of the columns."""
    for name, array in columns.items():
        if isinstance(array, dict):
            assert_rows([row[name] for row in rows], array)
        else:
            assert np.array_equal(np.array([row[name] for row in rows]), array), name


def ids_of(rows):
    return [one["id"] for one in rows]


# ---------------------------------------------------------------- what is in it


@pytest.mark.parametrize("kind", ["one lane", "two lanes", "many environments", "dict", "vectors"])
@pytest.mark.parametrize("make", [to_dataset, to_iterable_dataset])
def test_rows_are_transitions(stores, kind, make):
    rows = list(make(stores(kind), stack=2, n_step=3, gamma=0.5))
    with mmreplay.load(stores(kind), stack=2, n_step=3, gamma=0.5) as data:
        columns = columns_of(data.transitions(data.ids))
    assert columns.pop("extras") == {}
    assert rows[0].keys() == columns.keys()
    assert_rows(rows, columns)


@pytest.mark.parametrize("kind", ["one lane", "two lanes", "many environments", "dict", "vectors"])
@pytest.mark.parametrize("make", [to_dataset, to_iterable_dataset])
def test_rows_are_episodes_with_their_last_observations(stores, kind, make):
    rows = list(make(stores(kind), "episodes"))
    with mmreplay.load(stores(kind)) as data:
        assert len(rows) == len(data.episodes)
        for number, one in enumerate(rows):
            columns = columns_of(data.trajectory(number))
            assert columns.pop("extras") == {}
            assert one.keys() == columns.keys()
            assert len(one["action"]) == len(columns["action"])
            assert_rows([one], {name: _first_axis(value) for name, value in columns.items()})


def _first_axis(value):
    if isinstance(value, dict):
        return {key: np.asarray(array)[None] for key, array in value.items()}
    return np.asarray(value)[None]


def test_features_have_the_shapes_and_dtypes_that_are_stored(stores):
    made = to_dataset(stores("dict"), stack=None)
    assert made.features == {
        "observation": {
            "image": Array2D((4, 4), "uint8"),
            "small": List(Value("uint8"), 3),
            "place": List(Value("float32"), 2),
        },
        "next_observation": made.features["observation"],
        "action": Value("int64"),
        "reward": Value("float32"),
        "discount": Value("float32"),
        "non_terminal": Value("bool"),
        "id": Value("int64"),
        "terminated": Value("bool"),
        "truncated": Value("bool"),
    }
    assert to_dataset(stores("one lane"), stack=3).features["observation"] == Array3D(
        (3, 4, 4), "uint8"
    )
    episodes = to_dataset(stores("dict"), "episodes").features
    assert episodes["observation"] == {
        "image": Array3D((None, 4, 4), "uint8"),
        "small": Array2D((None, 3), "uint8"),
        "place": Array2D((None, 2), "float32"),
    }
    assert (episodes["reward"], episodes["terminated"]) == (List(Value("float32")), Value("bool"))


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float16", "float64"])
def test_every_dtype_and_extras_come_through(tmp_path, dtype):
    extras = {"mark": Field((2, 3), dtype), "one": Field((), dtype)}
    with mmreplay.create(tmp_path / "x.zarr", Field((3,), dtype), ACTION, extras=extras) as writer:
        writer.reset(np.zeros(3, dtype))
        for step in range(5):
            mark = (np.arange(6).reshape(2, 3) + step).astype(dtype)
            writer.step(step, 1.0, mark[0], mark=mark, one=mark[0, 0])
    made = to_dataset(tmp_path / "x.zarr", stack=None)
    assert made.features["extras"] == {"mark": Array2D((2, 3), dtype), "one": Value(dtype)}
    with mmreplay.load(tmp_path / "x.zarr", stack=None) as data:
        assert_rows(list(made), columns_of(data.transitions(data.ids)))
    (episode,) = to_dataset(tmp_path / "x.zarr", "episodes")
    assert np.array(episode["extras"]["mark"]).shape == (5, 2, 3)


# ---------------------------------------------------------------- the cache


def test_what_grew_is_not_taken_from_the_cache(tmp_path):
    path = tmp_path / "grows.zarr"
    with mmreplay.create(path, Field((3,)), ACTION) as writer:
        play(writer, 12)
        open_ = to_dataset(path, "episodes")
        assert open_[-1]["truncated"] is False
        assert ids_of(to_dataset(path, stack=None)) == mmreplay.open(path).ids.tolist()
    assert to_dataset(path, "episodes")[-1]["truncated"] is True
    assert to_dataset(path, stack=None)[-1]["truncated"] is True
    with mmreplay.create(path, append=True) as writer:
        play(writer, 12)
    grown = to_dataset(path, stack=None)
    assert ids_of(grown) == mmreplay.open(path).ids.tolist()
    assert grown.cache_files == to_dataset(path, stack=None).cache_files


def test_another_store_at_the_same_path_is_not_taken_from_the_cache(tmp_path):
    path, other = tmp_path / "one.zarr", tmp_path / "other.zarr"
    for place, action in ((path, 1), (other, 2)):
        with mmreplay.create(place, Field((3,)), ACTION) as writer:
            writer.reset(np.zeros(3, "uint8"))
            writer.step(action, 1.0, np.zeros(3, "uint8"))
    assert to_dataset(path, stack=None)[0]["action"] == 1
    path.rename(tmp_path / "away.zarr")
    other.rename(path)
    assert to_dataset(path, stack=None)[0]["action"] == 2
    assert to_dataset(path, stack=None, n_step=2, gamma=0.5)[0]["discount"] == 0.5


# ---------------------------------------------------------------- streams


def test_stream_is_divided_over_ranks_and_workers(stores):
    rows = to_iterable_dataset(stores("two lanes"), stack=None, num_shards=8)
    with mmreplay.load(stores("two lanes")) as data:
        every = data.ids.tolist()
    assert (rows.num_shards, ids_of(rows)) == (8, every)
    ranks = [ids_of(split_dataset_by_node(rows, rank, 4)) for rank in range(4)]
    assert sorted(number for rank in ranks for number in rank) == every
    assert [len(rank) for rank in ranks] == [150] * 4
    loader = DataLoader(rows, batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(ids_of(loader)) == every
    mixed = ids_of(rows.shuffle(seed=0, buffer_size=100))
    assert sorted(mixed) == every != mixed
    assert to_iterable_dataset(stores("two lanes"), "episodes").num_shards < 64


def test_stream_goes_on_from_its_state(stores):
    rows = to_iterable_dataset(stores("one lane"), stack=None, num_shards=4)
    iterator = iter(rows)
    for _ in range(100):
        next(iterator)
    state = rows.state_dict()
    again = pickle.loads(pickle.dumps(rows))
    again.load_state_dict(state)
    assert ids_of(again) == ids_of(iterator)


def test_live_buffer_becomes_a_dataset_and_no_stream(tmp_path):
    fields = {"frame": Field((3,)), "action": ACTION}
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", stack=None, **fields) as buffer:
        with pytest.raises(mmreplay.EmptyBufferError, match="no transitions"):
            to_dataset(buffer)
        play(buffer, 20)
        assert ids_of(to_dataset(buffer)) == buffer.ids.tolist()
        with pytest.raises(mmreplay.SchemaError, match=r"mmreplay\.load"):
            to_iterable_dataset(buffer)


@pytest.mark.parametrize("make", [to_dataset, to_iterable_dataset])
def test_wrong_arguments_are_refused(stores, make):
    with pytest.raises(mmreplay.SchemaError, match="'transitions' or 'episodes', found 'steps'"):
        make(stores("one lane"), "steps")
    with (
        mmreplay.load(stores("one lane")) as data,
        pytest.raises(mmreplay.SchemaError, match="stack"),
    ):
        make(data, stack=2)


def test_rows_of_a_decorated_dataset_are_transitions_and_no_episodes(stores):
    data = mmreplay.load(stores("vectors"), stack=None)
    decorated = mmreplay.Decorated(data, mmreplay.transforms.ClipReward(0, 3))
    stored = to_dataset(data)[9]["reward"]  # which is in the cache now
    assert to_dataset(decorated)[9]["reward"] == 3 < stored
    with pytest.raises(
        mmreplay.UnsupportedError, match=r"^Decorated\.trajectory: .* use its `data`"
    ):
        to_dataset(decorated, "episodes")


@pytest.mark.parametrize("kind", ["transitions", "episodes"])
def test_rows_of_a_store_that_took_the_place_are_refused(replaceable, kind):
    path, replace = replaceable
    with mmreplay.load(path, stack=None) as data:
        rows = to_iterable_dataset(data, kind)
        next(iter(rows))
        replace()
        data.refresh()
        with pytest.raises(mmreplay.SchemaError, match="another at this path"):
            next(iter(rows))
