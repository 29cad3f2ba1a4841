"""Read the steps of a vector environment in the same way in every autoreset mode.

Gymnasium's vector environments reset in one of three ways
(https://farama.org/Vector-Autoreset-Mode):

    next step   the step after the last one ignores its action and returns the new episode's first
                observation with reward 0: it is not a transition
    same step   the last step returns the new episode's first observation, and the final one in
                ``infos["final_obs"]``
    disabled    the last step returns the final observation, and the caller resets

Invariant: an environment that `Step.recorded` marks was stepped, and its `Step.frames` is the
observation after that step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from mmreplay.errors import SchemaError
from mmreplay.schema import FRAME, Field
from mmreplay.writing.env_fields import EnvFields, Frame, Observation, autoreset_mode
from mmreplay.writing.simulators import Simulator, on_host, own_mode

Mask = npt.NDArray[np.bool_]
Infos = Mapping[str, Any]

_TRUE = b"\1"


class Step(NamedTuple):
    """One step of all environments; a mask of None means none of them, and for `recorded` all."""

    frames: Frame  # after the step, also where it ended the episode
    rewards: npt.NDArray[Any]
    terminated: Mask
    truncated: Mask
    over: Mask | None  # terminated or truncated
    recorded: Mask | None  # made a step
    started: Mask | None  # an episode begins
    start_frames: Frame  # the first ones of these episodes
    ignored: Mask | None  # the next action is ignored


class StepReader:
    """Reads each step of a vector environment by its autoreset mode; SchemaError without a mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any], fields: EnvFields) -> None:
        mode = autoreset_mode(env)
        if mode not in ("NextStep", "SameStep", "Disabled"):
            raise SchemaError(
                f"{env}: {env.advice}"
                if isinstance(env, Simulator)
                else f"{env}: metadata['autoreset_mode'] is {mode!r}, so it is unknown which steps "
                f"are transitions; set it to a gymnasium.vector.AutoresetMode"
            )
        self.resets_by_hand = mode == "Disabled"  # the caller resets where an episode ended
        self.same_step = mode == "SameStep"
        own = own_mode(env)
        self._final = "final_obs" if own is None else own[1]  # their name in infos
        self._fields = fields
        self._over: Mask | None = None
        self._copy: Frame | None = None  # kept: new memory takes longer than copying into it

    def reset(self, mask: Mask | None = None) -> None:
        """Begin episodes in all environments, or in those of a mask."""
        if self._over is not None:
            self._over = None if mask is None else some(self._over & ~mask)

    def read(
        self, observations: Observation, rewards: Any, terminated: Any, truncated: Any, infos: Infos
    ) -> Step:
        """Make a `Step` of what `VectorEnv.step` returned."""
        # Environments on other array libraries (JAX, torch) return their own arrays.
        terminated = on_host(terminated).astype(np.bool_, copy=False)
        truncated = on_host(truncated).astype(np.bool_, copy=False)
        over = some(np.logical_or(terminated, truncated))
        start_frames = frames = self._fields.to_frame(observations)
        recorded = started = ignored = None
        if self.same_step:
            if over is not None:
                # `observations` has the next episode's first one instead of the final one.
                started = over
                frames = self._put_final(frames, infos.get(self._final), over)
        else:
            waited, self._over = self._over, over
            recorded = None if waited is None else ~waited
            if not self.resets_by_hand:
                # The step after the last one of an episode is its reset.
                started, ignored = waited, over
            elif waited is not None:
                # Steps before the reset are not transitions.
                self._over = waited if over is None else waited | over
        rewards = on_host(rewards)
        return Step(
            frames, rewards, terminated, truncated, over, recorded, started, start_frames, ignored
        )

    def _put_final(self, frames: Frame, final: Any, over: Mask) -> Frame:
        """A copy of `frames` with the final observations of the episodes that are over."""
        if final is None:
            raise SchemaError(
                "an episode ended in same-step autoreset mode, but infos has no 'final_obs' with "
                "its final observation; fix the environment, or use next-step autoreset"
            )
        if self._copy is None:
            self._copy = copy.deepcopy(frames)
        out = by_key(self._copy)
        for key, value in by_key(frames).items():
            out[key][...] = value
        # Gymnasium has one object per environment (None where nothing ended), ale-py one array.
        if isinstance(final, dict | tuple) or getattr(final, "dtype", None) != np.object_:
            for key, value in by_key(self._fields.to_frame(final)).items():
                out[key][over] = value[over]
        else:
            for i in np.flatnonzero(over).tolist():
                for key, value in by_key(self._fields.to_frame(final[i])).items():
                    out[key][i] = value
        return self._copy


def final_info(name: str, infos: Infos, over: Mask | None) -> npt.NDArray[Any] | None:
    """(N, ...) values in the infos of a step, of `over` from before a reset; None if missing."""
    value = _on_host(infos.get(name))
    if over is None:
        return value
    final = _on_host(infos.get("final_info", {}).get(name))
    if value is None or final is None:
        # If all episodes ended, the infos of the resets may lack the name.
        return final if value is None else value
    columns = over.reshape(-1, *[1] * (np.ndim(value) - 1))
    merged: npt.NDArray[Any] = np.where(columns, final, value)
    return merged


def _on_host(value: Any) -> npt.NDArray[Any] | None:
    return value if value is None or type(value) is np.ndarray else on_host(value)


def extras_of(
    fields: Mapping[str, Field], infos: Infos, over: Mask | None, recorded: Mask | None
) -> dict[str, npt.NDArray[Any]]:
    """The declared extras in the infos of a step, by name; without those that are in none."""
    out = {}
    for name, field in fields.items():
        value, has = (final_info(key, infos, over) for key in (name, f"_{name}"))
        if value is None:
            continue
        if has is not None:  # Gymnasium's mask: the others have a 0 that means nothing
            lacks = ~np.asarray(has, np.bool_)
            if over is not None and name not in infos.get("final_info", {name: None}):
                lacks |= over  # what is there came from the reset
            if field.fill is not None:
                columns = lacks.reshape(-1, *[1] * (np.ndim(value) - 1))
                value = np.where(columns, field.filled(), value)
            elif (missing := lacks if recorded is None else lacks & recorded).any():
                raise SchemaError(
                    f"extras: the info of environment {int(missing.argmax())} has no {name!r}; "
                    f"mmreplay.Field(..., fill=0) declares what is stored where one is missing"
                )
        out[name] = value
    return out


def last_info(infos: Infos, i: int) -> dict[str, Any]:
    """The info of one environment of a step that ended its episode, from before any reset."""
    final = infos.get("final_info", infos)
    return dict(final[i]) if not isinstance(final, Mapping) else _info_of(final, i)


def _info_of(infos: Infos, i: int) -> dict[str, Any]:
    masks, out = {f"_{name}" for name in infos}, dict[str, Any]()
    for name, value in infos.items():
        has = infos.get(f"_{name}")
        if name not in masks and (has is None or has[i]):
            out[name] = _info_of(value, i) if isinstance(value, Mapping) else value[i]
    return out


def lives_left(infos: Infos, over: Mask | None = None) -> npt.NDArray[Any]:
    """A copy of the ``lives`` of an info or infos, which the environment may reuse."""
    lives = final_info("lives", infos, over)
    if lives is None:
        raise SchemaError(
            "life_loss: the environment's info has no 'lives'; leave life_loss out for it"
        )
    return np.array(lives)


def some(lanes: Mask) -> Mask | None:
    """The mask; None if it is all False."""
    # Much faster than `any` of numpy for a few bytes.
    return lanes if _TRUE in lanes.tobytes() else None


def by_key(frames: Frame) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a frame; a single one is called frame."""
    return frames if isinstance(frames, dict) else {FRAME: frames}


def lane_of(observations: Any, i: int) -> Any:
    """The observation of one environment."""
    if isinstance(observations, dict):
        return {key: lane_of(value, i) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(lane_of(value, i) for value in observations)
    return observations[i]
