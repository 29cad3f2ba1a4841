"""Windows of columns, worked out by hand, and the calls that give them. Draws: tests/property."""

import contextlib
import dataclasses
import pickle

import numpy as np
import pytest

import mmreplay
from mmreplay import Decorated, EmptyBufferError, Field, SchemaError, WindowBatch, transforms
from mmreplay.storage.shard_column import ShardColumn
from tests.support.oracle.checks import check_same
from tests.support.oracle.drawn_ahead import check_equal

ACTION, X = Field((), "int64"), Field((2,), "float32")
GOALS = {"achieved_goal": Field((1,)), "desired_goal": Field((1,))}


def play(writer):
    """Episodes of 3 steps (terminated), 4 (a life lost at the second) and 2 (running)."""
    for frames, flags in (
        ((10, 11, 12, 13), {3: {"terminated": True}}),
        ((20, 21, 22, 23, 24), {2: {"life_lost": True}, 4: {"truncated": True}}),
        ((30, 31, 32), {}),
    ):
        writer.reset(np.array([frames[0]], "uint8"))
        for number, frame in enumerate(frames[1:], 1):
            value = np.array([frame], "uint8")
            writer.step(frame, frame / 2, value, **flags.get(number, {}), x=[frame, number])


def ids_of(batches):
    return [id_ for batch in batches for id_ in batch.id.tolist()]


@pytest.fixture
def path(make):
    writer = make(frame=Field((1,), "uint8", "lz4", chunk=2, shard=4), extras={"x": X})
    play(writer)
    return writer.path


@pytest.fixture
def data(path):
    with mmreplay.load(path, stack=3, n_step=2, gamma=0.5, clip_reward=(0, 1)) as loaded:
        yield loaded


def test_each_column_has_its_own_offsets_and_is_as_stored(data):
    batch = data.windows(
        [2, 0, 8], {"observation": (-1, 0, 1, 3), "action": range(3), "reward": [-1, 1], "x": 0}
    )
    assert batch["observation"][..., 0].tolist() == [
        [11, 12, 13, 13],
        [10, 10, 11, 13],
        [30, 31, 32, 32],
    ]
    assert batch.mask["observation"].tolist() == [
        [True, True, True, False],
        [False, True, True, True],
        [True, True, True, False],
    ]
    assert batch["action"].tolist() == [[13, 13, 13], [11, 12, 13], [32, 32, 32]]
    assert batch.mask["action"].tolist() == [[True, False, False], [True] * 3, [True, False, False]]
    assert batch["reward"].tolist() == [[6, 0], [0, 6], [15.5, 0]]
    assert batch["x"].tolist() == [[13, 3], [11, 1], [32, 2]]
    assert batch.mask["x"].tolist() == [True] * 3
    assert batch.id.tolist() == [2, 0, 8]
    assert batch.weight.tolist() == [1] * 3
    assert (len(batch), batch["action"].dtype, batch["observation"].dtype) == (3, "int64", "uint8")
    flags = data.windows([3, 4], {"non_terminal": [[0, 1], [2, 9]]})["non_terminal"]
    assert flags.tolist() == [[[True, False], [True, True]], [[False, True], [True, True]]]
    assert "fields['action']=int64[3, 3]" in repr(batch)


def test_a_batch_has_the_fields_of_the_interface(data):
    assert [one.name for one in dataclasses.fields(WindowBatch)] == [
        "fields", "mask", "id", "weight"
    ]  # fmt: skip
    batch = data.sample_windows(3, {"action": 0, "observation": (-1, 0)})
    assert list(batch.fields) == list(batch.mask) == ["action", "observation"]
    assert batch.weight.dtype == "float32"
    with pytest.raises(dataclasses.FrozenInstanceError):
        batch.id = batch.weight  # type: ignore[misc]
    with pytest.raises(KeyError):
        _ = batch["reward"]
    assert pickle.loads(pickle.dumps(batch))["action"].tolist() == batch["action"].tolist()


def test_dict_observations_come_whole_or_by_key_which_is_never_split(make):
    writer = make(frame={"a": Field((1,)), "b.c": Field((), "float32")})
    writer.reset({"a": [1], "b.c": 0.5})
    writer.step(0, 0.0, {"a": [2], "b.c": 1.5})
    with mmreplay.load(writer.path) as data:
        given = {"observation": (0, 1), "observation.b.c": 1, "observation.a": (1, 0)}
        batch = data.windows([0], given)
        assert batch["observation"]["a"].tolist() == [[[1], [2]]]
        assert batch["observation"]["b.c"].tolist() == [[0.5, 1.5]]
        assert batch["observation.b.c"].tolist() == [1.5]
        assert batch["observation.a"].tolist() == [[[2], [1]]]
        assert data.sample_windows(1, given, out=batch) is batch
        for name in ("observation.b", "a", "observation.", "b.c"):
            with pytest.raises(
                SchemaError, match=r"names among .*observation\.a, observation\.b\.c"
            ):
                data.windows([0], {name: 0})


def test_drop_draws_where_all_is_inside(data):
    given = {"observation": (-1, 2), "action": (0, 1)}
    assert {*data.sample_windows(200, given, "drop").id.tolist()} == {1, 4, 5}
    batches = data.window_batches(2, given, "drop", shuffle=False)
    assert [batch.id.tolist() for batch in batches] == [[1, 4], [5]]
    with pytest.raises(EmptyBufferError, match=r"no episode has the 6 steps of a window"):
        data.sample_windows(1, {"observation": (-1, 5)}, "drop")
    best = data.select(ids=[0, 5])
    assert {*best.sample_windows(50, given, "drop").id.tolist()} == {5}  # which reaches step 6
    assert {*best.sample_windows(50, given).id.tolist()} == {0, 5}


def test_only_the_images_that_are_named_are_decoded(make, monkeypatch):
    writer = make(frame=Field((1,), "uint8", "lz4", chunk=1, shard=8))
    writer.reset(np.zeros(1, "uint8"))
    for t in range(100):
        writer.step(t, 0.0, np.full(1, t, "uint8"))
    writer.close()
    decoded, decode = [], ShardColumn._decode_chunk
    monkeypatch.setattr(
        ShardColumn, "_decode_chunk", lambda *given: decode(*given) and (decoded.append(1) or True)
    )
    with mmreplay.load(writer.path, stack=4, n_step=5) as data:
        data.windows([3, 40], {"action": range(50), "reward": range(50)})
        assert not decoded
        data.windows([3, 40], {"action": range(50), "observation": 0})
        assert len(decoded) == 2
        data.windows([3, 40], {"observation": (-2, 0, 9)})
        assert len(decoded) == 2 + 6


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "windows: expected offsets by name"),
        ([0], "windows: expected offsets by name"),
        ({"actions": 0}, r"names among action, non_terminal, observation, reward, x; found 'act"),
        ({"action": []}, r"windows: action: expected steps from the drawn one"),
        ({"action": 0.5}, r"found 0\.5"),
        ({"action": True}, "found True"),
        ({"action": [[1], [2, 3]]}, r"found \[\[1\], \[2, 3\]\]"),
        ({"action": "0"}, "found '0'"),
        ({"action": 1 << 21}, "to 1,048,576, one or more; found 2097152"),
    ],
)
def test_what_no_column_or_offset_is_is_refused(data, given, words):
    for call in (
        lambda: data.sample_windows(2, given),
        lambda: data.windows([0], given),
        lambda: data.window_batches(2, given),
    ):
        with pytest.raises(SchemaError, match=words):
            call()


def test_a_boundary_of_sequences_is_refused(data):
    with pytest.raises(SchemaError, match=r"boundary: expected one of \('pad', 'drop'\)"):
        data.sample_windows(2, {"action": 0}, "shift")
    with pytest.raises(mmreplay.InvalidIdError, match="id 9 "):
        data.windows([0, 9], {"action": 0})
    with pytest.raises(SchemaError, match="out: expected a batch of 2"):
        data.sample_windows(2, {"action": 0}, out=data.sample_windows(2, {"action": (0,)}))


def test_wrappers_that_change_what_is_stored_refuse_windows_before_anything_runs(make):
    writer = make(frame=GOALS)
    place = {key: np.zeros(1, "uint8") for key in GOALS}
    writer.reset(place)
    writer.step(0, 0.0, place)

    def reward(achieved, desired, info):
        raise AssertionError

    with mmreplay.load(writer.path) as data:
        state = data.generator.bit_generator.state
        for one in (mmreplay.Hindsight(data, reward), mmreplay.Mixture([data])):
            for source in (one, Decorated(one)):
                for call in (
                    lambda source=source: source.sample_windows(2, {"action": 0}),
                    lambda source=source: source.windows([0], {"action": 0}),
                    lambda source=source: source.window_batches(2, {"action": 0}),
                ):
                    with pytest.raises(SchemaError, match=rf"{type(one).__name__}\.\w*windows?"):
                        call()
        assert data.generator.bit_generator.state == state


def test_functions_get_windows_and_transforms_know_them(make):
    frame = {"image": Field((8, 8)), "state": Field((2,), "float32")}
    writer = make(frame=frame, action=Field((2,), "float32"))
    random = np.random.default_rng(0)
    for t in range(30):
        seen = {"image": random.integers(0, 256, (8, 8), "uint8"), "state": random.random(2, "f4")}
        writer.reset(seen) if t % 10 == 0 else writer.step(random.random(2, "f4"), 9.0, seen)
    given = {"observation.image": (-1, 0), "observation.state": 0, "reward": 0, "action": (0, 1)}

    def halved(batch, generator):
        if "action" in batch.fields:
            batch["action"][:] /= 2
        return batch

    functions = (
        transforms.RandomShift(2, keys=("image",)),
        transforms.PixelsToFloat(keys=("image",)),
        transforms.Normalize(
            {"observation.state": [1, 1]}, {"observation.state": [2, 2]}, epsilon=0
        ),
        transforms.ClipReward(),
        halved,
    )
    with mmreplay.load(writer.path, stack=None) as data, mmreplay.load(writer.path) as twin:
        decorated, plain = Decorated(data, *functions), twin.sample_windows(6, given)
        found = decorated.sample_windows(6, given)
        assert found.id.tolist() == plain.id.tolist()
        assert found["reward"].tolist() == [1] * 6
        assert np.array_equal(found["action"], plain["action"] / 2)
        np.testing.assert_allclose(found["observation.state"], (plain["observation.state"] - 1) / 2)
        assert found["observation.image"].shape == (6, 2, 8, 8)
        assert not np.array_equal(found["observation.image"] * 255, plain["observation.image"])
        same = decorated.windows(plain.id, {"observation.image": (0, 0)})["observation.image"]
        assert np.array_equal(same[:, 0], same[:, 1])  # one shift for all offsets
        whole = Decorated(data, *functions).windows(data.ids, {"observation": 0})["observation"]
        assert (whole["image"].dtype, whole["state"].dtype) == ("float32", "float32")
        again = decorated.sample_windows(6, given, out=found)
        assert again is found
        assert ids_of(decorated.window_batches(5, given, shuffle=False)) == data.ids.tolist()
        wrong = Decorated(data, transforms.Normalize(np.zeros(2), np.ones(2)))
        with pytest.raises(SchemaError, match="Normalize: expected some of"):
            wrong.sample_windows(2, given)


def test_a_prioritized_buffer_draws_them_by_priority(tmp_path, quick_disk):
    def fill(name):
        buffer = mmreplay.PrioritizedReplayBuffer(
            tmp_path / name, stack=None, frame=Field((1,)), action=ACTION, extras={"x": X}
        )
        play(buffer)
        buffer.update_priorities([0, 1, 2], [5.0, 0.0, 1.0])
        return buffer

    given = {"action": (0, 9), "observation": 1}
    with fill("a.zarr") as buffer, fill("b.zarr") as twin:
        for _ in range(3):
            batch, plain = buffer.sample_windows(8, given), twin.sample(8)
            assert batch.id.tolist() == plain.id.tolist()
            check_same(batch.weight, plain.weight, "weight")
            assert np.array_equal(batch["observation"], plain.next_observation)
        assert buffer.beta == twin.beta
        assert len({*batch.weight.tolist()}) > 1
        with pytest.raises(
            SchemaError, match="boundary: expected 'pad': every step has a priority"
        ):
            buffer.sample_windows(2, given, "drop")
        drawn = next(buffer.window_batches(9, {"action": (0, 3)}, "drop", shuffle=False))
        assert (drawn.id.tolist(), drawn.weight.tolist()) == ([3], [1])


@pytest.mark.parametrize("boundary", ["pad", "drop"])
@pytest.mark.parametrize("shuffle", [True, "full", False])
def test_an_epoch_is_divided_over_ranks_and_continued(path, boundary, shuffle):
    given = {"windows": {"action": (0, 1), "observation": (-1, 0)}, "boundary": boundary}
    given["shuffle"] = shuffle
    with mmreplay.load(path, seed=5) as data, mmreplay.load(path, seed=6) as again:
        whole = ids_of(data.window_batches(2, epoch=0, **given))
        expected = data.ids.tolist() if boundary == "pad" else [1, 4, 5]
        assert sorted(whole) == expected
        shares = [
            ids_of(data.window_batches(2, epoch=0, rank=rank, world_size=2, **given))
            for rank in (0, 1)
        ]
        assert sorted([*shares[0], *shares[1]]) == expected
        batches = data.window_batches(2, epoch=3, epochs=2, **given)
        next(batches)
        state = data.state_dict()
        rest = ids_of(batches)
        again.load_state_dict(state)
        assert ids_of(again.window_batches(2, epochs=2, **given)) == rest
        again.load_state_dict(state)
        other = {**given, "windows": {"action": (0, 1), "observation": (-1, 1)}}
        refused = pytest.raises(SchemaError, match=r"frames: expected \[1, 0\], .*found \[1, 1\]")
        with refused if shuffle is True else contextlib.nullcontext():
            again.window_batches(2, **other)


def test_what_a_capacity_evicts_can_be_reached_but_not_drawn(tmp_path, quick_disk):
    given = {"frame": Field((), "int64", chunk=8), "action": Field((), "int64", chunk=8)}
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", 20, stack=None, **given, flush_s=0) as buffer:
        buffer.reset(0)
        for t in range(200):
            buffer.step(t, float(t), t + 1)
        buffer.flush()
        batch = buffer.windows(buffer.ids[:2], {"action": (-64, 0, 63), "observation": -64})
        assert batch["action"].tolist() == [[116, 180, 199], [117, 181, 199]]
        assert batch["observation"].tolist() == [116, 117]
        assert batch.mask["action"].tolist() == [[True, True, False]] * 2
        ids = buffer.sample_windows(300, {"action": (-64, 2)}, "drop").id
        assert {*ids.tolist()} == {*range(180, 198)}
        for call in (buffer.sample_windows, buffer.window_batches):
            with pytest.raises(SchemaError, match="offsets of -64 or more if a capacity evicts"):
                call(2, {"action": (0, -65)})
        part = buffer.select(ids=[180, 190])
        assert {*part.sample_windows(50, {"action": (-64, 2)}, "drop").id.tolist()} == {180, 190}


def test_batches_are_read_ahead_as_they_are_without(path, readers):
    given = {"action": (0, 2), "observation": (-1, 1)}
    with mmreplay.load(path) as plain, mmreplay.load(path, prefetch=2) as ahead:
        for boundary in ("pad", "drop"):
            batch = None
            for _ in range(4):
                batch = ahead.sample_windows(3, given, boundary, out=batch)
                check_equal(batch, plain.sample_windows(3, given, boundary))
            pairs = zip(
                ahead.window_batches(2, given, boundary),
                plain.window_batches(2, given, boundary),
                strict=True,
            )
            for found, expected in pairs:
                check_equal(found, expected)
    assert {name.rpartition("_")[0] for name in readers} == {"mmreplay-ahead"}


@pytest.mark.parametrize("shuffle", [True, False])
def test_what_is_evicted_in_the_middle_of_an_epoch_is_left_out_of_it(tmp_path, quick_disk, shuffle):
    given = {"frame": Field((), "int64", chunk=8), "action": Field((), "int64", chunk=8)}
    with mmreplay.ReplayBuffer(tmp_path / "b.zarr", 30, stack=None, **given, flush_s=0) as buffer:
        buffer.reset(0)
        for t in range(200):
            buffer.step(t, 0.0, t + 1)
        windows = {"action": (-2, 0), "observation": 1}
        epochs = (
            buffer.window_batches(4, windows, shuffle=shuffle),
            buffer.window_batches(4, windows, "drop", shuffle=shuffle),
            buffer.sequence_batches(4, 2, 5, "cross", shuffle=shuffle),
        )
        for epoch in epochs:
            next(epoch)
        for t in range(200, 220):
            buffer.step(t, 0.0, t + 1)
        buffer.flush()
        for epoch in epochs:
            for batch in epoch:
                here = batch.id[batch.id >= 0]
                assert here.size
                assert here.min() >= 190
                assert here.max() < 200
                if isinstance(batch, WindowBatch):
                    assert np.array_equal(batch["observation"], batch.id + 1)
                else:  # whose burn-in may be gone
                    assert batch.mask[:, 5:].all()
                    assert np.array_equal(batch.action[batch.mask], here)
