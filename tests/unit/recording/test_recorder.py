"""The recorder: how many rows, which seeds, how it goes on, how it ends."""

import re
import signal
import threading
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import mmreplay
from mmreplay import Field, MmreplayError, SchemaError, StoreExistsError
from mmreplay.recording import loops, progress
from mmreplay.recording.environments import resolve_id
from mmreplay.recording.progress import RecordProgress
from mmreplay.recording.recorder import record, step_only
from mmreplay.recording.signals import stop_on_signals

pytestmark = pytest.mark.usefixtures("quick_disk")


class Counter(gymnasium.Env):
    """Counts its steps; episodes of `length`; a life is lost each third step."""

    def __init__(self, length=7, lives=True):
        self.observation_space = spaces.Box(0, 1e6, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.tells, self.n = length, lives, 0
        self.episode = -1
        self.fails_at = None
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n = 0
        self.episode += 1
        return self.look(), self.info()

    def step(self, action):
        self.n += 1
        if self.fails_at is not None and (self.episode, self.n) == self.fails_at:
            raise RuntimeError("the simulator broke")
        return self.look(), 1.0, self.n >= self.length, False, self.info()

    def look(self):
        return np.array([self.episode, self.n], np.float32)

    def info(self):
        return {"lives": 3 - self.n // 3} if self.tells else {}

    def close(self):
        self.closed = True


def metadata(path):
    with mmreplay.open(path) as store:
        return store.info()["env"]


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


def test_one_environment_records_no_row_of_an_episode_after_the_last(tmp_path):
    result = record(Counter, tmp_path / "s", 14)
    with mmreplay.open(tmp_path / "s") as store:
        frames = store.frames
        assert result.rows == len(frames) == 16
        assert frames[7].tolist() == [0, 7]
        assert frames[8].tolist() == [1, 0]
        assert store.episodes["return"].tolist() == [7, 7]
    assert result.episodes == 2


def test_only_environments_made_by_record_are_closed(tmp_path):
    made = []

    def factory():
        made.append(Counter())
        return made[-1]

    record(factory, tmp_path / "a", 3, envs=2)
    assert [env.closed for env in made] == [True, True]
    env = Counter()
    record(env, tmp_path / "b", 3)
    assert not env.closed


def test_the_environment_the_seeds_the_policy_and_versions_are_in_the_store(tmp_path):
    record("CartPole-v1", tmp_path / "s", 20, envs=2, seed=5)
    env = metadata(tmp_path / "s")
    assert env["id"] == "CartPole-v1"
    assert env["n_envs"] == 2
    assert env["preprocessing"] is None
    (run,) = env["runs"]
    assert run["seed"] == 5
    assert run["lane_seeds"] == [5, 6]
    assert run["policy"] == "random"
    assert run["versions"]["gymnasium"] == gymnasium.__version__


def test_the_same_seed_records_the_same_and_another_one_something_else(tmp_path):
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        record("CartPole-v1", tmp_path / name, 50, seed=seed)
    a, b, c = (mmreplay.open(tmp_path / name) for name in "abc")
    assert np.array_equal(a.frames[:], b.frames[:])
    assert np.array_equal(a.actions[:], b.actions[:])
    assert not np.array_equal(a.actions[:50], c.actions[:50])
    assert not np.array_equal(a.frames[0], c.frames[0])


def test_appending_goes_on_with_other_episodes(tmp_path):
    path = tmp_path / "s"
    for steps in (60, 60, 60):
        record("CartPole-v1", path, steps, envs=2, seed=3, append=True)
    runs = metadata(path)["runs"]
    assert runs[0]["rows_before"] == 0
    assert len({run["seed"] for run in runs}) == 3
    with mmreplay.open(path) as store:
        assert len(store) == 180
        first = [
            lane.frames[int(i)].tobytes()
            for lane in store.lanes
            for i in np.flatnonzero(lane.resets[:])
        ]
        assert len(set(first)) == len(first)


def test_appending_takes_the_lanes_of_the_store(tmp_path):
    record("CartPole-v1", tmp_path / "s", 10, envs=3)
    assert record("CartPole-v1", tmp_path / "s", 10, append=True).lanes == 3
    with pytest.raises(
        SchemaError, match="a vector environment of 3, found a vector environment of 2"
    ):
        record("CartPole-v1", tmp_path / "s", 10, envs=2, append=True)


def test_appending_one_environment_to_a_recording_of_a_vector_is_refused(tmp_path):
    record(lambda: SyncVectorEnv([Counter]), tmp_path / "s", 10)
    with pytest.raises(SchemaError, match="a vector environment of 1, found one single env"):
        record(Counter, tmp_path / "s", 10, append=True)


def test_an_error_in_an_environment_factory_is_reported(tmp_path):
    def make():
        raise OSError("no display")

    with pytest.raises(MmreplayError, match=r"^the environment raised OSError: no display"):
        record(make, tmp_path / "s", 10)


def test_appending_another_environment_is_refused(tmp_path):
    record("CartPole-v1", tmp_path / "s", 10)
    with pytest.raises(SchemaError, match="'CartPole-v1', found 'CartPole-v0'"):
        record("CartPole-v0", tmp_path / "s", 10, append=True)
    with pytest.raises(SchemaError):
        record("Pendulum-v1", tmp_path / "s", 10, append=True)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == 10


def test_an_existing_store_stays_unless_append_is_set(tmp_path):
    record("CartPole-v1", tmp_path / "s", 10)
    with pytest.raises(StoreExistsError):
        record("CartPole-v1", tmp_path / "s", 10)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == 10


def test_a_capacity_keeps_the_newest(tmp_path):
    result = record(Counter, tmp_path / "s", 50, capacity=10)
    assert (result.rows, result.evicted_rows) == (58, 0)  # all of it is the context of the newest
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == 10


@pytest.mark.parametrize("lanes", [None, 2])
def test_evicted_rows_are_counted(lanes, tmp_path):
    path, envs = tmp_path / "s", lanes or 1
    fields = {"frame": Field((2,), "float32", chunk=64), "action": Field((), "int64", chunk=64)}
    mmreplay.create(path, **fields, lanes=lanes, capacity=10 * envs).close()
    result = record(Counter, path, 500 * envs, envs=envs, append=True)
    assert result.steps == 500 * envs
    assert result.rows > result.steps
    assert 0 < result.evicted_rows < result.rows
    with mmreplay.open(path) as store:
        assert sum(lane.base for lane in store.lanes) == result.evicted_rows
        assert sum(lane.rows for lane in store.lanes) == result.rows
    assert result.to_json()["evicted_rows"] == result.evicted_rows
    again = record(Counter, path, 10, append=True, envs=envs)
    assert again.steps == 10
    assert again.evicted_rows >= result.evicted_rows


def test_the_codec_applies_to_the_frames(tmp_path):
    record("CartPole-v1", tmp_path / "s", 10, codec="zstd")
    with mmreplay.open(tmp_path / "s") as store:
        assert store.info()["fields"]["frames"]["codec"] == "zstd"


@pytest.mark.parametrize("vector", [False, True])
def test_stopping_keeps_the_recorded_steps(vector, tmp_path):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == 10

    result = record(Counter, tmp_path / "s", 1000, envs=3 if vector else 1, stop=stop)
    assert result.stopped
    assert result.steps == (30 if vector else 10)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == result.steps
        assert store.info()["state"] == "closed"


@pytest.fixture
def interruptible():
    """Ctrl-C interrupts, also where these tests run as a job in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_first_signal_stops_and_the_second_has_its_former_effect():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_hangup_is_caught_too():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop()
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("seed", [-1, 2**40, "a", 1.5, None])
def test_a_seed_out_of_range_is_refused(tmp_path, seed):
    with pytest.raises(SchemaError, match="seed: expected a whole number, 0 to "):
        record("CartPole-v1", tmp_path / "cart.zarr", 3, seed=seed)


def test_outside_of_the_main_thread_there_are_no_signals():
    told = []

    def run():
        with stop_on_signals() as stop:
            told.append(stop())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert told == [False]


@pytest.mark.parametrize("envs", [1, 2])
def test_an_error_in_the_environment_is_reported_and_recorded_steps_are_kept(envs, tmp_path):
    def make():
        env = Counter()
        env.fails_at = (1, 3)
        return env

    with pytest.raises(
        MmreplayError, match=r"^the environment raised RuntimeError: the simulator broke .*before"
    ):
        record(make, tmp_path / "s", 100, envs=envs)
    with mmreplay.open(tmp_path / "s") as store:
        assert len(store) == 9 * envs
        assert store.info()["state"] == "closed"


def test_a_policy_that_fails_at_its_first_action_leaves_no_store(tmp_path):
    def broken(observation):
        return observation.nothing

    with pytest.raises(MmreplayError, match=r"^the policy raised AttributeError.*test_recorder"):
        record(Counter, tmp_path / "s", 100, policy=broken)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("envs", [1, 2])
@pytest.mark.parametrize("where", ["__init__", "reset", "__call__"])
def test_an_error_in_a_policy_is_reported_as_one_of_the_policy(where, envs, batched, tmp_path):
    class Broken:
        def __init__(self, observation_space, action_space, seed):
            self.calls = 0
            self.check("__init__")

        def reset(self, *lanes):
            self.check("reset")

        def __call__(self, observation):
            self.check("__call__")
            return np.zeros(envs, np.int64) if batched else 0

        def check(self, here):
            self.calls += here == where
            if here == where and (self.calls == 3 or where == "__init__"):
                raise KeyError("lost")

    Broken.batched = batched
    with pytest.raises(MmreplayError, match=r"^the policy raised KeyError: 'lost' "):
        record(Counter, tmp_path / "s", 100, policy=Broken, envs=envs)


def test_an_error_in_the_writer_passes_unchanged(tmp_path, monkeypatch):
    def broken(self, *_):
        raise MemoryError("no memory for a row")

    monkeypatch.setattr(mmreplay.Writer, "_prepare_reset", broken)
    for envs in (1, 2):
        with pytest.raises(MemoryError, match=r"^no memory for a row$"):
            record(Counter, tmp_path / f"{envs}", 100, envs=envs)


def test_an_error_in_the_progress_callback_passes_unchanged(tmp_path):
    def broken(progress):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        record(Counter, tmp_path / "s", 100, progress=broken)


def test_progress_is_reported_at_the_start_and_at_the_end(tmp_path):
    told: list[RecordProgress] = []
    record("CartPole-v1", tmp_path / "s", 300, progress=told.append)
    assert told[-1].steps == told[-1].total == 300
    assert told[-1].bytes_on_disk > 0
    assert told[-1].steps_per_s > 0
    assert len(told) <= told[-1].seconds * 4 + 2


def test_progress_is_reported_four_times_a_second(tmp_path, monkeypatch):
    """By a clock that goes on by 10 ms with each step."""
    now = 0.0

    class Timed(Counter):
        def step(self, action):
            nonlocal now
            now += 0.01
            return super().step(action)

    for module in (loops, progress):
        monkeypatch.setattr(module, "perf_counter", lambda: now)
    told: list[RecordProgress] = []
    record(Timed, tmp_path / "s", 400, progress=told.append)
    steps = [report.steps for report in told]
    assert {after - before for before, after in pairwise(steps[:-1])} <= {25, 26}
    assert (steps[0], steps[-1]) == (1, 400)
    assert steps[-2] > 400 - 27
    assert told[-1].seconds == pytest.approx(4)
    assert told[-1].steps_per_s == pytest.approx(100)
    assert told[-1].episodes == 57


@pytest.mark.parametrize("envs", [1, 3])
def test_a_lost_life_is_terminal_with_life_loss(envs, tmp_path):
    record(Counter, tmp_path / "s", 14 * envs, envs=envs, life_loss=True)
    with mmreplay.open(tmp_path / "s") as store:
        for lane in store.lanes:
            assert lane.non_terminals[:7].tolist() == [1, 1, 0, 1, 1, 0, 0]
            assert lane.resets[:8].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
            assert lane.non_terminals[8:15].tolist() == [1, 1, 0, 1, 1, 0, 0]
    record(Counter, tmp_path / "t", 14)
    with mmreplay.open(tmp_path / "t") as store:
        assert store.non_terminals[:7].tolist() == [1, 1, 1, 1, 1, 1, 0]


@pytest.mark.parametrize("envs", [1, 3])
def test_life_loss_needs_an_environment_with_lives(envs, tmp_path):
    with pytest.raises(SchemaError, match="no 'lives'"):
        record(lambda: Counter(lives=False), tmp_path / "s", 5, envs=envs, life_loss=True)
    assert not (tmp_path / "s").exists()


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "NoSuchThing-v0", "steps": 1}, "NoSuchThing"),
        ({"env": "nosuchmodule:Thing-v0", "steps": 1}, "cannot import nosuchmodule"),
        ({"env": "CartPole-v1", "steps": 0}, "steps: expected a whole number, 1 or more; found 0"),
        (
            {"env": "CartPole-v1", "steps": 1, "envs": 0},
            "envs: expected a whole number, 1 to 4,096",
        ),
        ({"env": "CartPole-v1", "steps": 1, "envs": "2"}, "^envs: expected .*, or None; found '2'"),
        ({"env": "CartPole-v1", "steps": 1, "envs": 1.5}, "^envs: expected .*, or None; found 1.5"),
        ({"env": "CartPole-v1", "steps": 1, "envs": True}, "^envs: expected .*; found True"),
        ({"env": "CartPole-v1", "steps": 1, "seed": -1}, "seed: expected a whole number, 0 to"),
        ({"env": Counter(), "steps": 1, "envs": 2}, "2 asked for, Counter has 1"),
        ({"env": "CartPole-v1", "steps": 1, "policy": "nosuchmodule:f"}, "no module"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_store(arguments, message, tmp_path):
    with pytest.raises(MmreplayError, match=message):
        record(path=tmp_path / "s", **arguments)
    assert not (tmp_path / "s").exists()


def test_an_id_without_a_version_is_the_newest_version_of_an_environment_or_game():
    assert resolve_id("CartPole")[0] == "CartPole-v1"
    assert resolve_id("Breakout")[0] == "ALE/Breakout-v5"
    assert resolve_id("ALE/Breakout")[0] == "ALE/Breakout-v5"
    assert resolve_id("BreakoutNoFrameskip-v4")[0] == "BreakoutNoFrameskip-v4"
    assert resolve_id("CartPole-v0")[0] == "CartPole-v0"


def test_step_only_returns_seconds_and_records_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for envs in (1, 2):
        assert 0 < step_only("CartPole-v1", 100, envs=envs) < 10
    assert list(tmp_path.iterdir()) == []


def test_create_takes_its_fields_and_lanes_from_an_environment(tmp_path):
    env = gymnasium.make("CartPole-v1")
    with mmreplay.create(tmp_path / "one", env=env) as writer:
        observation, _ = env.reset(seed=0)
        writer.reset(observation)
        observation, reward, terminated, truncated, _ = env.step(1)
        writer.step(1, float(reward), observation, terminated, truncated)
    with mmreplay.open(tmp_path / "one") as store:
        assert len(store) == 1
    envs = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * 2, autoreset_mode=AutoresetMode.DISABLED
    )
    with mmreplay.create(tmp_path / "two", env=envs) as writer:
        observations, _ = envs.reset(seed=0)
        writer.reset(observations)
    with mmreplay.open(tmp_path / "two") as store:
        assert len(store.lanes) == 2


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


class OwnArrays(SyncVectorEnv):
    """Hands out the arrays that it goes on with."""

    def __init__(self):
        super().__init__([lambda: Counter(3)] * 2, autoreset_mode=AutoresetMode.DISABLED)
        self.ends, self.gains = np.zeros(2, np.bool_), np.zeros(2)

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        self.ends[:], self.gains[:] = False, 0
        return found

    def step(self, actions):
        observations, self.gains[:], self.ends[:], truncated, infos = super().step(actions)
        return observations, self.gains, self.ends, truncated, infos


def test_an_environment_may_reuse_its_arrays(tmp_path):
    record(OwnArrays(), tmp_path / "store.zarr", 12)
    with mmreplay.open(tmp_path / "store.zarr") as store:
        assert store.episodes["return"].tolist() == [3.0] * 4
        assert store.episodes["terminated"].all()
