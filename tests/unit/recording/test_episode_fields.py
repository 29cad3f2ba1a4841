"""Fields of episodes, from the infos of their last steps."""

from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mmreplay
from mmreplay import Field, RecordExperience, SchemaError
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter

pytestmark = pytest.mark.usefixtures("quick_disk")

FIELDS = {"lives": Field((), "int8"), "last": Field((), "int64")}


def fields(info):
    return {"lives": info["lives"]}


def seen(path):
    """(length, lives) of each episode that ended by itself: a life is lost each third step."""
    with mmreplay.open(path) as store:
        ended = store.episodes[store.episodes["terminated"]]
    return [(int(e["length"]), int(e["lives"])) for e in ended]


def test_of_one_environment(tmp_path):
    with mmreplay.create(tmp_path / "s", env=Counter(7), episode=FIELDS) as writer:
        env = RecordExperience(Counter(7), writer, episode=fields)
        for _ in range(3):
            env.reset()
            while not env.step(0)[2]:
                pass
        env.reset()
        env.step(0)
    assert seen(tmp_path / "s") == [(7, 1)] * 3
    with mmreplay.open(tmp_path / "s") as store:
        assert store.episodes["lives"][-1] == 0  # cut off


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_of_vector_environments(mode, tmp_path):
    made = SyncVectorEnv([partial(Counter, n) for n in (7, 3, 5)], autoreset_mode=mode)
    with mmreplay.create(tmp_path / "s", env=made, episode=FIELDS) as writer:
        env = RecordExperience(made, writer, episode=fields)
        env.reset()
        for _ in range(30):
            *_, terminated, truncated, _ = env.step(np.zeros(3, int))
            over = terminated | truncated
            if mode is AutoresetMode.DISABLED and over.any():
                env.reset(options={"reset_mask": over})
    found = seen(tmp_path / "s")
    assert {length for length, _ in found} == {7, 3, 5}
    assert all(lives == 3 - length // 3 for length, lives in found)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
def test_of_a_recording(mode, tmp_path):
    def make():
        return SyncVectorEnv([partial(Counter, n) for n in (7, 3)], autoreset_mode=mode)

    record(make, tmp_path / "s", 40, episode=FIELDS)
    found = seen(tmp_path / "s")
    assert {length for length, _ in found} == {7, 3}
    assert all(lives == 3 - length // 3 for length, lives in found)


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(SchemaError, match="episode"):
        RecordExperience(Counter(7), tmp_path / "s", episode=lambda: {"lives": 1})
    with mmreplay.create(tmp_path / "t", env=Counter(2), episode=FIELDS) as writer:
        env = RecordExperience(Counter(2), writer, episode=lambda info: {"other": 1})
        env.reset()
        env.step(0)
        with pytest.raises(SchemaError, match="other"):
            env.step(0)
