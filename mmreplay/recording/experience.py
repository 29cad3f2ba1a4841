"""`RecordExperience`: a wrapper that writes each step of an environment to a store.

Invariant: the caller sees the same as without the wrapper, and the store has exactly the steps that
the environment made between two resets. After a call that is not recorded, a reset is recorded
next.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from mmreplay.arguments import check_takes
from mmreplay.errors import DiskFullError, FailedStoreError, MmreplayError, SchemaError
from mmreplay.reading.store import open_store
from mmreplay.recording.autoreset import (
    Mask,
    Step,
    StepReader,
    by_key,
    extras_of,
    last_info,
    lives_left,
    some,
)
from mmreplay.schema import FRAME
from mmreplay.writing.create import create
from mmreplay.writing.env_fields import AnyEnv, Frame, advice_on_stacks, env_fields, warn_caller
from mmreplay.writing.request import Resume
from mmreplay.writing.simulators import as_vector, on_host

__all__ = ["RecordExperience", "RecordVectorExperience"]

_WHOLE = (int, np.integer)
_Call = tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]

_turns: weakref.WeakKeyDictionary[Any, list[object]] = weakref.WeakKeyDictionary()
"""Writer -> the tag of the wrapper whose episodes run in it."""


class Made(NamedTuple):
    """What a step recorded, and what comes next; a mask of None means no environment."""

    steps: int  # transitions
    episodes: int  # that ended
    over: Mask | None = None  # to be reset by the loop
    started: Mask | None = None  # have begun an episode
    ignored: Mask | None = None  # the next action is ignored


_RUNNING, _ENDED = Made(1, 0), Made(1, 1, np.ones(1, np.bool_))


class _Recording:
    """What both wrappers do; `_has_gap` demands a reset after a call that was not written."""

    most: int | None = None
    """Transitions of the next step to record, of the first environments; None for all."""
    env: Any

    def __init__(
        self,
        env: Any,
        to: Any,
        *,
        life_loss: bool = False,
        finite: bool = False,
        resume: Resume = "auto",
        episode: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        if episode is not None:
            check_takes("episode", episode, "info")
        super().__init__(env)  # type: ignore[call-arg]  # of a gymnasium wrapper
        self._fields = env_fields(env)
        space: Any = getattr(env, "single_action_space", env.action_space)
        is_discrete = isinstance(space, gymnasium.spaces.Discrete)
        self._actions = range(space.start, space.start + space.n) if is_discrete else None
        self._life_loss, self._finite, self._episode = life_loss, finite, episode
        self._lives: Any = 0
        self._has_gap = False
        self._unwritten: list[_Call] = []
        if getattr(env.unwrapped, "is_async", False) is True:
            raise SchemaError(
                f"{env}: it returns only some of its environments per step, and a row needs all of "
                f"them; create it with batch_size equal to num_envs"
            )
        if (advice := advice_on_stacks(env)) is not None:
            warn_caller(advice)
        self._owned = isinstance(to, (str, os.PathLike))
        self.writer = to
        if self._owned:
            self._check_lanes(options.get("lanes", self._fields.lanes), to)
            if isinstance(given := options.get("metadata") or {}, Mapping):
                options["metadata"] = {"life_loss": life_loss, **given}
            if "append" in options:
                resume = "auto" if options.pop("append") else False
            self.writer = create(to, **{"env": env, "resume": resume, **options})
        elif options or resume != "auto":
            raise SchemaError(
                f"{', '.join(options) or 'resume'}: for a store at a path only, but this one is "
                f"already open: {to!r:.80}"
            )
        inner = getattr(self.writer, "writer", self.writer)  # a buffer has one
        schema = getattr(inner, "schema", None)
        if schema is None or not hasattr(inner, "step"):
            raise SchemaError(
                f"to: expected a ReplayBuffer, a writer of mmreplay.create, or a path, found "
                f"{to!r:.80}"
            )
        lanes = len(inner) if hasattr(inner, "__len__") else None
        try:
            self._check_lanes(lanes, inner.path)
            if self._owned and inner.files.age_s is not None:
                with open_store(inner.path) as store:
                    inner.files.log_resumed(len(store), resume)
        except BaseException:
            self._close_writer()
            raise
        # A tag, as a reference to this wrapper would keep the writer alive.
        self._tag, self._turn = object(), _turns.setdefault(inner, [None])
        optional = {name: dataclasses.replace(one, fill=0) for name, one in schema.derived.items()}
        self._extras = {**schema.extras, **optional}
        if lanes is not None:
            inner._advice = None  # noqa: SLF001 (for loops without this wrapper)

    def _check_lanes(self, found: int | None, path: object) -> None:
        if found != self._fields.lanes:
            raise SchemaError(
                f"to: {self.env} is {words(self._fields.lanes)}, but the store at {path} is for "
                f"{words(found)}"
            )

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environments, or those of gymnasium's ``reset_mask``: their episodes begin."""
        mask = None
        if options is not None and self._fields.lanes is not None:
            # Read first: Gymnasium removes it from the options.
            mask = options.get("reset_mask")
            if mask is not None:
                mask = np.array(on_host(mask), np.bool_)
            elif (numbers := options.get("env_idx")) is not None:  # of ManiSkill
                mask = np.zeros(self._fields.lanes, np.bool_)
                mask[on_host(numbers)] = True
        if mask is None:
            self._begin()
        else:
            self._check()
        self._has_gap = True
        observation, info = self.env.reset(seed=seed, options=options)
        self._write_reset(observation, info, mask)
        return observation, info

    def begun(self, observation: Any, info: dict[str, Any]) -> None:
        """As `reset`, for an environment that was reset already and returned these."""
        self._begin()
        self._write_reset(observation, info, None)

    def _write_reset(self, observation: Any, info: dict[str, Any], mask: Mask | None) -> None:
        if self._life_loss:
            lives = lives_left(info)
            self._lives = lives if mask is None else np.where(mask, lives, self._lives)
        frame = self._fields.to_frame(observation)
        if mask is None:
            self._check_finite(None, frame)
            self._write((self.writer.reset, (frame,), {}))
        else:
            frame = _spread(frame, mask)
            self._check_finite(mask, frame)
            self._write((self.writer.reset, (frame, mask), {}))

    def close(self, **options: Any) -> None:
        """Close the environment, and the store if it was created here."""
        try:
            super().close(**options)  # type: ignore[misc]  # of a gymnasium wrapper
        finally:
            self._close_writer()

    def _close_writer(self) -> None:
        if self._owned:
            self.writer.close()

    def _begin(self) -> None:
        """Before a reset of all environments: the next episodes belong to this wrapper."""
        if self._turn[0] is self._tag:
            self._write()
        else:
            self._unwritten.clear()  # another wrapper has ended that episode
            self._turn[0] = self._tag

    def _check(self) -> None:
        """Before a step: raise if something is missing since the step before."""
        how = "" if self._fields.lanes is None else " without a mask"
        if (of := self._turn[0]) is not self._tag and of is not None:
            raise SchemaError(
                f"{self.writer!r}: the running episode belongs to another environment, whose "
                f"RecordExperience was reset after this one; call reset(){how} next, or give "
                f"each environment its own store or lane"
            )
        if self._has_gap:
            raise MmreplayError(
                f"{self.writer!r}: the last call was interrupted and is not recorded; call "
                f"reset(){how} next"
            )
        if self._unwritten:
            self._write()

    def _values(
        self, info: Mapping[str, Any], ended: Mask | None = None, recorded: Mask | None = None
    ) -> dict[str, Any]:
        """What the info of a step says: the declared extras by name, and lost lives."""
        if self._fields.lanes is None:
            out = {name: info[name] for name in self._extras if info.get(name) is not None}
        else:
            out = extras_of(self._extras, info, ended, recorded)
        if self._life_loss:
            out["life_lost"] = lives_left(info, ended) < self._lives
            self._lives = lives_left(info)
        return out

    def _write(self, *calls: _Call) -> None:
        """Write these calls, after those that could not be written before."""
        self._unwritten += calls
        try:
            while self._unwritten:
                function, values, named = self._unwritten[0]
                function(*values, **named)
                del self._unwritten[0]
        except BaseException as error:
            self._not_written(error, self._unwritten)
            raise
        self._has_gap = False

    def _not_written(self, error: BaseException, calls: Sequence[_Call]) -> None:
        """Keep calls that may succeed later; after any other error a reset comes next."""
        self._has_gap = not isinstance(error, (DiskFullError, FailedStoreError))
        # Copies, as the environment may reuse its arrays.
        self._unwritten = [
            (call, copy.deepcopy(values), copy.deepcopy(named))
            for call, values, named in ([] if self._has_gap else calls)
        ]

    def _refuse(self, action: Any, known: range) -> NoReturn:
        raise SchemaError(
            f"{self.writer!r}: action: expected {known[0]} to {known[-1]}, as the action space "
            f"says, found {action}; this step was not stored"
        )

    def _check_finite(self, mask: Mask | None, frames: Frame, **values: Any) -> None:
        """Refuse a NaN or infinity in the environments of the mask, if `finite` is set."""
        if not self._finite:
            return
        values |= by_key(frames)
        for name, value in values.items():
            array = np.asarray(value)
            array = array if mask is None else array[mask]
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise SchemaError(
                    f"{self.writer!r}: {name}: expected finite numbers because of finite=True, "
                    f"found a NaN or an infinity; this step was not stored; call reset() next"
                )


class RecordExperience(_Recording, gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes each transition of an environment to a store.

    Around a vector environment it is a `RecordVectorExperience`, which stores the same: true final
    observations and no autoreset steps, in every autoreset mode. Resetting a running episode
    truncates it.

    After a `DiskFullError`, or a `FailedStoreError` because of a limit, the unwritten step is
    written before the next one; after any other error call `reset` next. Several wrappers may write
    to one buffer in turn: the reset of one truncates the running episode of another, whose next
    step is refused. In the autoreset mode ``SAME_STEP``, environments that write each observation
    into the same array must return copies, as the reset would change the final observation.

    Args:
        env: an environment, or a vector environment in any autoreset mode.
        to: a `ReplayBuffer` or a writer of `create`, which stays open when this is closed; or the
            path of a store, which is created or continued, and closed with this.
        life_loss: treat a lost life as terminal, without a reset; the environment's info needs
            ``lives``.
        episode: called with the info of each episode's last step, of one environment; returns
            fields of the episode by name, see `Writer.episode`. It is not called for episodes that
            a reset cuts off.
        finite: raise SchemaError at a NaN or an infinity in an action, reward, observation or
            extra, and store nothing of that step.
        resume: for a path, True needs a store there, False a free path; ``auto`` takes either, and
            logs a line if there is one.
        options: for a path, as for `create`. Each step's `info` must have its ``extras``, and may
            have those of ``derived``.

    Raises:
        SchemaError: `to` is something else, or has another number of environments; or the spaces
            cannot be stored. In a step: another wrapper was reset, or there is no such action.
        MmreplayError: as `create`, for a path.

    Attributes:
        writer: `to`, or the writer of the store at that path.
    """

    _is_over = False

    def __new__(cls, env: AnyEnv, *args: Any, **options: Any) -> Any:
        """Choose the class by the environment."""
        env = as_vector(env)
        if isinstance(env, VectorEnv):
            return RecordVectorExperience(env, *args, **options)
        return super().__new__(cls)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and append the step to the store."""
        if self._turn[0] is not self._tag or self._has_gap or self._unwritten:
            self._check()
        # The environment may change it, unless it is a number.
        given = action if isinstance(action, (int, np.generic)) else copy.copy(action)
        if self._actions and isinstance(given, _WHOLE) and int(given) not in self._actions:
            self._refuse(given, self._actions)
        self._has_gap = True
        observation, reward, terminated, truncated, info = self.env.step(action)
        more = self._values(info) if self._extras or self._life_loss else {}
        frame = self._fields.to_frame(observation)
        if self._finite:
            self._check_finite(None, frame, action=given, reward=reward, **more)
        write, values = self.writer.step, (given, reward, frame, terminated, truncated)
        self._is_over = terminated or truncated
        if self._is_over and self._episode is not None:
            of_episode = self.writer.episode, (), dict(self._episode(info))
            self._write((write, values, more), of_episode)
            return observation, reward, terminated, truncated, info
        try:  # as `_write`, in fewer steps
            write(*values, **more)
        except BaseException as error:
            self._not_written(error, [(write, values, more)])
            raise
        self._has_gap = False
        return observation, reward, terminated, truncated, info

    def made(self) -> Made:
        """What the newest step recorded."""
        return _ENDED if self._is_over else _RUNNING


class RecordVectorExperience(_Recording, VectorWrapper):  # not generic before Gymnasium 1.4
    """`RecordExperience` around a vector environment."""

    _newest: Step

    def __init__(self, env: VectorEnv[Any, Any, Any], to: Any, **options: Any) -> None:
        self._reader = StepReader(env, env_fields(env))  # refuses what cannot be recorded
        super().__init__(env, to, **options)

    def _write_reset(self, observation: Any, info: dict[str, Any], mask: Mask | None) -> None:
        self._reader.reset(mask)
        super()._write_reset(observation, info, mask)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments, and append the steps that are not resets to the store."""
        self._check()
        given = np.array(on_host(actions))  # the environments may change them
        self._has_gap = True
        result: tuple[Any, Any, Any, Any, dict[str, Any]] = self.env.step(actions)
        step = self._reader.read(*result)
        calls: list[_Call] = []
        ended = step.started if self._reader.same_step else None
        if self._actions and given.dtype.kind in "iu":
            odd = (given < self._actions.start) | (given >= self._actions.stop)
            if some(odd if step.recorded is None else odd & step.recorded) is not None:
                self._refuse(given[odd][0], self._actions)
        more = self._values(result[-1], ended, step.recorded)
        if self.most is not None and self.most < self.num_envs:
            # Of the first environments only, if more made a step.
            made = np.ones(self.num_envs, np.bool_) if step.recorded is None else step.recorded
            first = made & (np.cumsum(made) <= self.most)
            if (left_out := some(made & ~first)) is not None:
                calls.append((self.writer.end_episodes, (left_out,), {}))
                step = step._replace(recorded=first, started=None)
        self._newest = step
        if step.recorded is None or some(step.recorded) is not None:
            frames, rewards = step.frames, step.rewards
            self._check_finite(step.recorded, frames, action=given, reward=rewards, **more)
            values = (given, rewards, frames, step.terminated, step.truncated)
            calls.append((self.writer.step, values, {**more, "mask": step.recorded}))
        if self._episode is not None and step.over is not None:
            over = step.over if step.recorded is None else step.over & step.recorded
            for i in np.flatnonzero(over).tolist():
                fields = dict(self._episode(last_info(result[-1], i)))
                calls.append((self.writer.episode, (np.arange(self.num_envs) == i,), fields))
        if step.started is not None:
            self._check_finite(step.started, step.start_frames)
            calls.append((self.writer.reset, (step.start_frames, step.started), {}))
        self._write(*calls)
        return result

    def made(self) -> Made:
        """What the newest step recorded."""
        step = self._newest
        steps, over, ended = len(step.terminated), step.over, step.over
        if step.recorded is not None:
            steps = int(np.count_nonzero(step.recorded))
            ended = None if over is None else over & step.recorded
        by_hand = over if self._reader.resets_by_hand else None
        episodes = 0 if ended is None else int(np.count_nonzero(ended))
        return Made(steps, episodes, by_hand, step.started, step.ignored)


def _spread(frames: Frame, mask: Mask) -> Frame:
    """Frames of all environments, if only those of the mask were returned."""
    found = by_key(frames)
    for key, value in found.items():
        if len(value) != len(mask):
            found[key] = np.zeros((len(mask), *value.shape[1:]), value.dtype)
            found[key][mask] = value
    return found if isinstance(frames, dict) else found[FRAME]


def words(lanes: int | None) -> str:
    """The kind of environments, for messages."""
    return "a single environment" if lanes is None else f"a vector environment of {lanes}"
