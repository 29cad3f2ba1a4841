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

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from mmreplay.env_fields import Action, EnvFields, Frame, Observation, autoreset_mode
from mmreplay.errors import SchemaError

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
        lives: lives left after the step, also where it ended the episode, where the environment
            tells them.
        start_lives: the same, but for the episodes that begin those that they begin with.
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
    start_lives: npt.NDArray[Any] | None


class Lanes(Protocol):
    """Environments that step together."""

    def reset(self, seed: int) -> tuple[Observation, npt.NDArray[Any] | None]:
        """Start an episode in every lane, lane i with seed + i: the observations and lives."""

    def send(self, actions: Action) -> None:
        """Begin a step of every lane; it may run while the caller does something else."""

    def receive(self) -> Step:
        """What that step ended in."""


def lanes_of(env: VectorEnv[Any, Any, Any], fields: EnvFields) -> Lanes:
    """The lanes of a vector environment by its autoreset mode; SchemaError if it states none."""
    mode = autoreset_mode(env)
    reading = _MODES.get(mode)
    if reading is None:
        raise SchemaError(
            f"{env}: metadata['autoreset_mode'] is {mode!r}, so it cannot be told which steps are "
            f"transitions; set it to a gymnasium.vector.AutoresetMode"
        )
    return _VectorLanes(env, fields, reading)


class _VectorLanes:
    """A vector environment, with what its mode makes of a step."""

    def __init__(
        self, env: VectorEnv[Any, Any, Any], fields: EnvFields, reading: Callable[[], _Reading]
    ) -> None:
        self.env = env
        self.fields = fields
        self._reading = reading
        self._read = reading()
        self._actions: Action = None

    def reset(self, seed: int) -> tuple[Observation, npt.NDArray[Any] | None]:
        """See `Lanes`."""
        self._read = self._reading()
        observations, infos = self.env.reset(seed=seed)
        return observations, infos.get("lives")

    def send(self, actions: Action) -> None:
        """See `Lanes`."""
        self._actions = actions

    def receive(self) -> Step:
        """See `Lanes`. Raises SchemaError for same-step infos without a final observation."""
        observations, rewards, terminated, truncated, infos = self.env.step(self._actions)
        # Environments on other array libraries (JAX, torch) return their own arrays.
        terminated = np.asarray(terminated, dtype=np.bool_)
        truncated = np.asarray(truncated, dtype=np.bool_)
        frames = self.fields.to_frame(observations)
        lives = infos.get("lives")
        plain = Step(
            frames,
            np.asarray(rewards),
            terminated,
            truncated,
            recorded=None,
            started=None,
            start_frames=frames,
            observations=observations,
            ignored=None,
            lives=lives,
            start_lives=lives,
        )
        return self._read(self, plain, infos)


_Reading = Callable[[_VectorLanes, Step, dict[str, Any]], Step]


class _NextStep:
    """A lane's step after its last one is its reset."""

    def __init__(self) -> None:
        self._over: Mask | None = None

    def __call__(self, _lanes: _VectorLanes, step: Step, _infos: dict[str, Any]) -> Step:
        started, self._over = self._over, _some(step.terminated | step.truncated)
        return step._replace(
            recorded=None if started is None else ~started, started=started, ignored=self._over
        )


def _same_step(lanes: _VectorLanes, step: Step, infos: dict[str, Any]) -> Step:
    """The final observation lies in the infos, the next episode's first one where it would be."""
    over = _some(step.terminated | step.truncated)
    if over is None:
        return step
    final = _put_final(step.start_frames, infos, over, lanes.fields)
    last = infos.get("final_info", {}).get("lives")
    return step._replace(frames=final, started=over, lives=_merged(step.start_lives, last, over))


def _disabled(lanes: _VectorLanes, step: Step, _infos: dict[str, Any]) -> Step:
    """The lanes whose episode ended are reset by hand, with gymnasium's ``reset_mask``."""
    over = _some(step.terminated | step.truncated)
    if over is None:
        return step
    # The environment may hand out the same arrays again and again.
    final = step._replace(
        frames=_copied(step.frames),
        rewards=step.rewards.copy(),
        terminated=step.terminated.copy(),
        truncated=step.truncated.copy(),
        lives=None if step.lives is None else np.array(step.lives),
    )
    # A copy of the mask as well: gymnasium takes it out of the options and keeps it.
    observations, infos = lanes.env.reset(options={"reset_mask": over.copy()})
    return final._replace(
        started=over,
        start_frames=lanes.fields.to_frame(observations),
        observations=observations,
        start_lives=_merged(final.lives, infos.get("lives"), over),
    )


# By the value of `gymnasium.vector.AutoresetMode`; a reading starts again with every reset.
_MODES: dict[object, Callable[[], _Reading]] = {
    "NextStep": _NextStep,
    "SameStep": lambda: _same_step,
    "Disabled": lambda: _disabled,
}


def _some(lanes: Mask) -> Mask | None:
    return lanes if lanes.any() else None


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
