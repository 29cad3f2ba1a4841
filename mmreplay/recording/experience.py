"""`RecordExperience`: a wrapper that writes what happens in an environment to a store.

Invariant: the loop sees what it would see without the wrapper, and a store has no step that the
environment did not make and no gap between two that it did.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import VectorEnv, VectorWrapper

from mmreplay.env_fields import (
    AnyEnv,
    EnvFields,
    Frame,
    advice_on_stacks,
    env_fields,
    env_metadata,
    warn_caller,
)
from mmreplay.errors import DiskFullError, FailedStoreError, MmreplayError, SchemaError
from mmreplay.recording.autoreset import Mask, Step, StepReader, final_info, some
from mmreplay.recording.lives import lives_of_all, lives_of_one
from mmreplay.writing.create import create

__all__ = ["RecordExperience", "RecordVectorExperience"]

_Call = tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]


class RecordExperience(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes each transition of an environment that somebody else steps.

    Around a vector environment it is a `RecordVectorExperience`, which stores the same: true final
    observations and no step of an autoreset, whatever the autoreset mode. An episode that the loop
    resets while it runs ends as truncated.

    After a `DiskFullError`, or a `FailedStoreError` of a limit that was reached, what could not be
    written is written before the next step. After any other error, of the environment too, `reset`
    comes next: nobody knows how far its step went.

    Several of these may write to one buffer, an episode each in turn: where one is reset, the
    episode of another that runs there ends as truncated, and that one's next step is refused.

    Environments that write each observation into the same array have to return copies where a
    vector environment resets them in the same step (``SAME_STEP``): Gymnasium gives that array as
    the final observation after the reset has changed it, which cannot be seen from here.

    Args:
        env: an environment, or a vector environment in any autoreset mode.
        to: a `ReplayBuffer` or a writer of `create`, which stay open when this is closed; or the
            path of a store, which is made, and closed with this.
        life_loss: take a lost life for the end of the game, that is for a terminal transition
            without a reset; needs an environment that tells ``lives``.
        finite: raise SchemaError at a NaN or an infinity among floats (actions, rewards,
            observations, extras), and store nothing of that step.
        options: of a path, as for `create`: ``append``, ``capacity``, ``codec``, ``lane`` and so
            on. The value of each of its ``extras`` is what `step` tells under that name in `info`.

    Raises:
        SchemaError: `to` is none of these, or made for another number of environments; or the
            environment's spaces cannot be stored. In a step: another one has been reset since.
        MmreplayError: what `create` raises, of a path.

    Attributes:
        writer: what is written to: `to`, or the writer of the store at that path.
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
        self._log = _Log(env, env_fields(env), to, options, life_loss=life_loss, finite=finite)
        self.writer = self._log.writer
        self._lives = 0

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
        """As `reset`, of an environment that was reset before, which returned these."""
        self._log.begin()
        with self._log:
            self._write_reset(observation, info)

    def _write_reset(self, observation: Any, info: dict[str, Any]) -> None:
        log = self._log
        if log.life_loss:
            self._lives = lives_of_one(info.get("lives"))
        log.write((log.writer.reset, (log.fields.to_frame(observation),), {}))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and append the step to the store."""
        log = self._log
        log.check()
        given = copy.copy(action)  # an environment may clip it where it is
        with log:
            observation, reward, terminated, truncated, info = self.env.step(action)
            more = log.extras(info)
            if log.life_loss:
                before, self._lives = self._lives, lives_of_one(info.get("lives"))
                more["life_lost"] = self._lives < before
            frame = log.fields.to_frame(observation)
            log.write((log.writer.step, (given, reward, frame, terminated, truncated), more))
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment, and the store if it was made here."""
        try:
            super().close()
        finally:
            self._log.close()


class RecordVectorExperience(VectorWrapper[Any, Any, Any, Any, Any]):
    """`RecordExperience` around a vector environment.

    Attributes:
        most: transitions that the next step may record, of the first environments; None for all.
        newest: what the newest step did.
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
        self._log = _Log(env, fields, to, options, life_loss=life_loss, finite=finite)
        self.writer = self._log.writer
        self._lives: npt.NDArray[Any] = np.zeros(env.num_envs, np.int64)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, or those of gymnasium's ``reset_mask``: their episodes begin."""
        log = self._log
        # Gymnasium takes it out of the options.
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
        """As `reset`, of environments that were reset before, which returned these."""
        self._log.begin()
        with self._log:
            self._write_reset(observations, infos, None)

    def _write_reset(self, observations: Any, infos: dict[str, Any], mask: Mask | None) -> None:
        log = self._log
        self._reader.reset(mask)
        if log.life_loss:
            lives = lives_of_all(infos.get("lives"))
            started = np.ones(len(lives), np.bool_) if mask is None else mask
            self._lives = np.where(started, lives, self._lives)
        frames = log.fields.to_frame(observations)
        if mask is not None:
            frames = _spread(frames, mask)
        log.write((log.writer.reset, (frames, mask), {}))

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments, and append what was no reset to the store."""
        log = self._log
        log.check()
        given = np.array(actions)  # environments may clip them where they are
        with log:
            result = self.env.step(actions)
            step = self._reader.read(*result)
            calls: list[_Call] = []
            if self.most is not None:
                step = self._limited(step, self.most, calls)
            self.newest = step
            more: dict[str, Any] = {}
            if log.names:
                more = log.extras(result[-1], step.started if self._reader.same_step else None)
            if log.life_loss:
                more["life_lost"] = lives_of_all(step.lives) < self._lives
                self._lives = lives_of_all(step.start_lives)
            if step.recorded is None or some(step.recorded) is not None:
                values = (
                    given, step.rewards, step.frames, step.terminated, step.truncated
                )  # fmt: skip
                calls.append((log.writer.step, values, {**more, "mask": step.recorded}))
            if step.started is not None:
                calls.append((log.writer.reset, (step.start_frames, step.started), {}))
            log.write(*calls)
        return result

    def _limited(self, step: Step, most: int, calls: list[_Call]) -> Step:
        """The step of the first environments alone, if more than `most` made one."""
        stepped = np.ones(self.num_envs, np.bool_) if step.recorded is None else step.recorded
        first = stepped & (np.cumsum(stepped) <= most)
        left_out = some(stepped & ~first)
        if left_out is None:
            return step
        calls.append((self.writer.end_episodes, (left_out,), {}))
        return step._replace(recorded=first, started=None)

    def close(self, **options: Any) -> None:
        """Close the environments, and the store if it was made here."""
        try:
            super().close(**options)
        finally:
            self._log.close()


@dataclasses.dataclass(eq=False)
class _Turn:
    """Whose episodes run in a writer: the `_Log` that wrote their beginning, by its name tag."""

    of: object = None


_turns: weakref.WeakKeyDictionary[Any, _Turn] = weakref.WeakKeyDictionary()


class _Log:
    """What is written, in the order in which it happened, and nothing after a gap.

    A context manager around what happens in the environment and its writing: after an exception in
    between, `check` asks for a reset.
    """

    def __init__(
        self,
        env: AnyEnv,
        fields: EnvFields,
        to: Any,
        options: Mapping[str, Any],
        *,
        life_loss: bool,
        finite: bool,
    ) -> None:
        self.fields = fields
        self.life_loss = life_loss
        self._finite = finite
        self._has_gap = False
        self._unwritten: list[_Call] = []
        if getattr(env.unwrapped, "is_async", False) is True:
            raise SchemaError(
                f"{env}: it returns only some of its environments at a step, and a row holds a "
                f"step of all of them; make it with batch_size equal to num_envs"
            )
        if (advice := advice_on_stacks(env)) is not None:
            warn_caller(advice)
        self._owned = isinstance(to, (str, os.PathLike))
        if self._owned:
            self._check_lanes(env, options.get("lanes", fields.lanes), to)
            self.writer = _create(env, to, options, life_loss=life_loss)
        elif options:
            raise SchemaError(
                f"{', '.join(options)}: of a store that is made at a path; what is given is open "
                f"already: {to!r:.80}"
            )
        else:
            self.writer = to
        inner = getattr(self.writer, "writer", self.writer)  # of a buffer
        schema = getattr(inner, "schema", None)
        if schema is None or not hasattr(inner, "step"):
            raise SchemaError(
                f"to: expected a ReplayBuffer, a writer of mmreplay.create, or a path, found "
                f"{to!r:.80}"
            )
        lanes = len(inner) if hasattr(inner, "__len__") else None
        try:
            self._check_lanes(env, lanes, inner.path)
        except SchemaError:
            self.close()  # what was there at the path is of another kind
            raise
        # A name tag, as `self` in a turn would keep the writer alive that the turn is of.
        self._tag, self._turn = object(), _turns.setdefault(inner, _Turn())
        self.names = tuple(schema.extras)
        if lanes is not None:
            inner._session.advice = None  # noqa: SLF001 (it was about a loop without this wrapper)

    def _check_lanes(self, env: AnyEnv, found: int | None, path: object) -> None:
        if found != self.fields.lanes:
            raise SchemaError(
                f"to: expected a store of {_words(self.fields.lanes)}, as {env} is one, found one "
                f"of {_words(found)} at {path}"
            )

    def extras(self, info: Mapping[str, Any], ended: Mask | None = None) -> dict[str, Any]:
        """The declared extras, by name, from what a step told."""
        return {
            name: value
            for name in self.names
            if (value := final_info(name, info, ended)) is not None
        }

    def begin(self) -> None:
        """Before a reset of all: what comes is of this one's episodes."""
        if self._turn.of is self._tag:
            self.write()
        else:
            self._unwritten.clear()  # of an episode that another one has ended
            self._turn.of = self._tag

    def check(self) -> None:
        """Before a step: nothing is missing between it and the one before."""
        if (of := self._turn.of) is not self._tag and of is not None:
            raise SchemaError(
                f"{self.writer!r}: another RecordExperience was reset since this one was, so that "
                f"the episode that runs there is not of this environment; call "
                f"reset(){self._how} next, or give each environment a store or lane of its own"
            )
        if self._has_gap:
            raise MmreplayError(
                f"{self.writer!r}: the last call was cut off, and what it did is not recorded; "
                f"call reset(){self._how} next"
            )
        if self._unwritten:
            self.write()

    @property
    def _how(self) -> str:
        return "" if self.fields.lanes is None else " without a mask"

    def write(self, *calls: _Call) -> None:
        """Write what happened, after what could not be written before."""
        if self._finite:
            for _, values, named in calls:
                self._check_finite(values, named)
        self._unwritten += calls
        try:
            while self._unwritten:
                function, values, named = self._unwritten[0]
                function(*values, **named)
                del self._unwritten[0]
        except (DiskFullError, FailedStoreError):  # the same calls may work later
            # The environment may hand out the same arrays again and again.
            self._unwritten = [
                (function, copy.deepcopy(values), copy.deepcopy(named))
                for function, values, named in self._unwritten
            ]
            raise
        except BaseException:
            self._unwritten.clear()
            self._has_gap = True
            raise

    def _check_finite(self, values: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Look at what is given to `step` or `reset`, of the environments of its mask."""
        given, mask = dict(named), named.get("mask")
        *others, frames = values[:3] if len(values) > 2 else values[:1]  # noqa: PLR2004 (a step)
        if len(values) == 2:  # noqa: PLR2004 (a reset of many)
            mask = values[1]
        given.update(zip(("action", "reward"), others, strict=False))
        given.update(frames if isinstance(frames, dict) else {"frame": frames})
        for name, value in given.items():
            array = np.asarray(value)
            if (
                array.dtype.kind == "f"
                and not np.isfinite(array if mask is None else array[mask]).all()
            ):
                raise SchemaError(
                    f"{self.writer!r}: {name}: expected finite numbers, as finite=True says, found "
                    f"a NaN or an infinity; nothing of this step is stored; call reset() next"
                )

    def __enter__(self) -> None:
        self._has_gap = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What could not be written waits for the next call, with nothing missing before it.
        self._has_gap = kind is not None and not self._unwritten

    def close(self) -> None:
        """Close the store if it was made here."""
        if self._owned:
            self.writer.close()


def _create(env: AnyEnv, path: Any, options: Mapping[str, Any], *, life_loss: bool) -> Any:
    metadata = {**env_metadata(env), "life_loss": life_loss}
    return create(path, **{"env": env, "metadata": metadata, **options})


def _spread(frames: Frame, mask: Mask) -> Frame:
    """Frames of all environments from those of a mask, where only these were returned."""

    def spread(value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(value) == len(mask):
            return value
        out = np.zeros((len(mask), *value.shape[1:]), value.dtype)
        out[mask] = value
        return out

    if isinstance(frames, dict):
        return {key: spread(value) for key, value in frames.items()}
    return spread(frames)


def _words(lanes: int | None) -> str:
    return "a single environment" if lanes is None else f"a vector environment of {lanes}"
