"""Tensors are the arrays of the batches, in every loop, worker and rank, and after a restart."""

import dataclasses
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmreplay
from mmreplay import Field
from mmreplay.adapters.torch import (
    TensorBatch,
    TensorSequenceBatch,
    TensorWindowBatch,
    TransitionDataset,
    loader,
    to_tensors,
)
from mmreplay.batches.batch import arrays_of
from tests.support.numbered_steps import ACTION, play

WORKERS = [(0, None), (2, "fork"), (2, "spawn")]


def assert_same(tensors, batch):
    """Every tensor has the dtype, shape and values of the array of its name."""
    found, expected = arrays_of(tensors), arrays_of(batch)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if isinstance(array, int):
            assert found[name] == array
            continue
        assert found[name].numpy().dtype == array.dtype, name
        assert np.array_equal(found[name].numpy(), array), name


def ids_of(batches):
    return [batch.id.tolist() for batch in batches]


def flat(lists):
    return [number for one in lists for number in one]


# ---------------------------------------------------------------- tensors


def test_what_is_no_batch_is_refused(stores):
    with mmreplay.load(stores("vectors")) as data:
        batch = data.sample(2)
        with pytest.raises(
            mmreplay.SchemaError, match=r"expected a Batch, SequenceBatch or WindowBatch, found"
        ):
            to_tensors(batch.observation)


SETTINGS = [
    {},
    {"stack": 4, "n_step": 3},
    {"stack": None},
    {"stack": 2, "stack_axis": -1},
    {"stack": 1, "padding": "zero"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["one lane", "many environments", "dict", "vectors"])
def test_tensors_are_the_arrays_of_the_batch_and_share_their_memory(stores, kind, settings):
    with mmreplay.load(stores(kind), **settings) as data:
        batch = data.sample(16)
        tensors = to_tensors(batch)
        assert len(tensors) == 16
        assert_same(tensors, batch)
        for array in arrays_of(batch).values():
            array[...] = 1
        assert_same(tensors, batch)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["one lane", "many environments", "dict", "vectors"])
def test_tensors_of_sequences_are_their_arrays(stores, kind, settings):
    with mmreplay.load(stores(kind), **settings) as data:
        batch = data.sample_sequences(3, 5, burn_in=2)
        tensors = to_tensors(batch)
        assert (len(tensors), tensors.burn_in) == (3, 2)
        assert "burn_in=2" in repr(tensors)
        assert "mask=torch.bool[3, 7]" in repr(tensors)
        assert_same(tensors, batch)
        assert tensors.to("meta").reward.device.type == "meta"


WINDOWS = {"observation": (-1, 0), "action": range(5), "reward": 0}


@pytest.mark.parametrize("kind", ["one lane", "many environments", "dict", "vectors"])
def test_tensors_of_windows_are_their_arrays(stores, kind):
    with mmreplay.load(stores(kind)) as data:
        batch = data.sample_windows(3, WINDOWS)
        tensors = to_tensors(batch)
        assert len(tensors) == 3
        assert_same(tensors, batch)
        assert tensors["action"] is tensors.fields["action"]
        assert "mask['action']=torch.bool[3, 5]" in repr(tensors)
        assert tensors.to("meta")["reward"].device.type == "meta"
        crossing = data.sample_sequences(3, 4, boundary="cross")
        assert_same(to_tensors(crossing), crossing)


@pytest.mark.parametrize("n_step", [1, 3])
def test_frames_travel_once_and_both_observations_are_views_of_them(stores, n_step):
    with mmreplay.load(stores("one lane"), n_step=n_step) as data:
        batch = to_tensors(data.sample(16))
    there = batch.to("meta")
    seen, following = there.observation, there.next_observation
    assert seen.device.type == there.reward.device.type == "meta"
    assert seen.untyped_storage()._cdata == following.untyped_storage()._cdata
    frames = {1: 5, 3: 8}[n_step]
    assert seen.untyped_storage().nbytes() == 16 * frames * 4 * 4
    assert (following.shape, following.stride()) == (
        batch.next_observation.shape,
        batch.next_observation.stride(),
    )


def test_tensor_batch_has_the_fields_of_a_batch():
    def names(kind):
        return [field.name for field in dataclasses.fields(kind)]

    assert names(TensorBatch) == names(mmreplay.Batch)
    assert {*names(TensorSequenceBatch)} == {*names(mmreplay.SequenceBatch)}
    assert names(TensorWindowBatch) == names(mmreplay.WindowBatch)


# ---------------------------------------------------------------- the loader


def test_loader_gives_the_batches_of_the_dataset_as_tensors(stores):
    with mmreplay.load(stores("one lane"), n_step=3, seed=5) as data:
        batches = loader(stores("one lane"), 32, n_step=3, seed=5, epochs=2)
        for found, expected in zip(batches, data.batches(32, epochs=2), strict=True):
            assert_same(found, expected)
        assert (batches.data.prefetch, data.prefetch) == (2, 0)


@pytest.mark.parametrize("boundary", ["pad", "drop"])
def test_loader_gives_windows(stores, boundary):
    path = stores("many environments")
    batches = loader(path, 64, windows=WINDOWS, boundary=boundary, seed=5, epochs=2)
    with mmreplay.load(path, seed=5) as data:
        expected = data.window_batches(64, WINDOWS, boundary, epochs=2)
        for found, batch in zip(batches, expected, strict=True):
            assert isinstance(found, TensorWindowBatch)
            assert_same(found, batch)
        workers = DataLoader(
            loader(path, 64, windows=WINDOWS, boundary=boundary, prefetch=0),
            batch_size=None,
            num_workers=2,
            multiprocessing_context="spawn",
        )
        whole = sum(map(len, data.window_batches(64, WINDOWS, boundary)))
        assert sum(map(len, workers)) == whole
    by_number = TransitionDataset(path, windows=WINDOWS)
    found = next(iter(DataLoader(by_number, 16, collate_fn=TransitionDataset.collate)))
    assert_same(found, by_number.data.windows(by_number.ids[:16], WINDOWS))
    # Before an epoch begins.
    with pytest.raises(mmreplay.SchemaError, match="windows: expected names among"):
        loader(path, 64, windows={"actions": 0})
    with pytest.raises(mmreplay.SchemaError, match=r"Mixture\..*: "):
        loader(mmreplay.Mixture([mmreplay.load(path)]), 64, windows=WINDOWS)


def test_each_epoch_has_each_id_once_in_another_order(stores):
    batches = loader(stores("many environments"), 64, seed=0)
    first, second = flat(ids_of(batches)), flat(ids_of(batches))
    assert sorted(first) == sorted(second) == batches.data.ids.tolist()
    assert first != second


def read_as_rank(rank, folder, paths):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3
    )
    with (folder / str(rank)).open("wb") as file:
        pickle.dump(ids_of(loader(paths, 32, seed=0, prefetch=0)), file)
    torch.distributed.destroy_process_group()


def test_ranks_are_those_of_torch_distributed_where_it_runs(stores, tmp_path):
    context = multiprocessing.get_context("fork")
    arguments = tmp_path, stores("two lanes")
    ranks = [context.Process(target=read_as_rank, args=(rank, *arguments)) for rank in range(3)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    found = [pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in range(3)]
    assert len({len(flat(one)) for one in found}) == 1
    with mmreplay.load(stores("two lanes")) as data:
        assert sorted(flat(flat(found))) == data.ids.tolist()


def test_after_a_restart_in_the_middle_of_an_epoch_the_loader_goes_on(stores):
    given = {"data": stores("one lane"), "batch_size": 32, "seed": 3, "epochs": 1}
    batches, expected = loader(**given), []
    iterator = iter(batches)
    for _ in range(4):
        next(iterator)
    state = pickle.loads(pickle.dumps(batches.state_dict()))
    expected = ids_of(iterator) + ids_of(batches)
    again = loader(**given)
    again.load_state_dict(state)
    assert ids_of(again) + ids_of(again) == expected
    assert len(expected) == 6 + 10


@pytest.mark.parametrize("n_batches", [0, 4, 10, 23, 30])
def test_a_loader_that_goes_on_counts_epochs_from_the_beginning_of_its_training(stores, n_batches):
    with mmreplay.load(stores("one lane"), seed=3) as data:
        ids_of(data.batches(100, epochs=4))  # used before
        batches = loader(data, 32, epochs=3)
        iterator = iter(batches)
        for _ in range(n_batches):
            next(iterator)
        state, rest = pickle.loads(pickle.dumps(batches.state_dict())), ids_of(iterator)
    again = loader(stores("one lane"), 32, epochs=3)
    again.load_state_dict(state)
    assert ids_of(again) == rest
    assert n_batches + len(rest) == 3 * 10


def noise(batch, generator):
    return dataclasses.replace(batch, reward=generator.random(batch.reward.shape, "float32"))


def rewards_of(batches):
    return [batch.reward.tolist() for batch in batches]


def test_a_loader_of_a_decorated_dataset_goes_on(stores):
    def made(seed):
        data = mmreplay.load(stores("one lane"), seed=seed, prefetch=1)
        return loader(mmreplay.Decorated(data, noise), 32, epochs=2)

    batches = made(3)
    iterator = iter(batches)
    some = rewards_of(next(iterator) for _ in range(13))
    state, rest = pickle.loads(pickle.dumps(batches.state_dict())), rewards_of(iterator)
    again = made(9)
    again.load_state_dict(state)
    assert rewards_of(again) == rest
    assert len(rest) == 7
    assert not {*map(tuple, some)} & {*map(tuple, rest)}


def test_what_a_loader_cannot_read_is_refused_when_it_is_made(stores):
    data = mmreplay.load(stores("one lane"))
    mixture = mmreplay.Mixture([data, data])
    for source in (mixture, mmreplay.Decorated(mixture, noise)):
        with pytest.raises(mmreplay.UnsupportedError, match=r"^Mixture\.batches: .*; use sample"):
            loader(source, 8)
        with pytest.raises(mmreplay.UnsupportedError, match=r"^Mixture\.ids: "):
            TransitionDataset(source)
    with pytest.raises(mmreplay.SchemaError, match=r"data: expected a path, .*, found 7"):
        loader(7, 8)


def test_loader_of_a_live_buffer_takes_what_is_there_when_an_epoch_begins(tmp_path):
    fields = {"frame": Field((3,)), "action": ACTION}
    with mmreplay.ReplayBuffer(tmp_path / "live.zarr", stack=None, **fields) as buffer:
        play(buffer, 20)
        batches = loader(buffer, 8)
        assert sorted(flat(ids_of(batches))) == buffer.ids.tolist()
        play(buffer, 20)
        assert sorted(flat(ids_of(batches))) == buffer.ids.tolist()
        batch = to_tensors(buffer.sample(4))
        assert batch.observation.shape == (4, 3)


# ---------------------------------------------------------------- workers


@pytest.mark.parametrize(("workers", "start"), WORKERS)
def test_workers_give_each_id_once_an_epoch(stores, workers, start):
    paths = stores("two lanes")
    iterable = loader(paths, 32, seed=0, prefetch=0)
    data = TransitionDataset(paths, stack=2, n_step=3)
    given = {"num_workers": workers, "multiprocessing_context": start}
    stays = {"persistent_workers": True} if workers else {}
    through = DataLoader(iterable, batch_size=None, **given, **stays)
    first, second = flat(ids_of(through)), flat(ids_of(through))
    assert sorted(first) == sorted(second) == data.ids.tolist()
    assert first != second
    by_number = DataLoader(
        data, batch_size=32, shuffle=True, collate_fn=TransitionDataset.collate, **given
    )
    batches = list(by_number)
    assert sorted(flat(ids_of(batches))) == data.ids.tolist()
    assert_same(batches[3], data.data.transitions(batches[3].id))


def test_workers_that_begin_anew_take_the_epoch_that_is_set(stores):
    alone = loader(stores("one lane"), 32, seed=0, rank=1, world_size=2)
    expected = [ids_of(alone), ids_of(alone)]
    iterable = loader(stores("one lane"), 32, seed=0, rank=1, world_size=2, prefetch=0)
    through = DataLoader(iterable, batch_size=None, num_workers=1, multiprocessing_context="fork")
    for epoch in (0, 1, 1):
        iterable.set_epoch(epoch)
        assert ids_of(through) == expected[epoch]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["iterable", "decorated", "by number"])
def test_stateful_data_loader_goes_on_in_the_middle_of_an_epoch(stores, kind, workers):
    def made():
        torch.manual_seed(0)
        given = {"num_workers": workers}
        if workers:
            given["multiprocessing_context"] = "fork"
        if kind != "by number":
            plain = mmreplay.load(stores("one lane"), seed=3)
            source = mmreplay.Decorated(plain, noise) if kind == "decorated" else plain
            iterable = loader(source, 32, epochs=2)
            return StatefulDataLoader(iterable, batch_size=None, **given)
        data, collate = TransitionDataset(stores("one lane")), TransitionDataset.collate
        return StatefulDataLoader(data, batch_size=32, shuffle=True, collate_fn=collate, **given)

    batches = made()
    iterator = iter(batches)
    n_epochs = 1 if kind == "by number" else 2
    given = [next(iterator).id.tolist() for _ in range(9 * n_epochs - 6)]
    state = pickle.loads(pickle.dumps(batches.state_dict()))
    rest = [(batch.id.tolist(), batch.reward.tolist()) for batch in iterator]
    again = made()
    again.load_state_dict(state)
    assert [(batch.id.tolist(), batch.reward.tolist()) for batch in again] == rest
    every = flat(given) + flat(ids for ids, _ in rest)
    assert sorted(every) == sorted(n_epochs * [*range(300)])


# ---------------------------------------------------------------- by number


def test_numbers_are_those_of_the_ids(stores):
    data = TransitionDataset(stores("two lanes"), stack=None, gamma=0.5)
    assert len(data) == len(data.ids) == 600
    batch = data.__getitems__([0, 5, -1])
    assert batch.id.tolist() == data.ids[[0, 5, -1]].tolist()
    assert batch.discount.max() <= 0.5
    assert data[7].id.tolist() == [data.ids[7]]
    with pytest.raises(IndexError):
        data[600]


def test_arrays_that_are_views_of_others_keep_their_values_and_dtypes(stores):
    with mmreplay.load(stores("one lane"), stack=2, seed=0) as data:
        batch = data.sample(5)
    raw = batch.non_terminal.view("uint8").copy()
    changed = dataclasses.replace(
        batch, non_terminal=raw.view(bool), observation=batch.observation[..., ::-1]
    )
    tensors = to_tensors(changed)
    assert tensors.non_terminal.dtype == torch.bool
    assert np.array_equal(tensors.observation.numpy(), batch.observation[..., ::-1])


def test_fields_are_normalised_and_come_back_as_tensors(stores):
    with mmreplay.load(stores("dict"), stack=None) as data:
        normal = mmreplay.transforms.Normalize.fit(data, ["observation.place", "action"], "min_max")
        batch, name = data.sample(8), "observation.place"
        values = torch.tensor(batch.observation["place"], requires_grad=True)
        found = normal.apply(name, values)
        assert found.dtype == torch.float32
        assert np.allclose(
            found.detach(), normal.apply(name, batch.observation["place"]), atol=1e-6
        )
        back = normal.inverse(name, found)
        assert torch.allclose(back, values, atol=1e-4)
        back.sum().backward()
        assert torch.allclose(values.grad, torch.ones(8, 2))
        actions = normal.apply("action", torch.from_numpy(batch.action))  # whole numbers
        assert torch.allclose(normal.inverse("action", actions), torch.tensor(batch.action).float())
        assert normal.inverse(name, found.half()).dtype == torch.float16
