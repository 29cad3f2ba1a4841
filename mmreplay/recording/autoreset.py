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

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv

from mmreplay.env_fields import EnvFields, Frame, Observation, autoreset_mode
from mmreplay.errors import SchemaError

Mask = npt.NDArray[np.bool_]
Infos = Mapping[str, Any]

_BOOL = np.dtype(np.bool_)
_TRUE = b"\1"


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


class StepReader:
    """Tells what each step of a vector environment did, by its autoreset mode.

    Raises SchemaError if the environment states no mode.

    Attributes:
        resets_by_hand: whether its caller resets the environments whose episode ended.
        same_step: whether the step that ends an episode begins the next one.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], fields: EnvFields) -> None:
        mode = autoreset_mode(env)
        if mode not in ("NextStep", "SameStep", "Disabled"):
            raise SchemaError(
                f"{env}: metadata['autoreset_mode'] is {mode!r}, so it cannot be told which steps "
                f"are transitions; set it to a gymnasium.vector.AutoresetMode"
            )
        self.resets_by_hand = mode == "Disabled"
        self.same_step = mode == "SameStep"
        self._fields = fields
        self._over: Mask | None = None

    def reset(self, mask: Mask | None = None) -> None:
        """Episodes begin in all environments, or in those of a mask."""
        if self._over is not None:
            self._over = None if mask is None else some(self._over & ~mask)

    def read(
        self, observations: Observation, rewards: Any, terminated: Any, truncated: Any, infos: Infos
    ) -> Step:
        """What a step did, from what `VectorEnv.step` returned.

        Raises SchemaError for same-step infos without a final observation.
        """
        terminated, truncated = _flags(terminated), _flags(truncated)
        over = some(np.logical_or(terminated, truncated))
        start_frames = frames = self._fields.to_frame(observations)
        recorded = started = ignored = None
        if self.same_step:
            if over is not None:
                # The final observation lies in the infos, the next episode's first where it would
                # be.
                started, frames = over, _put_final(frames, infos, over, self._fields)
        else:
            waited, self._over = self._over, over
            recorded = None if waited is None else ~waited
            if not self.resets_by_hand:
                # An environment's step after its last one is its reset.
                started, ignored = waited, over
            elif waited is not None:
                # Whoever is stepped before its reset makes no transition.
                self._over = waited if over is None else waited | over
        return Step(
            frames,
            np.asarray(rewards),
            terminated,
            truncated,
            recorded,
            started,
            start_frames,
            observations,
            ignored,
        )


def final_info(name: str, infos: Infos, over: Mask | None) -> npt.NDArray[Any] | None:
    """What the infos of a step tell under a name, of episodes that ended what they ended with.

    Args:
        name: of the info.
        infos: of a vector environment's step.
        over: the environments whose episode ended and began again within the step; None for none.

    Returns:
        (N, ...) a value for each environment; None if the infos have no such name.
    """
    value = infos.get(name)
    if over is None:
        return value
    final = infos.get("final_info", {}).get(name)
    # Where all episodes ended, the resets may tell less than the steps.
    return final if value is None else _merged(value, final, over)


def lives_left(infos: Infos, over: Mask | None = None) -> npt.NDArray[Any]:
    """A copy of the ``lives`` of an info or infos, which the environment may reuse.

    Raises SchemaError if the environment does not report them.
    """
    lives = final_info("lives", infos, over)
    if lives is None:
        raise SchemaError(
            "life_loss: the environment's info has no 'lives'; leave life_loss out for it"
        )
    return np.array(lives)


def _flags(values: Any) -> Mask:
    if type(values) is np.ndarray and values.dtype is _BOOL:
        return values
    # Environments on other array libraries (JAX, torch) return their own arrays.
    return np.asarray(values, dtype=np.bool_)


def some(lanes: Mask) -> Mask | None:
    """The lanes of a mask of any; None of none."""
    # Far quicker than `any` of numpy for the few bytes that there are.
    return lanes if _TRUE in lanes.tobytes() else None


def _put_final(frames: Frame, infos: Infos, over: Mask, fields: EnvFields) -> Frame:
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
    values: npt.NDArray[Any] | None, after: npt.NDArray[Any] | None, over: Mask
) -> npt.NDArray[Any] | None:
    """(N, ...) those after in the environments that are over."""
    if values is None or after is None:
        return values
    columns = over.reshape(-1, *[1] * (np.ndim(values) - 1))
    merged: npt.NDArray[Any] = np.where(columns, after, values)
    return merged
