"""DQN Replay: files of Dopamine's own buffer, whose TensorFlow is replaced by plain files."""

import sys
import types
import warnings

import numpy as np
import pytest

import mmreplay
from mmreplay import Field, import_dataset
from tests.support.played_episodes import play

FRAMES = {"frame": Field((8, 6), "uint8")}


@pytest.fixture
def buffer_of(monkeypatch):
    """Makes an `OutOfGraphReplayBuffer`; of TensorFlow it needs files only."""
    stub = types.ModuleType("tensorflow")
    stub.io = types.SimpleNamespace(
        gfile=types.SimpleNamespace(
            GFile=open,
            exists=__import__("os").path.exists,
            glob=lambda path: __import__("glob").glob(path),
            remove=lambda path: __import__("os").remove(path),
        )
    )
    stub.io.gfile.listdir = lambda path: __import__("os").listdir(path)
    stub.errors = types.SimpleNamespace(NotFoundError=FileNotFoundError)
    stub.numpy_function = stub.function = lambda call=None, **_: call
    monkeypatch.setitem(sys.modules, "tensorflow", stub)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dopamine.tf.replay_memory import circular_replay_buffer as module
    monkeypatch.setattr(module, "tf", stub)

    def make(capacity):
        return module.OutOfGraphReplayBuffer((8, 6), 4, capacity, 2)

    return make


def fill(buffer, episodes):
    for one in episodes:
        n = len(one.reward)
        for t in range(n):
            last = t == n - 1
            buffer.add(
                one.observation["frame"][t],
                one.action[t],
                one.reward[t],
                int(last and one.terminated),
                episode_end=last,
            )


@pytest.mark.parametrize("capacity", [500, 55])
def test_steps_are_those_that_the_buffer_holds(buffer_of, tmp_path, quick_disk, capacity):
    episodes = play((17, 2, 32, 25), FRAMES, Field((), "int32"), {}, lives=False)
    buffer = buffer_of(capacity)
    fill(buffer, episodes)
    (tmp_path / "in").mkdir()
    buffer.save(str(tmp_path / "in"), 0)
    made = import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    actions = np.concatenate([one.action for one in episodes])
    frames = np.concatenate([one.observation["frame"][:-1] for one in episodes])
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        n = made.transitions
        assert n == {500: 76, 55: 52}[capacity]  # 55 rows, among them a padding of three
        assert np.array_equal(batch.action, actions[-n:])
        assert np.array_equal(batch.observation, frames[-n:])
        assert store.episodes["length"][-2:].tolist() == ([32, 25] if capacity > 60 else [27, 25])
        assert (made.terminated, made.truncated) == ((2, 2) if capacity > 60 else (1, 1))
