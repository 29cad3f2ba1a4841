"""Vector environments without their autoreset: one kind of step, whatever the mode.

Gymnasium's vector environments start the next episode in one of three ways, and each hides another
part of the truth (https://farama.org/Vector-Autoreset-Mode):

    next step   the step after the last one ignores its action and returns the new episode's first
                observation with reward 0: no transition
    same step   the last step returns the new episode's first observation, the final one is in
                ``infos["final_obs"]``
    disabled    the last step returns the final observation, the caller resets

Invariant: a lane that `Step.recorded` marks was stepped, and its `Step.frames` is the observation
that this step ended in.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from mmreplay.adapters.gymnasium.spaces import Action, EnvFields, Frame, Observation
from mmreplay.errors import SchemaError

__all__ = ["DisabledLanes", "Lanes", "Mask", "NextStepLanes", "SameStepLanes", "Step", "lanes_of"]

Mask = npt.NDArray[np.bool_]


class Step(NamedTuple):
    """One step of all lanes; arrays have the lanes in front.

    Attributes:
        frames: what each step ended in, also where it ended the episode.
        rewards: as the environment gives them.
        terminated: likewise.
        truncated: likewise.
        recorded: the lanes that made a step; None for all.
        started: the lanes where an episode begins; None for none.
        start_frames: the first frame of these episodes.
        observations: what the policy sees next, in the environment's own structure.
        ignored: the lanes whose next action will be ignored; None for none.
        lives: lives left after the step, where the environment tells them.
    """

    frames: Frame
    rewards: npt.NDArray[Any]
    terminated: Mask
    truncated: Mask
    recorded: Mask | None
    started: Mask | None
    start_frames: Frame
    observations: Observation
    ignored: Mask | None
    lives: npt.NDArray[Any] | None


class Lanes(Protocol):
    """Environments that step together."""

    def reset(self, seed: int) -> tuple[Observation, npt.NDArray[Any] | None]:
        """Start an episode in every lane, lane i with seed + i: the observations and lives."""

    def send(self, actions: Action) -> None:
        """Begin a step of every lane; it may run while the caller does something else."""

    def receive(self) -> Step:
        """What that step ended in."""


def lanes_of(env: VectorEnv[Any, Any, Any], fields: EnvFields) -> Lanes:
    """The lanes of a vector environment by the autoreset mode that it states.

    Raises:
        SchemaError: it states none.
    """
    # AtariVectorEnv writes its mode into a metadata dict that all vector environments share, so an
    # environment's own attribute tells more than metadata does.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    match getattr(mode, "value", mode):
        case "NextStep":
            return NextStepLanes(env, fields)
        case "SameStep":
            return SameStepLanes(env, fields)
        case "Disabled":
            return DisabledLanes(env, fields)
        case _:
            raise SchemaError(
                f"{env}: metadata['autoreset_mode'] is {mode!r}, so it cannot be told which steps "
                f"are transitions; set it to a gymnasium.vector.AutoresetMode"
            )


class NextStepLanes:
    """A lane's step after its last one is its reset."""

    def __init__(self, env: VectorEnv[Any, Any, Any], fields: EnvFields) -> None:
        """The environment is reset by `reset`."""
        self._env = env
        self._fields = fields
        self._actions: Action = None
        self._over: Mask | None = None

    def reset(self, seed: int) -> tuple[Observation, npt.NDArray[Any] | None]:
        """See `Lanes`."""
        self._over = None
        observations, infos = self._env.reset(seed=seed)
        return observations, infos.get("lives")

    def send(self, actions: Action) -> None:
        """See `Lanes`."""
        self._actions = actions

    def receive(self) -> Step:
        """See `Lanes`."""
        observations, rewards, terminated, truncated, infos = _step(self._env, self._actions)
        started = self._over
        over = terminated | truncated
        self._over = over if over.any() else None
        frames = self._fields.to_frame(observations)
        return Step(
            frames,
            rewards,
            terminated,
            truncated,
            recorded=None if started is None else ~started,
            started=started,
            start_frames=frames,
            observations=observations,
            ignored=self._over,
            lives=infos.get("lives"),
        )


class SameStepLanes:
    """The final observation lies in the infos, the next episode's first one where it would be."""

    def __init__(self, env: VectorEnv[Any, Any, Any], fields: EnvFields) -> None:
        """The environment is reset by `reset`."""
        self._env = env
        self._fields = fields
        self._actions: Action = None

    def reset(self, seed: int) -> tuple[Observation, npt.NDArray[Any] | None]:
        """See `Lanes`."""
        observations, infos = self._env.reset(seed=seed)
        return observations, infos.get("lives")

    def send(self, actions: Action) -> None:
        """See `Lanes`."""
        self._actions = actions

    def receive(self) -> Step:
        """See `Lanes`.

        Raises:
            SchemaError: an episode ended and the infos have no final observation.
        """
        observations, rewards, terminated, truncated, infos = _step(self._env, self._actions)
        over = terminated | truncated
        started = over if over.any() else None
        start_frames = self._fields.to_frame(observations)
        frames = start_frames
        if started is not None:
            frames = _put_final(start_frames, infos, over, self._fields)
        return Step(
            frames,
            rewards,
            terminated,
            truncated,
            recorded=None,
            started=started,
            start_frames=start_frames,
            observations=observations,
            ignored=None,
            lives=infos.get("lives"),
        )


class DisabledLanes:
    """The lanes whose episode ended are reset by hand, with gymnasium's ``reset_mask``."""

    def __init__(self, env: VectorEnv[Any, Any, Any], fields: EnvFields) -> None:
        """The environment is reset by `reset`."""
        self._env = env
        self._fields = fields
        self._actions: Action = None

    def reset(self, seed: int) -> tuple[Observation, npt.NDArray[Any] | None]:
        """See `Lanes`."""
        observations, infos = self._env.reset(seed=seed)
        return observations, infos.get("lives")

    def send(self, actions: Action) -> None:
        """See `Lanes`."""
        self._actions = actions

    def receive(self) -> Step:
        """See `Lanes`."""
        observations, rewards, terminated, truncated, infos = _step(self._env, self._actions)
        frames = self._fields.to_frame(observations)
        over = terminated | truncated
        started = over if over.any() else None
        start_frames = frames
        lives = infos.get("lives")
        if started is not None:
            # The environment may hand out one array again and again.
            frames = _copied(frames)
            # A copy of the mask as well: gymnasium takes it out of the options and keeps it.
            observations, infos = self._env.reset(options={"reset_mask": over.copy()})
            start_frames = self._fields.to_frame(observations)
            lives = _merged(lives, infos.get("lives"), over)
        return Step(
            frames,
            rewards,
            terminated,
            truncated,
            recorded=None,
            started=started,
            start_frames=start_frames,
            observations=observations,
            ignored=None,
            lives=lives,
        )


def _step(
    env: VectorEnv[Any, Any, Any],
    actions: Action,
) -> tuple[Observation, npt.NDArray[Any], Mask, Mask, dict[str, Any]]:
    observations, rewards, terminated, truncated, infos = env.step(actions)
    # Environments on other array libraries (JAX, torch) return their own arrays.
    return (
        observations,
        np.asarray(rewards),
        np.asarray(terminated, dtype=np.bool_),
        np.asarray(truncated, dtype=np.bool_),
        infos,
    )


def _put_final(frames: Frame, infos: dict[str, Any], over: Mask, fields: EnvFields) -> Frame:
    """A copy of `frames` with the final observations of the lanes that are over."""
    final = infos.get("final_obs")
    if final is None:
        raise SchemaError(
            "an episode ended in same-step autoreset mode and infos has no 'final_obs', so its "
            "final observation is lost; let the environment give it, or use next-step autoreset"
        )
    out = _copied(frames)
    # Gymnasium has an object per lane (None where nothing ended), ale-py one array for all.
    whole = isinstance(final, dict | tuple) or getattr(final, "dtype", None) != np.object_
    batch = fields.to_frame(final) if whole else None
    for i in np.flatnonzero(over).tolist():
        one = fields.to_frame(final[i]) if batch is None else _lane(batch, i)
        if isinstance(out, dict) and isinstance(one, dict):
            for key, value in one.items():
                out[key][i] = value
        elif not isinstance(out, dict):
            out[i] = one
    return out


def _copied(frames: Frame) -> Frame:
    if isinstance(frames, dict):
        return {key: value.copy() for key, value in frames.items()}
    return frames.copy()


def _lane(frames: Frame, i: int) -> Frame:
    if isinstance(frames, dict):
        return {key: value[i] for key, value in frames.items()}
    one: npt.NDArray[Any] = frames[i]
    return one


def _merged(
    lives: npt.NDArray[Any] | None, after: npt.NDArray[Any] | None, over: Mask
) -> npt.NDArray[Any] | None:
    if lives is None or after is None:
        return lives
    merged: npt.NDArray[Any] = np.where(over, after, lives)
    return merged
