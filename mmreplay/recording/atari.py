"""Atari 2600 games with the standard preprocessing, one or many, the same frames either way.

Machado et al. (2018), "Revisiting the Arcade Learning Environment", as in gymnasium's
AtariPreprocessing: four frames per action, the pixelwise maximum of the last two, gray, 84x84 by
area interpolation, random no-ops at the start. Rewards are not clipped, lives do not end episodes,
and frames are not stacked: a store can be read in all these ways later.

One environment (AtariPreprocessing) and several (AtariVectorEnv) give the same frames, rewards and
ends after the same start, but draw the start and sticky actions differently. Where the emulator
ends an episode, both leave the screen of the step before in the last frame's maximum. In a
truncated episode that frame counts, so the emulator's frame limit is replaced by one in steps here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space

from mmreplay.errors import MissingExtraError
from mmreplay.recording.autoreset import Mask

FRAME_SKIP = 4
NOOP_MAX = 30
SCREEN = 84

# The arguments of an id that the preprocessing understands. An id that was registered with others
# (obs_type="ram", continuous=True, …) is another kind of environment and is taken as it is.
_KNOWN = {
    *("game", "repeat_action_probability", "full_action_space", "frameskip"),
    "max_num_frames_per_episode",
}
# 0 means no limit to one emulator; the vector environment knows no such value.
_NO_LIMIT_FRAMES = 2**30


def register() -> bool:
    """Make gymnasium know the Atari ids; False if ale-py is not installed."""
    try:
        import ale_py
    except ImportError:
        return False
    gymnasium.register_envs(ale_py)
    return True


def is_atari(spec: EnvSpec) -> bool:
    """Whether an id is an Atari game that gets the standard preprocessing."""
    is_game = spec.entry_point == "ale_py.env:AtariEnv" and spec.kwargs.keys() <= _KNOWN
    return is_game and not spec.additional_wrappers


def max_steps(spec: EnvSpec) -> int:
    """Steps after which an episode is truncated: 27,000, half an hour of play, for every id."""
    return int(spec.kwargs.get("max_num_frames_per_episode") or 108_000) // FRAME_SKIP


def _options(spec: EnvSpec) -> dict[str, Any]:
    usual = {"repeat_action_probability": 0.25, "full_action_space": False}
    return {name: spec.kwargs.get(name, value) for name, value in usual.items()}


def preprocessing(spec: EnvSpec, n_envs: int) -> dict[str, Any]:
    """What was done to the frames, for the store's metadata; JSON."""
    return {
        "name": "AtariPreprocessing" if n_envs == 1 else "AtariVectorEnv",
        "frame_skip": FRAME_SKIP,
        "max_pool_frames": 2,
        "screen_size": SCREEN,
        "grayscale": True,
        "noop_min": 1 if n_envs == 1 else 0,
        "noop_max": NOOP_MAX if n_envs == 1 else NOOP_MAX - 1,
        "fire_reset": False,
        "reward_clipping": False,
        **_options(spec),
        "max_steps": max_steps(spec),
    }


def spec_of_one(spec: EnvSpec) -> EnvSpec:
    """The specification of one game with its preprocessing, which Gymnasium alone can make."""
    how = {"noop_max": NOOP_MAX, "frame_skip": FRAME_SKIP, "screen_size": SCREEN}
    # Not in `max_episode_steps`, whose limit is below the preprocessing: in frames.
    limit = {"max_episode_steps": max_steps(spec)}
    return dataclasses.replace(
        spec,
        disable_env_checker=True,
        kwargs={**spec.kwargs, "frameskip": 1, "max_num_frames_per_episode": 0},
        additional_wrappers=tuple(
            WrapperSpec(name, f"gymnasium.wrappers:{name}", given)
            for name, given in (("AtariPreprocessing", how), ("TimeLimit", limit))
        ),
    )


def make_one(spec: EnvSpec) -> gymnasium.Env[Any, Any]:
    """One game; raises MissingExtraError if OpenCV is not installed."""
    try:
        return gymnasium.make(spec_of_one(spec))
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(
            'the Atari preprocessing needs OpenCV: pip install "mmreplay[atari]"'
        ) from error


class AtariGames(VectorWrapper):  # not generic before Gymnasium 1.4
    """Several games in the threads of ale-py's AtariVectorEnv, as single frames.

    Its next-step autoreset is the cheap one: a game's reset runs beside the others' steps. An
    episode that is too long is reset here, with the step after its last.
    """

    def __init__(self, spec: EnvSpec, n_envs: int) -> None:
        from ale_py.vector_env import AtariVectorEnv

        super().__init__(
            AtariVectorEnv(
                spec.kwargs["game"],
                n_envs,
                stack_num=1,
                frameskip=FRAME_SKIP,
                noop_max=NOOP_MAX,
                use_fire_reset=False,
                reward_clipping=False,
                **_options(spec),
                max_num_frames_per_episode=_NO_LIMIT_FRAMES,
                autoreset_mode="NextStep",
            )
        )
        # (N, 1, 84, 84) of ale-py: the stack of one is not part of the frame.
        self.single_observation_space = spaces.Box(0, 255, (SCREEN, SCREEN), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, n_envs)
        self._max_steps = max_steps(spec)
        self._n_steps = np.zeros(n_envs, dtype=np.int64)
        self._over = self._too_long = np.zeros(n_envs, dtype=np.bool_)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Reset all games."""
        self._n_steps[:] = 0
        self._over = self._too_long = np.zeros(self.num_envs, dtype=np.bool_)
        observations, infos = self.env.reset(seed=seed, options=options)
        return observations[:, 0], infos

    def step(
        self, actions: Any
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], Mask, Mask, dict[str, Any]]:
        """Step all games; those whose episode is over are reset."""
        observations, rewards, terminated, _, infos = self.env.step(actions)
        if self._too_long.any():  # what these stepped is of no episode
            observations, infos = self.env.reset(options={"reset_mask": self._too_long})
            terminated = terminated & ~self._too_long
        self._n_steps += 1
        self._n_steps[self._over] = 0
        self._too_long = (self._n_steps >= self._max_steps) & ~terminated
        self._over = terminated | self._too_long
        return observations[:, 0], rewards, terminated, self._too_long, infos
