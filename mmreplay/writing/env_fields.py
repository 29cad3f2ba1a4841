"""Gymnasium spaces as mmreplay fields, and observations as frames of these fields.

Invariant: `EnvFields.to_frame` restructures and casts and never changes a value; a Discrete space
with a `start` is stored with the environment's own values.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError, SchemaError
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import Field

try:
    from gymnasium import Env, Space, Wrapper, spaces
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
    from gymnasium.wrappers import FrameStackObservation

    from mmreplay.writing.simulators import as_vector, on_host, own_mode
except ImportError as error:
    raise MissingExtraError(
        'stepping environments needs gymnasium: pip install "mmreplay[gymnasium]", '
        'or with Atari: pip install "mmreplay[atari]"'
    ) from error

AnyEnv = Env[Any, Any] | VectorEnv[Any, Any, Any]
Frame = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]
Observation: TypeAlias = Any
"""Whatever the observation space holds: an array, a number, or a dict or tuple of these."""
Action: TypeAlias = Any
"""Whatever the action space holds: an array or a number."""

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_MOST_RECIPE = 100_000
_NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


@dataclass(frozen=True, slots=True)
class EnvFields:
    """What a store needs to hold an environment's rows.

    Arrays of a Dict or Tuple observation are named by their path: ``{"camera": {"rgb": …}}`` gives
    ``camera.rgb``, a Tuple ``0``, ``1``, …
    """

    frame: Field | dict[str, Field]
    action: Field
    lanes: int | None  # environments of a vector environment
    paths: Mapping[str, tuple[Any, ...]]  # of each frame field in a dict observation
    padding: str | None = None  # of the stacks that the environment returns
    is_stack_of_one: bool = False  # observations have an axis of 1 in front, frames do not

    def to_frame(self, observation: Observation) -> Frame:
        """An observation, or a batch of them, as `Writer.reset` takes it.

        `LazyFrames` are returned as they are. SchemaError if a part of the space is missing.
        """
        if not isinstance(self.frame, dict):
            frame = cast(observation, self.frame.dtype)
            # A view: the axis is there in one observation and in a batch of them.
            n_axes = len(self.frame.shape) + 1
            return frame.squeeze(-n_axes) if self.is_stack_of_one else frame
        out = {}
        for name, field in self.frame.items():
            value = observation
            try:
                for key in self.paths[name]:
                    value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise SchemaError(
                    f"observation: its space has a part {name!r}, the observation does not; the "
                    f"environment does not match its observation_space"
                ) from error
            out[name] = cast(value, field.dtype)
        return out


def env_fields(env: AnyEnv) -> EnvFields:
    """The fields of an environment's rows, or of those of one environment of a vector.

    For a `FrameStack`, also below wrappers that keep its observations, they are those of one frame;
    for vector environments of ale-py and EnvPool with ``stack_num=1``, without the axis of 1.
    SchemaError: a space without a fixed shape and dtype, or an action of several arrays.
    """
    if not hasattr(env, "action_space"):
        raise SchemaError(
            f"env: expected a Gymnasium environment, found {env!r}; create it with gymnasium.make"
        )
    if as_vector(env) is not env:
        raise SchemaError(
            f"env: {env} is many environments in one; record it with mmreplay.RecordExperience"
        )
    if hasattr(env, "num_envs") and not isinstance(env, (Env, VectorEnv)):
        raise SchemaError(
            f"env: expected an environment of Gymnasium, single or vector, found {env!r} of "
            f"another library; for stable-baselines3 use replay_buffer_class="
            f"mmreplay.adapters.stable_baselines3.DiskReplayBuffer; else give frame=, action= and "
            f"lanes= instead of env="
        )
    (observation, padding), action = _unstacked(env), spaces_of(env)[1]
    lanes = env.num_envs if isinstance(env, VectorEnv) else None
    if isinstance(action, (spaces.Dict, spaces.Tuple)):
        raise SchemaError(
            f"action_space: {type(action).__name__} is several arrays, one can be stored; wrap the "
            f"environment in gymnasium.wrappers.TransformAction with one Box, Discrete, "
            f"MultiDiscrete or MultiBinary space"
        )
    action_field = field_of(action, "action_space")
    if not isinstance(observation, (spaces.Dict, spaces.Tuple)):
        field = field_of(observation, "observation_space")
        inner: Any = env.unwrapped
        is_stack_of_one = (
            lanes is not None
            and _own_stack(inner) == 1
            and field.shape[:1] == (1,)
            and field.shape == inner.single_observation_space.shape
        )
        if is_stack_of_one:
            field = Field(field.shape[1:], field.dtype)
        return EnvFields(field, action_field, lanes, {}, padding, is_stack_of_one)
    frame: dict[str, Field] = {}
    paths: dict[str, tuple[Any, ...]] = {}
    for path, space in _leaves(observation, ()):
        name = ".".join(_UNFIT.sub("_", str(key).replace("/", ".")) for key in path).lstrip(".")
        if not name or name in frame:
            raise SchemaError(
                f"observation_space: the keys {paths.get(name, ())} and {path} would both be "
                f"stored as {name!r}; rename one with gymnasium.wrappers.TransformObservation"
            )
        frame[name] = field_of(space, f"observation_space[{name!r}]")
        paths[name] = path
    if not frame:
        raise SchemaError("observation_space: it is empty, so there is nothing to store")
    return EnvFields(frame, action_field, lanes, paths, padding)


def env_metadata(env: AnyEnv, spec: EnvSpec | None = None) -> dict[str, Any]:
    """Default metadata of a store for this environment, which `spec` makes again."""
    out: dict[str, Any] = {"id": env_name(env), "n_envs": getattr(env, "num_envs", 1)}
    out |= _recipe(env, spec)
    space = spaces_of(env)[1]
    if isinstance(space, spaces.Discrete):
        out["n_actions"] = int(space.n)
        if space.start:
            out["action_start"] = int(space.start)
    if isinstance(env, VectorEnv) and (ale := getattr(env.unwrapped, "ale", None)) is not None:
        # ale-py's vector environment has no single environments.
        out["action_names"] = [action.name for action in ale.get_action_set()]
    elif callable(meanings := getattr(_first(env).unwrapped, "get_action_meanings", None)):
        out["action_names"] = [str(name) for name in meanings()]
    out["versions"] = found = {}
    for name in ("gymnasium", "ale-py", "opencv-python-headless", "opencv-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return out


def spaces_of(env: AnyEnv) -> tuple[Space[Any], Space[Any]]:
    """The observation and action space of one environment."""
    if isinstance(env, VectorEnv):
        return env.single_observation_space, env.single_action_space
    return env.observation_space, env.action_space


def _recipe(env: AnyEnv, spec: EnvSpec | None) -> dict[str, str]:
    """``env_spec`` that `gymnasium.make` takes for one environment, and its two spaces, as JSON.

    They are Minari's, but for one number in place of equal bounds. What JSON cannot hold, or takes
    too much room, is left out; so is the specification of a vector with wrappers of its own.
    """
    one = _first(env) if type(env) is SyncVectorEnv else env
    given: Any = spec or (None if isinstance(one, VectorEnv) else one.spec)
    out = {}
    if isinstance(given, EnvSpec) and all(w.kwargs is not None for w in given.additional_wrappers):
        with contextlib.suppress(ValueError, TypeError):  # functions, arrays
            out["env_spec"] = given.to_json()
    both = _unstacked(env)[0], spaces_of(env)[1]
    for name, space in zip(("observation_space", "action_space"), both, strict=True):
        with contextlib.suppress(TypeError):  # keys of a Dict that are no texts
            out[name] = json.dumps(_space_json(space))
    return {name: text for name, text in out.items() if len(text) <= _MOST_RECIPE}


def _space_json(space: Space[Any]) -> dict[str, Any]:
    """A space that `env_fields` takes."""
    if isinstance(space, spaces.Dict):
        of_keys = {key: _space_json(one) for key, one in space.spaces.items()}
        return {"type": "Dict", "subspaces": of_keys}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [_space_json(one) for one in space.spaces]}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    out: dict[str, Any] = {"type": "Box", "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {**out, "type": "MultiDiscrete", "nvec": nvec, "start": start}
    box: Any = space
    out["shape"] = list(box.shape)
    for name, bound in (("low", box.low), ("high", box.high)):
        is_one = bound.size and (bound == bound.flat[0]).all()
        out[name] = bound.flat[0].item() if is_one else bound.tolist()
    return out


def env_name(env: AnyEnv) -> str:
    """The id of an environment, or of the first of several; its class if it has no id."""
    ids = (getattr(one.spec, "id", None) for one in (env, _first(env)))
    # Other libraries have other specs.
    return next((one for one in ids if isinstance(one, str)), type(env.unwrapped).__name__)


def _first(env: AnyEnv) -> AnyEnv:
    """The first environment of a vector in this process; else the environment itself."""
    inner: Any = env.unwrapped if isinstance(env, VectorEnv) else None
    first: AnyEnv = next(iter(getattr(inner, "envs", ())), env)
    return first


def _own_stack(env: Any) -> Any:
    """Frames per stack of a vector environment of ale-py or EnvPool; None if it has no stacks."""
    if type(env).__name__ == "AtariVectorEnv":
        return env.single_observation_space.shape[0]
    return getattr(getattr(getattr(env, "spec", None), "config", None), "stack_num", None)


def _layers(env: Any) -> Iterator[Any]:
    """An environment and what it wraps, of a vector its first environment."""
    yield env
    if isinstance(env, (Wrapper, VectorWrapper)):
        yield from _layers(env.env)
    elif isinstance(env, SyncVectorEnv):
        yield from _layers(env.envs[0])


def _unstacked(env: AnyEnv) -> tuple[Space[Any], str | None]:
    """The space of one frame, and the padding of stacks if a wrapper has a `frame_space`."""
    for layer in [] if isinstance(env, VectorEnv) else _layers(env):
        frame_space = getattr(layer, "frame_space", None)
        # An outer wrapper that changes the observation has another space.
        if frame_space is not None and layer.observation_space is env.observation_space:
            return frame_space, getattr(layer, "padding", None)
    return spaces_of(env)[0], None


def advice_on_stacks(env: AnyEnv) -> str | None:
    """Advice for an environment in this process whose stacks would be stored whole; or None."""
    for layer in _layers(env):
        stack, space, how = None, layer.observation_space, ""
        if isinstance(layer, FrameStackObservation):
            stack = layer.stack_size
        elif isinstance(env, VectorEnv) and hasattr(layer, "frame_space"):
            stack = layer.stack  # a vector environment joins the `LazyFrames` of its environments
        elif (stack := _own_stack(layer)) is not None:
            space, how = layer.single_observation_space, " (stack_num=1)"
        # An outer wrapper may extract the newest frame.
        if stack and stack > 1 and spaces.flatdim(_unstacked(env)[0]) >= spaces.flatdim(space):
            return (
                f"{env}: its observations are stacks of {stack} frames, so that each frame would "
                f"be stored {stack} times; create it without stacks{how}, and sample with "
                f"stack={stack}; a policy that needs stacks can keep the newest frames itself, or "
                f"use mmreplay.FrameStack around a single environment"
            )
    return None


def warn_caller(advice: str) -> None:
    """Warn at the line that called this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("mmreplay."):
        level, frame = level + 1, frame.f_back
    warnings.warn(advice, stacklevel=level)


def _leaves(
    space: Space[Any], path: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Space[Any]]]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, i))
    else:
        yield path, space


def field_of(space: Space[Any], where: str) -> Field:
    """The field for values of a space; SchemaError if they have no fixed shape and dtype."""
    if isinstance(space, spaces.Discrete):
        return Field((), "int64")
    if not isinstance(space, _NUMERIC) or space.shape is None or space.dtype is None:
        raise SchemaError(
            f"{where}: {type(space).__name__} has no fixed shape and dtype; mmreplay "
            f"stores Box, Discrete, MultiBinary and MultiDiscrete, and Dict and Tuple of these as "
            f"observations. Turn it into one of them with gymnasium.wrappers.TransformObservation "
            f"or TransformAction"
        )
    try:
        return Field(space.shape, space.dtype)
    except SchemaError as error:
        raise SchemaError(f"{where}: {error}") from error


def cast(value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The value as an array, of this dtype if it means the same; else the writer refuses it.

    `LazyFrames` stay as they are.
    """
    if isinstance(value, LazyFrames):
        return value  # type: ignore[return-value]
    array = value if type(value) is np.ndarray else on_host(value)
    if array.dtype == dtype:
        return array
    kinds = array.dtype.kind + dtype.kind
    if kinds == "ff" or (dtype.kind == "f" and array.dtype.kind in "biu"):
        return array.astype(dtype)
    if array.dtype.kind in "biu" and dtype.kind in "biu":
        out = array.astype(dtype)
        if bool(np.all(out == array)):
            return out
    return array


def advice_for_a_loop(env: object) -> str | None:
    """Advice for a loop of the user's own; None for single environments and without autoreset."""
    mode = autoreset_mode(env) if isinstance(env, VectorEnv) else None
    if mode not in ("NextStep", "SameStep"):
        return None
    what = (
        "an episode's first step is a reset whose action and reward mean nothing"
        if mode == "NextStep"
        else "an episode's final observation is in infos['final_obs'], and the first observation "
        "of the next episode takes its place"
    )
    return (
        f"{env}: its autoreset mode is {mode}: {what}; let mmreplay.RecordExperience(env, buffer) "
        f"write the steps, as docs/record.md shows under 'A wrapper'. If your loop "
        f"handles this itself, give frame=, action= and lanes= instead of env="
    )


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> object:
    """The value of its `AutoresetMode`; None without one."""
    # AtariVectorEnv writes its mode into metadata shared by all vector environments; the attribute
    # comes first.
    mode = getattr(env.unwrapped, "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    if mode is None and (own := own_mode(env)) is not None:
        return own[0]
    return getattr(mode, "value", mode)
