"""TorchRL's replay buffers sample the transitions of a store, in their own layout."""

import dataclasses

import numpy as np
import pytest
import torch
from torchrl.data import ReplayBuffer, TensorDictReplayBuffer
from torchrl.objectives.value import TD0Estimator

import mmreplay
from mmreplay import Field
from mmreplay.adapters.torchrl import StoreStorage, to_tensordict
from tests.support.numbered_steps import ACTION, play

FIELDS = {"frame": Field((3,)), "action": ACTION}


def assert_same(found, batch):
    """Every key has what the batch has."""
    ended = ~batch.non_terminal
    expected = {
        "action": batch.action,
        "id": batch.id,
        "_weight": batch.weight,
        ("next", "reward"): batch.reward[:, None],
        ("next", "terminated"): ended[:, None],
        ("next", "truncated"): (batch.truncated & ~ended)[:, None],
        ("next", "done"): (batch.truncated | ended)[:, None],
    } | {key: np.zeros((len(batch), 1), bool) for key in ("done", "terminated", "truncated")}
    for prefix, shown in (((), batch.observation), (("next",), batch.next_observation)):
        named = shown if isinstance(shown, dict) else {"observation": shown}
        expected |= {(*prefix, key): array for key, array in named.items()}
    assert found.batch_size == (len(batch),)
    for key, array in expected.items():
        assert found[key].numpy().dtype == array.dtype, key
        assert np.array_equal(found[key].numpy(), array), key


@pytest.mark.parametrize("kind", ["one lane", "two lanes", "many environments", "dict", "vectors"])
def test_samples_of_a_replay_buffer_are_transitions_of_the_store(stores, kind):
    storage = StoreStorage(stores(kind), stack=2, n_step=3, gamma=0.9)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=64)
    with mmreplay.load(stores(kind), stack=2, n_step=3, gamma=0.9) as data:
        assert len(buffer) == len(storage) == len(data)
        sample = buffer.sample()
        assert len(sample) == 64
        assert_same(sample, data.transitions(sample["id"].numpy()))


def test_an_index_is_a_place_among_the_ids(stores):
    storage = StoreStorage(stores("two lanes"), stack=None)
    ids = storage.data.ids
    assert storage.get(5)["id"] == ids[5]
    assert storage.get(5).batch_size == ()
    assert storage.get((torch.arange(5),))["id"].tolist() == ids[:5].tolist()  # as SliceSampler
    mask = np.zeros(600, bool)
    mask[[3, 500]] = True
    for index in ([1, 599, -2], slice(590, None), np.array([4, 4]), torch.tensor([0, 599]), mask):
        chosen = index.numpy() if torch.is_tensor(index) else index
        assert storage[index]["id"].tolist() == ids[chosen].tolist()
    for index in (600, [0, -601]):
        with pytest.raises(IndexError, match="there are 600 transitions"):
            storage.get(index)
    assert storage.contains(599)
    assert storage.contains([-601, 0, 600]).tolist() == [False, True, False]


def test_what_is_no_index_is_refused_and_what_numpy_takes_is_not(stores):
    storage = StoreStorage(stores("two lanes"), stack=None)
    ids = storage.data.ids
    for index in (..., (...,), (), (slice(3, 9),), ([4, 1],), [], (np.arange(600) < 4,)):
        assert storage.get(index)["id"].tolist() == ids[index].tolist()
    two = torch.arange(6).reshape(2, 3)
    assert storage.get((two,))["id"].tolist() == ids[:6].reshape(2, 3).tolist()
    short, floats = torch.ones(7, dtype=torch.bool), torch.ones(2)
    for wrong in (1.0, floats, short, (1, 2), (two, two), "id", ("next", "reward")):
        with pytest.raises(IndexError):
            storage.get(wrong)


def test_checkpoints_of_torchrl_leave_the_data_to_the_store(stores, tmp_path):
    buffer = TensorDictReplayBuffer(storage=StoreStorage(stores("one lane")), batch_size=2)
    buffer.dumps(tmp_path)
    buffer.loads(tmp_path)
    assert len(buffer.sample()) == 2
    assert not (tmp_path / "storage").exists()


def test_returns_over_n_steps_have_the_discount_that_value_estimators_take(stores):
    storage = StoreStorage(stores("one lane"), stack=None, n_step=3, gamma=0.9)
    sample = storage[:]
    batch = storage.data.transitions(storage.data.ids)
    value = torch.ones(len(batch), 1)
    estimator = TD0Estimator(gamma=0.9, value_network=None)
    sample["next", "state_value"] = value
    target = estimator.value_estimate(sample, next_value=value)
    expected = batch.reward + batch.discount
    assert set(sample["steps_to_next_obs"].unique().tolist()) == {1, 2, 3}
    assert np.allclose(target[:, 0].numpy(), expected, rtol=1e-6)


def test_live_buffer_is_sampled_as_it_grows_and_evicts(tmp_path):
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr", capacity=30, stack=None, **FIELDS) as live:
        play(live, 10)
        buffer = ReplayBuffer(storage=StoreStorage(live), batch_size=200)
        assert set(buffer.sample()["id"].tolist()) == set(live.ids.tolist())
        play(live, 40)
        sample = buffer.sample()
        assert len(buffer) == len(live) == 30
        assert set(sample["id"].tolist()) <= set(live.ids.tolist())
        assert_same(sample, live.transitions(sample["id"].numpy()))


def test_prioritized_batches_become_tensordicts(tmp_path):
    with mmreplay.PrioritizedReplayBuffer(tmp_path / "p.zarr", stack=None, **FIELDS) as live:
        play(live, 20)
        batch = live.sample(32)
        found = to_tensordict(batch, live.settings)
        assert_same(found, batch)
        live.update_priorities(found["id"].numpy(), np.ones(32))


def test_it_is_written_by_mmreplay_alone(stores):
    storage = StoreStorage(stores("one lane"))
    buffer = ReplayBuffer(storage=storage, batch_size=2)
    with pytest.raises(mmreplay.SchemaError, match="write with mmreplay"):
        buffer.extend(storage[:3])
    with pytest.raises(mmreplay.SchemaError, match="write with mmreplay"):
        buffer.empty()
    state = buffer.state_dict()
    buffer.load_state_dict(state)
    assert len(buffer) == 300


def named(path, frame=("seen",), extras=()):
    """A store of ten steps whose dict observations, or none, and extras have these names."""
    fields = {key: Field((3,)) for key in frame}
    ones = {key: np.ones(3, "uint8") for key in frame}
    with mmreplay.create(
        path,
        fields or Field((3,)),
        ACTION,
        extras={name: Field((), "float32") for name in extras},
    ) as writer:
        writer.reset(ones or np.ones(3, "uint8"))
        for step in range(10):
            more = dict.fromkeys(extras, 50 + step)
            writer.step(step, 1.0, ones or np.ones(3, "uint8"), **more)
    return path


OF_TORCHRL = ("index", "steps_to_next_obs")


@pytest.mark.parametrize("name", ["action", "_weight", "next", *OF_TORCHRL])
def test_a_key_of_the_observation_that_would_be_lost_is_refused(tmp_path, name):
    path = named(tmp_path / "s.zarr", ("seen", name))
    with pytest.raises(mmreplay.SchemaError, match=f"frame: .* found '{name}', .* action, done, "):
        StoreStorage(path)
    with mmreplay.load(path) as data:
        with pytest.raises(mmreplay.SchemaError, match=f"frame: .* found '{name}'"):
            to_tensordict(data.sample(2), data.settings)


@pytest.mark.parametrize("name", ["seen", "id", *OF_TORCHRL])
def test_an_extra_that_would_be_lost_is_refused(tmp_path, name):
    path = named(tmp_path / "s.zarr", extras=("value", name))
    with pytest.raises(mmreplay.SchemaError, match=f"extras: .* found '{name}', .*rename it"):
        StoreStorage(path)


def test_a_function_may_rename_what_would_be_lost(tmp_path):
    def renamed(batch, generator):
        extras = {"seen": batch.extras["observation"]}
        return dataclasses.replace(batch, extras=extras)

    with mmreplay.load(named(tmp_path / "s.zarr", (), ("observation",)), stack=None) as data:
        storage = StoreStorage(mmreplay.Decorated(data, renamed))
        sample = ReplayBuffer(storage=storage, batch_size=20).sample()
        assert sample["seen"].tolist() == (sample["id"] + 50).tolist()
        assert sample["observation"].shape == (20, 3)
        with pytest.raises(IndexError, match="there are 10 transitions"):
            storage.get(10)
        with pytest.raises(mmreplay.SchemaError, match="write with mmreplay"):
            storage.set(0, sample)


def test_transitions_of_a_store_that_took_the_place_are_refused(replaceable):
    path, replace = replaceable
    with mmreplay.load(path, stack=None) as data:
        made = StoreStorage(data)
        made.get([0])
        replace()
        data.refresh()
        with pytest.raises(mmreplay.SchemaError, match="another at this path"):
            made.get([0])
