"""Batches whose frames come from a cache on the device equal the data's own, bit for bit.

On the CPU, and on CUDA where there is one.
"""

import itertools
import random
import subprocess
import sys
import time

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError, UnsupportedError
from mmreplay.batches.batch import arrays_of
from mmreplay.ids import LANE_SHIFT
from tests.support.effort import by_effort

torch = pytest.importorskip("torch")

from mmreplay.adapters.torch import on_device, to_tensors  # noqa: E402

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
IMAGE = (6, 5)
FRAME_BYTES = 30
BUFFERS = {
    "uniform": mmreplay.ReplayBuffer,
    "prioritized": mmreplay.PrioritizedReplayBuffer,
}
SETTINGS: dict[str, dict] = {
    "stacks": {"stack": 4},
    "channels last, n steps, zeros": {
        "stack": 4, "n_step": 3, "stack_axis": -1, "padding": "zero"
    },
    "n steps": {"stack": 1, "n_step": 3},
    "single frames": {"stack": None},
}  # fmt: skip
EPOCHS: dict[str, dict] = {
    "sequence_batches": {"length": 3, "boundary": "pad"},
    "window_batches": {"windows": {"observation": (0, 2), "action": 1}, "boundary": "drop"},
}
# The frames that fit beside the capacity: far too few, all, and about as many as are kept.
MEMORY = {"few": (50, None), "all": (5000, 100), "some": (300, 150)}


def assert_same(found, expected):
    found, expected = arrays_of(found), arrays_of(expected)
    assert found.keys() == expected.keys()
    for name, like in expected.items():
        one = found[name]
        if not isinstance(like, torch.Tensor):
            assert one == like
            continue
        assert (one.dtype, one.shape) == (like.dtype, like.shape), name
        assert torch.equal(one.cpu(), like), name


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
    offsets = {"observation": (-1, 0, 3), "action": range(4), "reward": 0}
    pair, expected = twice(
        data,
        lambda: data.sample_windows(4, offsets),
        lambda: window.sample_windows(4, offsets),
    )
    assert_same(pair, to_tensors(expected))
    assert_same(window.transitions(pair.id), to_tensors(data.transitions(pair.id.cpu().numpy())))
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
            for name, given in EPOCHS.items():
                found, expected = twice(
                    buffer,
                    lambda name=name, given=given: [*getattr(buffer, name)(16, **given)],
                    lambda name=name, given=given: [*getattr(window, name)(16, **given)],
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
    with (
        mmreplay.load(path, stack=2, seed=1) as data,
        on_device(data, "cpu", memory=9000) as window,
    ):
        check_draws(data, window)
        for _ in range(3):
            with mmreplay.ReplayBuffer(path, 60, stack=2, resume=True) as buffer:
                played = Played(buffer, None, IMAGE)
                played.play(30)
                check_draws(data, window)
            check_draws(data, window)


def test_frames_that_were_cached_are_not_read_again(tmp_path, monkeypatch):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr",
        frame=Field(IMAGE, "uint8", "lz4"),
        action=Field((), "int64"),
        stack=4,
        seed=0,
    ) as buffer:
        Played(buffer, None, IMAGE).play(100)
        with on_device(buffer, "cpu", memory="1 MB") as window:
            window.fill()
            column = buffer.store.live.columns["frames"]
            read, take = [], type(column).take

            def counted(self, ids, *arguments):
                read.extend(ids.tolist())
                return take(self, ids, *arguments)

            monkeypatch.setattr(type(column), "take", counted)
            for _ in range(10):
                window.sample(32)
            pending = buffer.writer.rows  # may still change
            others = [one for one in read if one != pending]
            assert len(others) == len(set(others))
            n_finals = len(buffer.episodes)  # are cached when they are drawn
            assert {one >> LANE_SHIFT for one in others} == {1}
            assert 0 < len(others) <= n_finals


def test_a_batch_that_is_sent_together_is_the_same_and_shares_its_frames(tmp_path):
    with mmreplay.ReplayBuffer(
        tmp_path / "s.zarr", frame=Field(IMAGE, "uint8"), action=Field((), "int16"), stack=2
    ) as buffer:
        Played(buffer, None, IMAGE).play(50)
        for batch in (buffer.sample(8), buffer.sample_sequences(3, 4), buffer.sample(1)):
            tensors = to_tensors(batch)
            for device in map(torch.device, DEVICES):
                sent = tensors.together(device)
                assert_same(sent, tensors)
                assert len({one.untyped_storage().data_ptr() for one in all_of(sent)}) == 1
                distance = sent.next_observation.data_ptr() - sent.observation.data_ptr()
                assert (
                    distance == batch.next_observation.ctypes.data - batch.observation.ctypes.data
                )


def all_of(batch):
    return [one for one in arrays_of(batch).values() if isinstance(one, torch.Tensor)]


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
    with (
        mmreplay.ReplayBuffer(
            tmp_path / "s.zarr", frame=Field((2,), "uint8"), action=Field((), "int64")
        ) as buffer,
        pytest.raises(SchemaError, match="memory: expected"),
    ):
        on_device(buffer, "cpu", memory=memory)


def test_wrapped_data_is_refused_by_name(tmp_path):
    with (
        mmreplay.ReplayBuffer(
            tmp_path / "s.zarr", frame=Field((2,), "uint8"), action=Field((), "int64")
        ) as buffer,
        pytest.raises(SchemaError, match=r"on_device: .* found a Mixture"),
    ):
        on_device(mmreplay.Mixture([buffer, buffer]), "cpu", memory=100)


def test_what_a_window_lacks_it_refuses_by_name(tmp_path):
    with (
        mmreplay.ReplayBuffer(
            tmp_path / "s.zarr", frame=Field((2,), "uint8"), action=Field((), "int64")
        ) as buffer,
        on_device(buffer, "cpu", memory="1kB") as window,
    ):
        for call in (lambda: window.select(ids=[0]), lambda: window.split(0.5)):
            with pytest.raises(UnsupportedError, match="select or split the data"):
                call()
        with pytest.raises(UnsupportedError, match="use the data that it was made of"):
            window.check_has("trajectory")
        with pytest.raises(UnsupportedError, match="samples uniformly"):
            window.update_priorities([0], [1.0])
        assert window.schema is buffer.schema
        assert window.paths == buffer.paths


@pytest.mark.parametrize("device", DEVICES)
def test_derived_columns_are_updated_with_tensors(tmp_path, device):
    with (
        mmreplay.ReplayBuffer(
            tmp_path / "s.zarr",
            frame=Field((2,), "uint8"),
            action=Field((), "int64"),
            derived={"value": Field((3,), "float32")},
        ) as buffer,
        on_device(buffer, device, memory="1kB") as window,
    ):
        buffer.reset(np.zeros(2))
        for step in range(8):
            buffer.step(step, 0.0, np.zeros(2))
        ids = torch.tensor([2, 5, -1], device=device)
        window.update(ids, value=torch.arange(9.0, device=device).reshape(3, 3))
        window.flush()
        found = window.transitions(buffer.ids).extras["value"].cpu()
        expected = np.zeros((8, 3))
        expected[[2, 5]] = np.arange(6.0).reshape(2, 3)
        assert found.tolist() == expected.tolist()
        assert window.n_late_updates == 0


TRAINING = """
import sys
import mmreplay
from mmreplay import Field
from mmreplay.adapters.torch import on_device
from tests.unit.adapters.test_on_device import IMAGE, Played

how = {"stack": 2, "n_step": 2, "frame": Field(IMAGE, "uint8", "lz4", chunk=4, shard=16)}
buffer = mmreplay.ReplayBuffer(sys.argv[1], 200, action=Field((), "int64"), **how)
window = on_device(buffer, "cpu", memory="4 kB")
played = Played(buffer, None, IMAGE)
while True:
    played.play(7)
    window.sample(16)
    print("went on", flush=True)
"""


def test_after_writer_and_learner_were_killed_batches_are_those_of_the_store(tmp_path):
    path, chance = tmp_path / "s.zarr", random.Random(0)
    data = window = None
    for _ in range(by_effort(3, 6, 40)):
        command = [sys.executable, "-c", TRAINING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
            assert training.stdout.readline() == "went on\n"
            if data is not None:  # a reader sees the rows of the new writer
                for _ in range(20):
                    found = window.sample(16)
                    assert len(found) == 16
            time.sleep(chance.random() / 5)
            training.kill()
        if data is None:
            data = mmreplay.load(path, stack=2, n_step=2, seed=0)
            window = on_device(data, "cpu", memory="4 kB")
        for _ in range(10):
            check_draws(data, window)
    window.close()
    data.close()


def test_a_frame_that_a_reset_replaces_is_not_kept(tmp_path):
    how = {"frame": Field((2,), "int64"), "action": Field((), "int64"), "seed": 0}
    with (
        mmreplay.ReplayBuffer(tmp_path / "s.zarr", **how) as buffer,
        on_device(buffer, "cpu", memory="1 kB") as window,
    ):
        window._filler.end()  # so that nothing else replaces what is cached
        values = itertools.count()
        for _ in range(10):
            buffer.reset([next(values)] * 2)
            buffer.step(0, 0.0, [next(values)] * 2, False, False)
            ids = buffer.ids
            for _ in range(2):
                assert_same(window.transitions(ids), to_tensors(buffer.transitions(ids)))


def test_another_store_at_the_path_shows_its_own_frames(tmp_path):
    path, other = tmp_path / "s.zarr", tmp_path / "other.zarr"
    for number, one in enumerate((path, other)):
        with mmreplay.create(one, Field((2,), "int64"), Field((), "int64")) as writer:
            writer.reset([number, 0])
            for step in range(20):
                writer.step(step, 0.0, [number, step])
    with mmreplay.load(path, seed=0) as data, on_device(data, "cpu", memory="1 kB") as window:
        window.fill()
        check_draws(data, window)
        path.rename(tmp_path / "first.zarr")
        other.rename(path)
        data.refresh()
        found = check_draws(data, window)
        assert found.observation[..., 0].max() == 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_benchmark_runs_and_finds_right_what_it_times(tmp_path, device):
    gpu = pytest.importorskip("benchmarks.gpu")
    gpu.record(tmp_path / "s.zarr", 1200)
    figures = gpu.measure(tmp_path / "s.zarr", device, 1, quick=True)
    assert len(figures) == 3 + 2 + 1 + 3
    assert all(one["n"] >= 2 for one in figures.values())
