"""Store a sequence of experiences of nnabla-rl as episodes, and convert them back.

Invariants:
- An experience that is read equals the one that was appended, except for the entries of its info
  that have no column; states of Atari games as pixels divided by 255.
- An experience whose state is the previous s_next continues that episode, unless that step ended
  it; any other one begins an episode. So each state is stored once. A refused experience or
  trajectory leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.arguments import check_seed, whole_number
from mmreplay.batches.batch import Batch
from mmreplay.compat.deferred_store import DeferredStore, StorePath
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import FormatError, SchemaError
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.writing.row_values import RowValues

Experience = tuple[Any, ...]
"""(s, a, r, non_terminal, s_next, info); a state is an array, or a tuple of arrays."""
Frames = Array | dict[str, Array]
_Row = tuple[Experience, bool, dict[str, bool]]
"""An experience, whether it begins an episode, and the flags of its step."""

TRAJECTORY_BEGINS = "trajectory_begins"
"""In stores of trajectories, the column that is True at the first step of each."""
TIME_LIMIT = "TimeLimit.truncated"

_REWARD = "reward_array"
_INFO = "info."
_PARTS = 6
_IMAGE = 2
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,90}\Z")
_KEY = "nnabla_rl"


def checked(experience: Any) -> Experience:
    """The six parts of an experience; an info that is missing or not a dict becomes {}."""
    if not isinstance(experience, (tuple, list)) or len(experience) < _PARTS - 1:
        raise SchemaError(
            f"experience: expected (s, a, r, non_terminal, s_next, info), found {experience!r:.100}"
        )
    if isinstance(experience[1], tuple):
        raise SchemaError(
            f"action: expected a number or an array, found a tuple, {experience[1]!r:.100}; join "
            f"its parts into one array"
        )
    *parts, info = (*experience[:_PARTS], {})[:_PARTS]
    return (*parts, info if isinstance(info, Mapping) else {})


def content(state: Any) -> object:
    """A copy of a state, to compare it with others."""
    if isinstance(state, tuple):
        return tuple(content(part) for part in state)
    found = np.asarray(state)
    if found.dtype.hasobject:
        raise SchemaError(f"state: expected numbers, found {state!r:.100}")
    return found.dtype.str, found.shape, found.tobytes()


def fields_for(experience: Experience) -> dict[str, Any]:
    """The fields of a store for experiences like this one, without the frame."""
    action, reward = np.asarray(experience[1]), np.asarray(experience[2])
    fields = {f"{_INFO}{key}": _field(key, value) for key, value in experience[5].items()}
    extras = {name: field for name, field in fields.items() if field is not None}
    if reward.ndim:
        extras[_REWARD] = Field(reward.shape, reward.dtype)
    return {
        "action": Field(action.shape, action.dtype),
        "extras": extras,
        "reward_dtype": "float64",  # a Python float comes back as it was
    }


def _field(key: Any, value: Any) -> Field | None:
    """The field of an entry of an info; None if it is not stored."""
    is_number = isinstance(value, (bool, int, float, np.ndarray, np.generic))
    if not is_number or not isinstance(key, str) or not _NAME.match(key) or key == TIME_LIMIT:
        return None
    with contextlib.suppress(SchemaError):  # an array of strings or objects
        # Later values of an int may be floats.
        array = np.asarray(value, np.float64 if type(value) is int else None)
        return Field(array.shape, array.dtype)
    return None


def info_of(extras: Mapping[str, Array], i: int) -> dict[str, Any]:
    """The info of the i-th transition of a batch with these extras; {} if none is stored."""
    return {
        name.removeprefix(_INFO): column[i] if column.ndim > 1 else column[i].item()
        for name, column in extras.items()
        if name.startswith(_INFO)
    }


class States:
    """Arrays or tuples of arrays, stored as they are."""

    stack: int | None = None

    def frame(self, state: Any) -> Frames:
        """The newest frame of a state, or the parts of a tuple by number."""
        if isinstance(state, tuple):
            return {str(number): np.asarray(part) for number, part in enumerate(state)}
        return np.asarray(state)

    def check(self, state: Any, following: Any, *, begins: bool) -> None:
        """Raise SchemaError if the two cannot be rebuilt from frames; `begins` an episode."""

    def field(self, frame: Frames) -> Any:
        """The field for frames like this one, or fields."""
        if isinstance(frame, dict):
            return {key: Field(part.shape, part.dtype) for key, part in frame.items()}
        return Field(frame.shape, frame.dtype)

    def states(self, observation: Frames) -> list[Any]:
        """(B, ...) observations as B states."""
        if isinstance(observation, dict):
            parts = [observation[str(number)] for number in range(len(observation))]
            return list(zip(*parts, strict=True))
        return list(observation)


class AtariStates(States):
    """Stacks of `stack` screens, or single ones; floats in [0, 1] or bytes, stored as bytes."""

    def __init__(self, stack: int) -> None:
        self.stack: int | None = stack

    def frame(self, state: Any) -> Frames:
        """The newest screen of a state."""
        screens = np.asarray(state)
        if screens.ndim not in (_IMAGE, _IMAGE + 1) or not screens.size:
            raise SchemaError(
                f"state: expected one screen (84, 84) or a stack of them (4, 84, 84), found "
                f"{screens.shape}"
            )
        newest: Array = screens if screens.ndim == _IMAGE else screens[-1]
        return newest

    def check(self, state: Any, following: Any, *, begins: bool) -> None:
        """Raise SchemaError if the stacks are not one step apart."""
        before, after = np.asarray(state), np.asarray(following)
        if before.ndim == _IMAGE and after.ndim == _IMAGE:
            return
        if before.dtype != after.dtype:
            raise SchemaError(
                f"s_next: expected the dtype of s, {before.dtype}, found {after.dtype}"
            )
        if not np.array_equal(before[1:], after[:-1]):
            raise SchemaError(
                "s_next: expected the stack of s without its oldest screen and with a new one, "
                "found other screens"
            )
        shown = before[-(self.stack or 1) :]
        if begins and (shown != shown[:1]).any():
            raise SchemaError(
                "s: a state that is not the previous s_next begins an episode, whose first stack "
                "is one screen repeated; found different screens. Append the steps of an episode "
                "in order"
            )

    def field(self, frame: Frames) -> Any:
        """The field of a screen."""
        return Field(np.asarray(frame).shape, "uint8")

    def states(self, observation: Frames) -> list[Any]:
        """(B, k, H, W) bytes as float32 in [0, 1]."""
        return list(np.divide(np.asarray(observation), np.float32(255), dtype=np.float32))


class Recorder(DeferredStore):
    """A store that experiences are appended to; FormatError for a store of another class."""

    _stacked_frames: int | None = None  # screens of an Atari state

    def __init__(self, path: StorePath, capacity: int | None) -> None:
        super().__init__(path, capacity)
        self._states = States()
        if self._stacked_frames is not None:
            self._states = AtariStates(whole_number("stacked_frames", self._stacked_frames))
        self._seed: int | None = None
        self._last: object = None  # the state that the next experience may continue
        # The name of this class, or of the class of this package that it derives from.
        room = __name__.rpartition(".")[0]
        mro = type(self).__mro__
        self._kind = next(c.__name__ for c in mro if c.__module__.startswith(room))
        if (stored := self._stored()) is not None:
            if (found := stored[1].get(_KEY)) != self._kind:
                found = f"of nnabla_rl.{found}" if found else "that none of its classes made"
                raise FormatError(
                    f"{path}: expected a store of nnabla_rl.{self._kind}, found one {found}; open "
                    f"it with its own class, or give another path"
                )
            self._begin()

    def _begin(self, kind: type[ReplayBuffer] = ReplayBuffer, **settings: Any) -> None:
        self._open(kind, stack=self._states.stack, seed=self._seed, **settings)
        self._use(self.core.store.schema)

    def _append(self, given: Any) -> None:
        experience = checked(given)
        state, info, following = experience[0], experience[5], experience[4]
        ended, cut = not np.any(experience[3]), bool(np.any(info.get(TIME_LIMIT, False)))
        begins = self._last is None or content(state) != self._last
        self._store([(experience, begins, {"terminated": ended, "truncated": cut})])
        self._last = None if ended or cut else content(following)

    def _append_trajectory(self, steps: Sequence[Experience]) -> None:
        """Append a trajectory, with an episode for each run of consecutive steps."""
        begins = [True]
        begins += [content(step[0]) != content(steps[i][4]) for i, step in enumerate(steps[1:])]
        rows: list[_Row] = []
        for number, (step, last) in enumerate(zip(steps, [*begins[1:], True], strict=True)):
            ended = not np.any(step[3])
            flags = {
                "terminated": ended and last,
                "truncated": last,
                "life_lost": ended and not last,
                TRAJECTORY_BEGINS: not number,
            }
            rows.append((step, begins[number], flags))
        self._store(rows)

    def _store(self, rows: list[_Row]) -> None:
        """Check all rows, then store each as a step."""
        fields: dict[str, Any] = {}
        if self._core is None:
            (first, _, flags), *_ = rows
            fields = fields_for(first)
            fields["frame"] = self._states.field(self._states.frame(first[0]))
            if TRAJECTORY_BEGINS in flags:
                fields["extras"][TRAJECTORY_BEGINS] = Field((), "bool")
            self._use(Schema.make(**fields))
        steps = [self._checked(*row) for row in rows]
        if fields:
            self._begin(metadata={_KEY: self._kind}, **fields)
        for before, arguments, named in steps:
            if before is not None:
                self._last = None  # if interrupted, nothing continues this episode
                self.core.reset(before)
            self.core.step(*arguments, **named)

    def _use(self, schema: Schema) -> None:
        self._schema = schema
        # No frame is `LazyFrames`, so no stored frame is looked up.
        self._row_values = RowValues(schema, lambda path, row: np.empty(0))  # noqa: ARG005

    def _checked(self, one: Experience, begins: bool, flags: dict[str, bool]) -> tuple[Any, ...]:
        """The frame that begins an episode, or None; the arguments of `step`, and its keywords."""
        state, action, reward, _, following, info = one
        names, values = self._schema.extras, self._row_values
        self._states.check(state, following, begins=begins)
        extras: dict[str, Any] = {}
        for name in names:
            key = name.removeprefix(_INFO)
            if key == name:
                continue
            if key not in info:
                raise SchemaError(f"info: expected {key!r}, as in the first experience, found none")
            extras[name] = info[key]
        if _REWARD in names:
            extras[_REWARD] = np.asarray(reward)
            reward = np.sum(reward)
        values.extras({**extras, **{key: flag for key, flag in flags.items() if key in names}})
        before, after = self._frame(state) if begins else None, self._frame(following)
        arguments = values.action(np.asarray(action)), float(reward), after
        return before, arguments, {**extras, **flags}

    def _frame(self, state: Any) -> Frames:
        found = self._row_values.frames(self._states.frame(state), 0, begins=True)
        schema = self._schema
        if not schema.is_dict:
            return found[schema.frame_paths[FRAME]]
        return {key: found[path] for key, path in schema.frame_paths.items()}

    def _experiences(self, batch: Batch) -> list[Experience]:
        states = self._states.states(batch.observation)
        following = self._states.states(batch.next_observation)
        rewards: Any = batch.extras.get(_REWARD, batch.reward.tolist())
        live = batch.non_terminal.astype(np.float64).tolist()
        infos = [info_of(batch.extras, i) for i in range(len(states))]
        return [*zip(states, batch.action, rewards, live, following, infos, strict=True)]

    def seed(self, seed: int) -> None:
        """Make the draws from here on repeatable."""
        check_seed(seed)
        self._seed = seed
        if self._core is not None:
            self._core.generator = np.random.default_rng(seed)
