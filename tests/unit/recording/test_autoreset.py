"""Vector environments that begin the next episode themselves, in each way that Gymnasium has."""

import re
from pathlib import Path

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mmreplay
from mmreplay import SchemaError
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("steps", [1, 3, 4, 20, 21, 22, 23])
def test_exactly_as_many_transitions_as_asked_for(steps, mode, tmp_path):
    def make():
        return SyncVectorEnv([Counter] * 3, autoreset_mode=mode)

    result = record(make, tmp_path / "s", steps)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == result.steps == steps
        assert sum(len(lane.resets) for lane in store.lanes) == result.rows
        ended = int(store.episodes["terminated"].sum())
        assert ended == result.episodes
    assert result.lanes == 3
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
def test_a_loop_over_an_environment_that_resets_itself_is_warned_of(tmp_path, mode):
    envs = SyncVectorEnv([Counter] * 2, autoreset_mode=mode)
    with pytest.warns(UserWarning, match=f"its autoreset mode is {mode.value}: an ep") as told:
        mmreplay.create(tmp_path / "store.zarr", env=envs).close()
    found = re.search(r"as (docs/\S+) shows under '(.*?)'", str(told[0].message))
    document = (Path(__file__).parents[3] / found[1]).read_text()
    assert "reset_mask" in document.partition(f"## {found[2]}\n")[2].partition("\n## ")[0]


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
        for lane in store.lanes:
            assert lane.non_terminals[lane.resets[:].argmax() :][:10].tolist() == [
                *(1, 0, 1, 0, 0),
                *(1, 0, 1, 0, 0),
            ]
