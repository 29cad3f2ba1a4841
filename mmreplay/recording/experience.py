"""`RecordExperience`: a wrapper that writes each step of an environment to a store.

Invariant: the caller sees the same as without the wrapper, and the store has exactly the steps that
the environment made between two resets.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv, VectorWrapper

from mmreplay.env_fields import AnyEnv, Frame, env_fields
from mmreplay.recording.autoreset import Mask, Step, StepReader, lives_left, some
from mmreplay.recording.experience_log import Call, Log

__all__ = ["RecordExperience", "RecordVectorExperience"]


class RecordExperience(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes each transition of an environment to a store.

    Around a vector environment it is a `RecordVectorExperience`, which stores the same: true final
    observations and no autoreset steps, in every autoreset mode. Resetting a running episode
    truncates it.

    After a `DiskFullError`, or a `FailedStoreError` because of a limit, the unwritten step is
    written before the next one. After any other error, including one of the environment, call
    `reset` next.

    Several wrappers may write to one buffer, one episode each in turn: the reset of one truncates
    the running episode of another, whose next step is refused.

    In the autoreset mode ``SAME_STEP``, environments that write each observation into the same
    array must return copies: Gymnasium returns that array as the final observation after the reset
    has changed it.

    Args:
        env: an environment, or a vector environment in any autoreset mode.
        to: a `ReplayBuffer` or a writer of `create`, which stays open when this is closed; or the
            path of a store, which is created, and closed with this.
        life_loss: treat a lost life as terminal, without a reset; the environment's info needs
            ``lives``.
        finite: raise SchemaError at a NaN or an infinity in an action, reward, observation or
            extra, and store nothing of that step.
        options: for a path, as for `create`: ``append``, ``capacity``, ``codec``, ``lane`` and so
            on. The `info` of each step must have the values of its ``extras``.

    Raises:
        SchemaError: `to` is something else, or has another number of environments; or the spaces
            cannot be stored. In a step: another wrapper was reset since this one.
        MmreplayError: as `create`, for a path.

    Attributes:
        writer: `to`, or the writer of the store at that path.
    """

    def __new__(cls, env: AnyEnv, *args: Any, **options: Any) -> Any:
        """Choose the class by the environment."""
        if isinstance(env, VectorEnv):
            return RecordVectorExperience(env, *args, **options)
        return super().__new__(cls)

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        to: Any,
        *,
        life_loss: bool = False,
        finite: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(env)
        self._log = Log(env, env_fields(env), to, options, life_loss=life_loss, finite=finite)
        self.writer = self._log.writer
        self._lives: Any = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, and begin an episode in the store."""
        log = self._log
        log.begin()
        with log:
            observation, info = self.env.reset(seed=seed, options=options)
            self._write_reset(observation, info)
        return observation, info

    def begun(self, observation: Any, info: dict[str, Any]) -> None:
        """As `reset`, for an environment that was reset already and returned these."""
        self._log.begin()
        with self._log:
            self._write_reset(observation, info)

    def _write_reset(self, observation: Any, info: dict[str, Any]) -> None:
        log = self._log
        if log.life_loss:
            self._lives = lives_left(info)
        frame = log.fields.to_frame(observation)
        log.check_finite(None, frame)
        log.write((log.writer.reset, (frame,), {}))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and append the step to the store."""
        log = self._log
        log.check()
        given = copy.copy(action)  # the environment may change it
        with log:
            observation, reward, terminated, truncated, info = self.env.step(action)
            more = log.extras(info)
            if log.life_loss:
                before, self._lives = self._lives, lives_left(info)
                more["life_lost"] = bool(self._lives < before)
            frame = log.fields.to_frame(observation)
            log.check_finite(None, frame, action=given, reward=reward, **more)
            log.write((log.writer.step, (given, reward, frame, terminated, truncated), more))
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, and the store if it was created here."""
        try:
            super().close()
        finally:
            self._log.close()


class RecordVectorExperience(VectorWrapper[Any, Any, Any, Any, Any]):
    """`RecordExperience` around a vector environment.

    Attributes:
        most: transitions of the next step to record, of the first environments; None for all.
        newest: the newest step.
        resets_by_hand: whether the loop resets the environments whose episode ended.
    """

    newest: Step

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        to: Any,
        *,
        life_loss: bool = False,
        finite: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(env)
        fields = env_fields(env)
        self._reader = StepReader(env, fields)
        self.resets_by_hand = self._reader.resets_by_hand
        self.most: int | None = None
        self._log = Log(env, fields, to, options, life_loss=life_loss, finite=finite)
        self.writer = self._log.writer
        self._lives: npt.NDArray[Any] = np.zeros(env.num_envs, np.int64)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, or those of gymnasium's ``reset_mask``: their episodes begin."""
        log = self._log
        # Read first: Gymnasium removes it from the options.
        mask = None if options is None else options.get("reset_mask")
        mask = None if mask is None else np.array(mask, dtype=np.bool_)
        if mask is None:
            log.begin()
        else:
            log.check()
        with log:
            observations, infos = self.env.reset(seed=seed, options=options)
            self._write_reset(observations, infos, mask)
        return observations, infos

    def begun(self, observations: Any, infos: dict[str, Any]) -> None:
        """As `reset`, for environments that were reset already and returned these."""
        self._log.begin()
        with self._log:
            self._write_reset(observations, infos, None)

    def _write_reset(self, observations: Any, infos: dict[str, Any], mask: Mask | None) -> None:
        log = self._log
        self._reader.reset(mask)
        if log.life_loss:
            lives = lives_left(infos)
            started = np.ones(len(lives), np.bool_) if mask is None else mask
            self._lives = np.where(started, lives, self._lives)
        frames = log.fields.to_frame(observations)
        if mask is not None:
            frames = _spread(frames, mask)
        log.check_finite(mask, frames)
        log.write((log.writer.reset, (frames, mask), {}))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments, and append the steps that are not resets to the store."""
        log = self._log
        log.check()
        given = np.array(actions)  # the environments may change them
        with log:
            result = self.env.step(actions)
            step = self._reader.read(*result)
            calls: list[Call] = []
            infos, ended = result[-1], step.started if self._reader.same_step else None
            if self.most is not None and self.most < self.num_envs:
                step = self._limited(step, self.most, calls)
            self.newest = step
            more = log.extras(infos, ended)
            if log.life_loss:
                more["life_lost"] = lives_left(infos, ended) < self._lives
                self._lives = lives_left(infos)
            if step.recorded is None or some(step.recorded) is not None:
                frames, rewards = step.frames, step.rewards
                log.check_finite(step.recorded, frames, action=given, reward=rewards, **more)
                values = (given, rewards, frames, step.terminated, step.truncated)
                calls.append((log.writer.step, values, {**more, "mask": step.recorded}))
            if step.started is not None:
                log.check_finite(step.started, step.start_frames)
                calls.append((log.writer.reset, (step.start_frames, step.started), {}))
            log.write(*calls)
        return result

    def _limited(self, step: Step, most: int, calls: list[Call]) -> Step:
        """The step of the first environments only, if more than `most` made one."""
        stepped = np.ones(self.num_envs, np.bool_) if step.recorded is None else step.recorded
        first = stepped & (np.cumsum(stepped) <= most)
        left_out = some(stepped & ~first)
        if left_out is None:
            return step
        calls.append((self.writer.end_episodes, (left_out,), {}))
        return step._replace(recorded=first, started=None)

    def close(self, **options: Any) -> None:
        """Close the environments, and the store if it was created here."""
        try:
            super().close(**options)
        finally:
            self._log.close()


def _spread(frames: Frame, mask: Mask) -> Frame:
    """Frames of all environments, if only those of the mask were returned."""

    def spread(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(value) == len(mask):
            return value
        out = np.zeros((len(mask), *value.shape[1:]), value.dtype)
        out[mask] = value
        return out

    if isinstance(frames, dict):
        return {key: spread(value) for key, value in frames.items()}
    return spread(frames)
