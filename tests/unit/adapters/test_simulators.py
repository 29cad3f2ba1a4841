"""Simulators that step many environments in tensors: each convention, recorded as numpy's are.

On the CPU, and on CUDA where there is one.
"""

import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

import mmreplay
from mmreplay import RecordExperience, SchemaError

torch = pytest.importorskip("torch")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
N, WIDTH, STEPS = 6, 3, 40


class World:
    """N counters; each ends after its own number of steps, half of them cut off.

    Its tensors are written over in each step, as those of simulators are.
    """

    def __init__(self, device):
        self.device = torch.device(device)
        self.lengths = torch.arange(2, 2 + N, device=device)
        self.time = torch.zeros(N, dtype=torch.int64, device=device)
        self.episode = torch.zeros(N, dtype=torch.int64, device=device)
        self.seen = torch.zeros(N, WIDTH, device=device)
        self.reward = torch.zeros(N, device=device)

    def look(self):
        self.seen[:, 0], self.seen[:, 1] = self.episode, self.time
        self.seen[:, 2] = torch.arange(N)
        return self.seen

    def begin(self, which):
        self.episode[which] += 1
        self.time[which] = 0

    def advance(self, actions):
        self.time += 1
        self.reward[:] = actions[:, 0] + self.time
        is_over = self.time >= self.lengths
        cut = torch.arange(N, device=self.device) % 2 == 0
        return is_over & ~cut, is_over & cut


class _Spaces:
    num_envs = N
    single_observation_space = spaces.Dict({"policy": spaces.Box(-np.inf, np.inf, (WIDTH,))})
    single_action_space = spaces.Box(-1, 1, (2,))
    observation_space = batch_space(single_observation_space, N)
    action_space = batch_space(single_action_space, N)


class IsaacLab(_Spaces, gymnasium.Env):
    """A `gymnasium.Env` that is many; resets in the same step; keeps its extras."""

    is_vector_env = True

    def __init__(self, device, compute_final_obs=True):
        self.world, self.device = World(device), device
        self.cfg = types.SimpleNamespace(compute_final_obs=compute_final_obs)
        self.extras: dict = {"final_obs": "of an earlier step"}
        self.is_closed = False

    def reset(self, seed=None, options=None):
        self.world.begin(slice(None))
        return {"policy": self.world.look()}, self.extras

    def step(self, actions):
        terminated, truncated = self.world.advance(actions)
        over = terminated | truncated
        if over.any():
            self.extras["final_obs"] = {"policy": self.world.look().clone()}
            self.world.begin(over)
        seen = {"policy": self.world.look()}
        return seen, self.world.reward, terminated, truncated, self.extras

    def close(self):
        self.is_closed = True


class Box:
    """A space of mjlab."""

    def __init__(self, *shape):
        self.shape, self.dtype = shape, "float32"


class Mjlab:
    """No class of Gymnasium's; the caller resets."""

    is_vector_env, num_envs, metadata = True, N, {}
    single_observation_space = types.SimpleNamespace(spaces={"policy": Box(WIDTH)})
    single_action_space = Box(2)
    observation_space = action_space = None

    def __init__(self, device, auto_reset=False):
        self.world, self.device = World(device), device
        self.cfg = types.SimpleNamespace(auto_reset=auto_reset)
        self.waiting = torch.zeros(N, dtype=torch.bool, device=device)

    @property
    def unwrapped(self):
        return self

    def reset(self, *, seed=None, env_ids=None, options=None):
        env_ids = torch.arange(N) if env_ids is None else env_ids
        self.world.begin(env_ids)
        self.waiting[env_ids] = False
        return {"policy": self.world.look()}, {}

    def step(self, actions):
        assert not self.waiting.any()
        terminated, truncated = self.world.advance(actions)
        self.waiting |= terminated | truncated
        return {"policy": self.world.look()}, self.world.reward, terminated, truncated, {}

    def close(self):
        pass


class ManiSkill(VectorEnv):
    """A `VectorEnv` without a mode, whose `unwrapped` is no `VectorEnv`."""

    def __init__(self, device, auto_reset=True):
        self.world, self.device = World(device), device
        self.auto_reset, self.ignore_terminations = auto_reset, False
        self.num_envs = N
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (WIDTH,))
        self.single_action_space = _Spaces.single_action_space
        self.observation_space = batch_space(self.single_observation_space, N)
        self.action_space = _Spaces.action_space

    @property
    def unwrapped(self):
        return types.SimpleNamespace(device=self.device)

    def reset(self, *, seed=None, options=None):
        self.world.begin((options or {}).get("env_idx", slice(None)))
        return self.world.look(), {}

    def step(self, actions):
        terminated, truncated = self.world.advance(actions)
        over, seen, infos = terminated | truncated, self.world.look(), {}
        if over.any() and self.auto_reset:
            infos = {"final_observation": seen.clone(), "_final_observation": over}
            seen, _ = self.reset(options={"env_idx": over.nonzero().squeeze(-1)})
        return seen, self.world.reward, terminated, truncated, infos


class Gymnasium(ManiSkill):
    """The same in numpy's arrays, as Gymnasium has it."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, device="cpu"):
        super().__init__(device)
        del self.auto_reset

    def reset(self, *, seed=None, options=None):
        self.world.begin((options or {}).get("env_idx", slice(None)))
        return self.world.look().numpy().copy(), {}

    def step(self, actions):
        terminated, truncated = self.world.advance(torch.from_numpy(actions))
        over, seen, infos = terminated | truncated, self.world.look().numpy().copy(), {}
        if over.any():
            infos = {"final_obs": seen.copy()}
            self.world.begin(over)
            seen = self.world.look().numpy().copy()
        reward = self.world.reward.numpy().copy()
        return seen, reward, terminated.numpy(), truncated.numpy(), infos


SIMULATORS = {
    "Isaac Lab": IsaacLab,
    "Isaac Lab in a wrapper": lambda device: gymnasium.wrappers.OrderEnforcing(IsaacLab(device)),
    "mjlab": Mjlab,
    "ManiSkill": ManiSkill,
    "ManiSkill, reset by hand": lambda device: ManiSkill(device, auto_reset=False),
}


def played(env, path, device=None):
    """What is stored of a loop, as rows of transitions by id."""
    rng = np.random.default_rng(0)
    env = RecordExperience(env, path, capacity=None)
    by_hand = env._reader.resets_by_hand
    env.reset(seed=0)
    for _ in range(STEPS):
        actions = rng.uniform(-1, 1, (N, 2)).astype(np.float32)
        given = actions if device is None else torch.from_numpy(actions).to(device)
        seen, _, terminated, truncated, _ = env.step(given)
        if device is not None:
            seen = seen["policy"] if isinstance(seen, dict) else seen
            assert (seen.device.type, type(terminated)) == (device, torch.Tensor)
            given.zero_()  # the loop may reuse its tensor
        over = terminated | truncated
        if by_hand and over.any():
            is_other = isinstance(env.unwrapped, Mjlab)
            numbers = {"env_idx": over.nonzero().squeeze(-1)}
            env.reset(options={"reset_mask": over} if is_other else numbers)
    env.close()
    with mmreplay.load(path, stack=None) as data:
        batch = data.transitions(data.ids)
        episodes = data.episodes
    fields = ("observation", "next_observation", "action", "reward", "terminated", "truncated")
    out = {}
    for name in fields:
        one = getattr(batch, name)
        out[name] = one["policy"] if isinstance(one, dict) else one
    return out, episodes["length"].tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", SIMULATORS.values(), ids=SIMULATORS)
def test_each_convention_is_recorded_as_gymnasiums_own(tmp_path, make, device):
    expected, lengths = played(Gymnasium(), tmp_path / "expected.zarr")
    found, found_lengths = played(make(device), tmp_path / "found.zarr", device)
    assert found_lengths == lengths
    assert expected["terminated"].any()
    assert expected["truncated"].any()
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name
    over = found["terminated"] | found["truncated"]
    assert (found["next_observation"][over, 1] >= 1).all()  # none is the next episode's first


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: IsaacLab("cpu", compute_final_obs=False), "compute_final_obs = True"),
        (lambda: Mjlab("cpu", auto_reset=True), "auto_reset = False"),
    ],
)
def test_a_simulator_without_final_observations_is_refused_with_advice(tmp_path, make, words):
    with pytest.raises(SchemaError, match=words):
        RecordExperience(make(), tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


def test_a_buffer_takes_its_fields_from_a_simulator_which_closes_with_the_recorder(tmp_path):
    env = IsaacLab("cpu")
    with mmreplay.ReplayBuffer(tmp_path / "s.zarr", env=env) as buffer:
        assert buffer.schema.frames["policy"].shape == (WIDTH,)
        recorder = RecordExperience(env, buffer)
        recorder.reset()
        recorder.step(torch.zeros(N, 2))
        assert len(buffer) == N
        recorder.close()
    assert env.is_closed


def test_a_simulator_is_not_taken_for_one_environment(tmp_path):
    with pytest.raises(SchemaError, match="many environments in one"):
        mmreplay.record(IsaacLab("cpu"), tmp_path / "s.zarr", steps=10)
