"""Simulators that hold all environments in tensors of a device, as vector environments.

Isaac Lab's and mjlab's are no `VectorEnv` of Gymnasium; ManiSkill's is one, without a mode. Each
gives the final observations of episodes in its own way, or not at all.

Invariant: what a step returns follows from flags of the simulator, never from what an info has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv

SAME_STEP, DISABLED = "SameStep", "Disabled"


class Simulator(VectorEnv[Any, Any, Any]):
    """A simulator as a vector environment; its tensors pass as they are. Closing closes it.

    `mode` is that of its autoreset; None if its steps have no final observations, and `advice` says
    what to change.
    """

    def __init__(self, simulator: Any) -> None:
        inner = simulator.unwrapped
        self.simulator, self.num_envs, self.spec = simulator, int(inner.num_envs), None
        self.single_observation_space = _space(inner.single_observation_space)
        self.single_action_space = _space(inner.single_action_space)
        self.observation_space = inner.observation_space
        self.action_space = inner.action_space
        cfg: Any = getattr(inner, "cfg", None)
        if hasattr(cfg, "auto_reset"):  # mjlab
            self.mode = None if cfg.auto_reset else DISABLED
            self.advice = (
                "it returns the first observations of the next episodes in place of the final "
                "ones; set cfg.auto_reset = False, and call reset(options={'reset_mask': mask}) "
                "after steps that end episodes"
            )
        else:  # Isaac Lab
            has_final = getattr(cfg, "compute_final_obs", False)
            self.mode = SAME_STEP if has_final else None
            self.advice = (
                "it returns the first observations of the next episodes in place of the final "
                "ones; set cfg.compute_final_obs = True, which Isaac Lab has since June 2026"
            )

    @property
    def unwrapped(self) -> Any:
        """The simulator itself."""
        return self.simulator.unwrapped

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all environments, or those of ``reset_mask``."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return self.simulator.reset(seed=seed)
        import torch  # noqa: PLC0415 (which the simulator has)

        ids = torch.as_tensor(mask, device=self.unwrapped.device).nonzero().squeeze(-1)
        return self.simulator.reset(seed=seed, env_ids=ids)

    def step(self, actions: Any) -> Any:
        """Step all environments."""
        return self.simulator.step(actions)

    def close(self, **_: Any) -> None:
        """Close the simulator."""
        self.simulator.close()

    def __del__(self) -> None:
        """Leave it open."""

    def __repr__(self) -> str:
        return f"<{type(self.unwrapped).__name__} with {self.num_envs:,} environments>"


def as_vector(env: Any) -> Any:
    """A simulator as a vector environment of Gymnasium, and anything else as it is."""
    inner = getattr(env, "unwrapped", env)
    if isinstance(env, VectorEnv) or getattr(inner, "is_vector_env", False) is not True:
        return env
    return Simulator(env)


def own_mode(env: VectorEnv[Any, Any, Any]) -> tuple[str | None, str] | None:
    """The mode of a simulator, and what its infos call final observations; None of any other."""
    layer: Any = env
    while isinstance(layer, VectorEnv):
        if isinstance(layer, Simulator):
            return layer.mode, "final_obs"
        resets = vars(layer).get("auto_reset")  # of ManiSkill
        if isinstance(resets, bool) and "ignore_terminations" in vars(layer):
            return SAME_STEP if resets else DISABLED, "final_observation"
        layer = getattr(layer, "env", None)
    return None


def on_host(value: Any) -> Any:
    """An array of any library as numpy's; a tensor is brought from its device."""
    if callable(getattr(value, "cpu", None)):
        value = value.detach().cpu()
    return np.asarray(value)


def _space(given: Any) -> Space[Any]:
    """A space of Gymnasium for one of mjlab's, which has the same attributes."""
    if isinstance(given, Space):
        return given
    if hasattr(given, "spaces"):
        return spaces.Dict({name: _space(one) for name, one in given.spaces.items()})
    dtype = getattr(given, "dtype", None) or np.float32
    return spaces.Box(-np.inf, np.inf, tuple(given.shape), np.dtype(str(dtype).rpartition(".")[2]))
