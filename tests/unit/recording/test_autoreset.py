"""Vector environments that begin the next episode themselves, in each way that Gymnasium has."""

import re
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mmreplay
from mmreplay import Field, SchemaError
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("steps", [1, 3, 4, 20, 21, 22, 23])
def test_exactly_as_many_transitions_as_asked_for(steps, mode, tmp_path):
    """Where the last step makes more of them, those of the first environments."""

    def make():
        lengths = [partial(Counter, length) for length in (7, 3, 5)]
        return SyncVectorEnv(lengths, autoreset_mode=mode)

    result = record(make, tmp_path / "s", steps)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == result.steps == steps
        assert sum(lane.rows for lane in store.lanes) == result.rows
        episodes = store.episodes
        assert episodes["terminated"].sum() == result.episodes
        assert (episodes["terminated"] | episodes["truncated"]).all()
        counts = [0, 0, 0]
        for number, env in enumerate((episodes["id"] % 3).tolist()):
            shown = store.trajectory(number).observation
            assert shown.tolist() == [[counts[env], n] for n in range(len(shown))]
            assert episodes["terminated"][number] == (len(shown) == (8, 4, 6)[env])
            counts[env] += 1
    assert result.environments == 3
    assert not result.stopped


def test_a_vector_environment_without_an_autoreset_mode_is_refused(tmp_path, monkeypatch):
    env = SyncVectorEnv([Counter] * 2)
    monkeypatch.setattr(env, "autoreset_mode", None)
    monkeypatch.setattr(env, "metadata", {})
    with pytest.raises(SchemaError, match="autoreset_mode"):
        record(env, tmp_path / "s", 5)


def test_a_same_step_environment_that_hides_final_observations_is_refused(tmp_path):
    class Hides(gymnasium.vector.VectorWrapper):
        def step(self, actions):
            *others, infos = super().step(actions)
            infos.pop("final_obs", None)
            return (*others, infos)

    env = Hides(SyncVectorEnv([Counter] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(SchemaError, match="final_obs"):
        record(env, tmp_path / "s", 50)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_loop_over_an_environment_that_resets_itself_is_warned_of(mode, tmp_path):
    """When it is about to store what is no transition: after that, in silence."""
    envs = SyncVectorEnv([Counter] * 2, autoreset_mode=mode)
    over = np.array([True, False])
    with mmreplay.create(tmp_path / "store.zarr", env=envs) as writer:
        frames, _ = envs.reset(seed=0)
        writer.reset(frames)
        with pytest.warns(UserWarning, match=f"its autoreset mode is {mode.value}: an ep") as told:
            writer.reset(frames, over)
        writer.reset(frames, over)
    found = re.search(r"as (docs/\S+) shows under '(.*?)'", str(told[0].message))
    document = (Path(__file__).parents[3] / found[1]).read_text()
    assert "RecordExperience" in document.partition(f"## {found[2]}\n")[2].partition("\n## ")[0]


def test_a_loop_that_forgets_the_reset_is_told_of_autoreset(tmp_path):
    fields = {"frame": Field((2,), "float32"), "action": Field((), "int64")}
    envs = SyncVectorEnv([Counter] * 2)
    with mmreplay.create(tmp_path / "store.zarr", lanes=2, **fields) as writer:
        frames, _ = envs.reset(seed=0)
        writer.reset(frames)
        actions = np.zeros(2, np.int64)
        with pytest.raises(SchemaError, match=r"\(autoreset\).*mmreplay.RecordExperience"):
            for _ in range(20):
                frames, rewards, terminated, truncated, _ = envs.step(actions)
                writer.step(actions, rewards, frames, terminated, truncated)


class Cut(Counter):
    """Loses a life each second step, also the one that its episode is cut off at."""

    def step(self, action):
        observation, reward, _, _, _ = super().step(action)
        return observation, reward, False, self.n == 4, self.info()

    def info(self):
        return {"lives": 9 - self.n // 2}


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_a_life_lost_with_the_last_step_counts_in_every_autoreset_mode(tmp_path, mode):
    env = Cut() if mode is None else SyncVectorEnv([Cut] * 2, autoreset_mode=mode)
    record(env, tmp_path / "store.zarr", 12 if mode is None else 24, life_loss=True)
    with mmreplay.open(tmp_path / "store.zarr") as store:
        assert len(store.episodes) == (3 if mode is None else 6)
        for number in range(len(store.episodes)):
            assert store.trajectory(number).non_terminal.tolist() == [1, 0, 1, 0]
