"""Batches whose frames come from a cache on the device equal the data's own, bit for bit.

On the CPU, and on CUDA where there is one.
"""

import dataclasses
import itertools

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError

torch = pytest.importorskip("torch")

from mmreplay.adapters.torch import on_device, to_tensors  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
IMAGE = (6, 5)
FRAME_BYTES = 30
BUFFERS = {
    "uniform": mmreplay.ReplayBuffer,
    "prioritized": mmreplay.PrioritizedReplayBuffer,
}
SETTINGS = {
    "stacks": {"stack": 4},
    "channels last, n steps, zeros": {
        "stack": 4, "n_step": 3, "stack_axis": -1, "padding": "zero"
    },
    "n steps": {"stack": 1, "n_step": 3},
    "single frames": {"stack": None},
}  # fmt: skip
# The frames that fit beside the capacity: far too few, all, and about as many as are kept.
MEMORY = {"few": (50, None), "all": (5000, 100), "some": (300, 150)}


def assert_same(found, expected):
    for field in dataclasses.fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(other, dict):
            assert one.keys() == other.keys()
            pairs = [(one[key], other[key]) for key in other]
        else:
            pairs = [(one, other)]
        for tensor, like in pairs:
            if not isinstance(like, torch.Tensor):
                assert tensor == like
                continue
            assert (tensor.dtype, tensor.shape) == (like.dtype, like.shape), field.name
            assert torch.equal(tensor.cpu(), like), field.name


class Played:
    """A buffer that is written on and on, with resets in mid-episode."""

    def __init__(self, buffer, environments, shape):
        self.buffer, self.n, self.shape = buffer, environments, shape
        self.rng = np.random.default_rng(0)
        buffer.reset(self.frames())

    def frames(self):
        many = () if self.n is None else (self.n,)
        return self.rng.integers(0, 255, (*many, *self.shape), dtype=np.uint8)

    def play(self, n_steps):
        for _ in range(n_steps):
            if self.n is None:
                is_over = bool(self.rng.random() < 0.05)
                self.buffer.step(1, self.rng.random(), self.frames(), is_over, False)
                if is_over or self.rng.random() < 0.02:
                    self.buffer.reset(self.frames())
                continue
            is_over, none = self.rng.random(self.n) < 0.05, np.zeros(self.n, bool)
            actions, rewards = np.arange(self.n), self.rng.random(self.n)
            self.buffer.step(actions, rewards, self.frames(), is_over, none)
            again = is_over | (self.rng.random(self.n) < 0.02)
            if again.any():
                self.buffer.reset(self.frames(), again)


def twice(data, draw, window_draw):
    """What both draw from the same random state."""
    state = data.state_dict()
    expected = draw()
    data.load_state_dict(state)
    return window_draw(), expected


def check_draws(data, window, size=16):
    found, expected = twice(data, lambda: data.sample(size), lambda: window.sample(size))
    assert_same(found, to_tensors(expected))
    how = {"length": 5, "burn_in": 1, "boundary": "pad"}
    found, expected = twice(
        data,
        lambda: data.sample_sequences(4, **how),
        lambda: window.sample_sequences(4, **how),
    )
    assert_same(found, to_tensors(expected))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    ("kind", "codec", "environments"),
    [("uniform", "lz4", None), ("prioritized", "raw", None), ("prioritized", "lz4", 3)],
)
def test_batches_equal_those_of_the_buffer(
    tmp_path, device, memory, settings, kind, codec, environments
):
    slots, capacity = MEMORY[memory]
    frame = Field(IMAGE, "uint8", codec, chunk=4, shard=16)
    lanes = {} if environments is None else {"lanes": environments}
    how = {**SETTINGS[settings], "seed": 3, **lanes}
    with BUFFERS[kind](
        tmp_path / "s.zarr", capacity, frame=frame, action=Field((), "int64"), **how
    ) as buffer:
        played = Played(buffer, environments, IMAGE)
        played.play(5)
        with on_device(buffer, device, memory=slots * FRAME_BYTES) as window:
            assert len(window) == len(buffer)
            for _ in range(20):
                played.play(7)
                found = check_draws(buffer, window)
                if kind == "prioritized":
                    ids = found.id[found.mask]
                    window.update_priorities(ids, torch.linspace(1, 7, len(ids), device=device))
            found, expected = twice(
                buffer, lambda: [*buffer.batches(32)], lambda: [*window.batches(32)]
            )
            assert len(found) == len(expected) > 1
            for one, other in zip(found, expected, strict=True):
                assert_same(one, to_tensors(other))


@pytest.mark.parametrize("shape", [(7,), (6, 5, 3)])
def test_stacks_of_vectors_and_images_with_channels(tmp_path, shape):
    frame = Field(shape, "uint8", "raw")
    how = {"stack": 3, "n_step": 2, "stack_axis": -1}
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=frame, action=Field((), "int64"), **how
    ) as buffer:
        Played(buffer, None, shape).play(60)
        with on_device(buffer, "cpu", memory="1 MB") as window:
            check_draws(buffer, window)


def test_selections_several_stores_and_dicts(tmp_path):
    observation = {"image": Field(IMAGE, "uint8", "lz4", chunk=4), "state": Field((3,), "float32")}
    paths = [tmp_path / f"{name}.zarr" for name in "ab"]
    for number, path in enumerate(paths):
        with mmreplay.create(path, frame=observation, action=Field((), "int64")) as writer:
            values = itertools.count(100 * number)

            def seen(values=values):
                at = next(values)
                return {"image": np.full(IMAGE, at % 251, np.uint8), "state": [at, -at, 0.5]}

            for _ in range(4):
                writer.reset(seen())
                for step in range(9):
                    writer.step(step, 1.0, seen(), step == 8, False)
    with mmreplay.load(paths, stack=2, n_step=2, seed=0) as data:
        some = data.select(episodes=[0, 3, 6])
        for one in (data, some):
            with on_device(one, "cpu", memory="100 kB") as window:
                for _ in range(10):
                    check_draws(one, window)
                window.fill()
                check_draws(one, window)


def test_a_store_that_is_closed_and_opened_again(tmp_path):
    path = tmp_path / "s.zarr"
    how = {"frame": Field(IMAGE, "uint8", "lz4", chunk=4), "action": Field((), "int64")}
    with mmreplay.ReplayBuffer(path, 60, stack=2, **how) as buffer:
        Played(buffer, None, IMAGE).play(80)
    with mmreplay.load(path, stack=2, seed=1) as data, on_device(data, "cpu", memory=9000) as window:
        check_draws(data, window)
        for _ in range(3):
            with mmreplay.ReplayBuffer(path, 60, stack=2, resume=True) as buffer:
                played = Played(buffer, None, IMAGE)
                played.play(30)
                check_draws(data, window)
            check_draws(data, window)


def test_frames_that_were_cached_are_not_read_again(tmp_path, monkeypatch):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=Field(IMAGE, "uint8", "lz4"), action=Field((), "int64"), stack=4
    ) as buffer:
        Played(buffer, None, IMAGE).play(100)
        with on_device(buffer, "cpu", memory="1 MB") as window:
            window.fill()
            column = buffer.store.live.columns["frames"]
            read, take = [], type(column).take

            def counted(self, ids, *arguments):
                read.append(ids.size)
                return take(self, ids, *arguments)

            monkeypatch.setattr(type(column), "take", counted)
            for _ in range(10):
                window.sample(32)
            n_finals = len(buffer.episodes) + 1
            assert sum(read) <= n_finals  # each final observation once, as it is drawn


def test_out_is_overwritten(tmp_path):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=Field(IMAGE, "uint8"), action=Field((), "int64"), stack=2
    ) as buffer:
        Played(buffer, None, IMAGE).play(50)
        with on_device(buffer, "cpu", memory="1 MB") as window:
            first = window.sample(8)
            found, expected = twice(
                buffer, lambda: buffer.sample(8), lambda: window.sample(8, out=first)
            )
            assert found is first
            assert_same(first, to_tensors(expected))


@pytest.mark.parametrize("memory", ["many", "3 parsecs", 0, -1, 1.5, "0 MB"])
def test_memory_is_a_number_of_bytes(tmp_path, memory):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=Field((2,), "uint8"), action=Field((), "int64")
    ) as buffer, pytest.raises(SchemaError, match="memory: expected"):
        on_device(buffer, "cpu", memory=memory)


def test_wrapped_data_is_refused_by_name(tmp_path):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=Field((2,), "uint8"), action=Field((), "int64")
    ) as buffer, pytest.raises(SchemaError, match="on_device: .* found a Mixture"):
        on_device(mmreplay.Mixture([buffer, buffer]), "cpu", memory=100)
