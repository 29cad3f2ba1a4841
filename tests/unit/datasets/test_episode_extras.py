"""Fields of episodes in batches: every sample has those of its own episode."""

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError, Text

N = 3


def record(path, episode, lengths, lanes=None, capacity=None):
    """Episodes whose number is in every action, and in what `episode` makes of it."""
    fields = {name: spec for name, (spec, _) in episode.items()}
    given = {"frame": Field((2,), "uint8", "raw"), "action": Field((), "int64"), "flush_s": 0}
    with mmreplay.create(path, **given, episode=fields, lanes=lanes, capacity=capacity) as writer:
        numbers, shape = np.arange(lanes or 1), (lanes, 2) if lanes else (2,)
        for length in lengths:
            values = {name: make(numbers) for name, (_, make) in episode.items()}
            if not lanes:
                values = {name: value[0] for name, value in values.items()}
            writer.reset(np.zeros(shape, np.uint8), **values)
            for step in range(length):
                actions, frames = (numbers if lanes else numbers[0]), np.full(shape, step, np.uint8)
                over = step == length - 1
                flags = (np.full(lanes, over), np.zeros(lanes, bool)) if lanes else (over, False)
                writer.step(actions, np.zeros(lanes) if lanes else 0.0, frames, *flags)
            numbers = numbers + (lanes or 1)


TASKS = {
    "task": (Text(8), lambda numbers: [f"task {number}" for number in numbers]),
    "goal": (Field((2,), "float32"), lambda numbers: np.stack([numbers, numbers + 0.5], axis=-1)),
}


def wrong(actions, extras):
    """What of the fields does not belong to the actions; (B,) or (B, T)."""
    goals = np.stack([actions, actions + 0.5], axis=-1)
    tasks = np.char.add("task ", actions.astype("<U4"))
    return (extras["episode.task"] != tasks).sum() + (extras["episode.goal"] != goals).sum()


@pytest.fixture(params=[None, N], ids=["one environment", "three environments"])
def path(tmp_path, request):
    record(tmp_path / "s.zarr", TASKS, [4, 1, 9, 3], request.param)
    return tmp_path / "s.zarr"


def load(path, **settings):
    return mmreplay.load(path, stack=None, seed=0, episode=["task", "goal"], **settings)


def test_every_way_to_a_batch_has_the_fields_of_its_episode(path):
    data = load(path)
    decorated = mmreplay.Decorated(data, lambda batch, _: batch)
    both = mmreplay.Mixture([data, load(path)])
    batches = [
        data.sample(64),
        data.transitions(data.ids),
        *data.batches(7),
        decorated.sample(64),
        both.sample(64),
        data.select(episodes=[1, 2]).sample(64),
        data.split(0.5, seed=0)[0].sample(64),
        load(path, n_step=3, prefetch=2).sample(64),
    ]
    assert [wrong(batch.action, batch.extras) for batch in batches] == [0] * len(batches)
    assert len(np.unique(batches[1].extras["episode.task"])) == len(data.episodes)


def test_sequences_have_them_at_every_step_also_across_episodes(path):
    data = load(path)
    for boundary in ("drop", "pad", "cross"):
        batch = data.sample_sequences(64, 3, boundary=boundary)
        mask = batch.mask
        extras = {name: values[mask] for name, values in batch.extras.items()}
        assert wrong(batch.action[mask], extras) == 0, boundary


def test_rows_that_were_evicted_take_no_field_with_them(tmp_path):
    record(tmp_path / "s.zarr", TASKS, [5] * 30, capacity=40)
    batch = (data := load(tmp_path / "s.zarr")).transitions(data.ids)
    assert wrong(batch.action, batch.extras) == 0
    assert batch.action.min() > 0


def test_a_store_without_the_field_gives_zeros_and_empty_texts(tmp_path):
    record(tmp_path / "a.zarr", TASKS, [3])
    record(tmp_path / "b.zarr", {"success": (Field((), "int8"), lambda n: n + 1)}, [2])
    paths = [tmp_path / "a.zarr", tmp_path / "b.zarr"]
    data = mmreplay.load(paths, stack=None, episode=["task", "success"])
    batch = data.transitions(data.ids)
    assert batch.extras["episode.task"].tolist() == ["task 0"] * 3 + [""] * 2
    assert batch.extras["episode.success"].tolist() == [0] * 3 + [1] * 2
    with pytest.raises(SchemaError, match="colour"):
        mmreplay.load(paths, episode=["colour"])


def test_packed_stores_of_other_fields_keep_them_all(tmp_path):
    record(tmp_path / "a.zarr", TASKS, [3, 2])
    record(tmp_path / "b.zarr", {"success": (Field((), "int8"), lambda n: n + 1)}, [2])
    mmreplay.pack([tmp_path / "a.zarr", tmp_path / "b.zarr"], tmp_path / "c.zarr")
    with mmreplay.open(tmp_path / "c.zarr") as store:
        assert store.episodes["task"].tolist() == ["task 0", "task 1", ""]
        assert store.episodes["goal"].tolist() == [[0, 0.5], [1, 1.5], [0, 0]]
        assert store.episodes["success"].tolist() == [0, 0, 1]
