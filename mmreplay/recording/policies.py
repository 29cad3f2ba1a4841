"""What chooses the actions: the random policy, or the caller's own.

The caller's policy is a callable, ``policy(observation) -> action``, for one environment:

- The observation is one observation as the environment gives it, not batched and not stacked.
- A *class* is instantiated once for each environment, ``cls(observation_space, action_space,
  seed)`` with the spaces of one environment and that environment's own seed, and the instances are
  called; so a policy that stacks frames, carries a state or draws numbers does so for each
  environment alone.
- A method ``reset()``, where there is one, is called before the first observation of each episode.
- With an attribute ``batched = True`` it gets the observations of all environments at once, with
  the environments in front also if there is only one, and returns as many actions; a class is
  instantiated once, with the first environment's seed, and its ``reset`` gets a bool array of the
  environments where an episode begins. Of environments that are about to be reset the action is
  ignored.

Invariant: in an environment's stream of actions there is one for each recorded transition, so that
a random policy does the same in a single environment and in any kind of vector environment.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from mmreplay.env_fields import Action, AnyEnv, Observation
from mmreplay.errors import MmreplayError
from mmreplay.recording.autoreset import Mask

PolicyLike = str | Callable[..., Any]
"""``"random"``, ``"module:callable"``, or the callable itself."""

_BLOCK = 4096


class Actor(Protocol):
    """Chooses the actions of one environment."""

    def start(self) -> None:
        """An episode begins with the observation that comes next."""

    def act(self, observation: Observation) -> Action:
        """The action for an observation."""


class VectorActor(Protocol):
    """Chooses the actions of all lanes."""

    def start(self, lanes: Mask) -> None:
        """In these lanes an episode begins with the observation that comes next."""

    def act(self, observations: Observation, ignored: Mask | None) -> npt.NDArray[Any]:
        """The actions; those of the `ignored` lanes only have to be valid."""


def load_policy(policy: PolicyLike) -> tuple[str, Callable[..., Any] | None]:
    """The policy's name for the metadata, and the callable; None for the random one.

    Raises MmreplayError if there is no such module or callable.
    """
    if callable(policy):
        return _name(policy), policy
    if policy == "random":
        return policy, None
    if not isinstance(policy, str):
        raise MmreplayError(
            f"policy: expected 'random', 'module:callable' or a callable, found {policy!r:.80}"
        )
    module, colon, path = policy.partition(":")
    if not (module and colon and path):
        raise MmreplayError(f"policy: expected 'random' or 'module:callable', found {policy!r}")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise MmreplayError(f"policy {policy!r}: cannot import {module}: {error}") from error
        raise MmreplayError(
            f"policy {policy!r}: no module {module!r} in the current directory or among the "
            f"installed packages"
        ) from error
    except Exception as error:  # the user's module may raise anything while it is imported
        raise MmreplayError(
            f"policy {policy!r}: importing {module} raised {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise MmreplayError(f"policy {policy!r}: {module} has no {path!r}")
        found = getattr(found, name)
    if not callable(found):
        raise MmreplayError(
            f"policy {policy!r}: it is a {type(found).__name__}, expected something to call with "
            f"an observation"
        )
    return policy, found


def make_actor(policy: Callable[..., Any] | None, env: AnyEnv, seed: int) -> Actor:
    """The actor of a single environment."""
    if isinstance(env, VectorEnv):
        raise TypeError("make_actor: a vector environment; use make_vector_actor")
    if policy is None:
        return _Random(env.action_space, seed)
    called = _instance(policy, env.observation_space, env.action_space, seed)
    if getattr(called, "batched", False):
        return _BatchOfOne(called, env.observation_space, env.action_space)
    return _Called(called, env.action_space)


def make_vector_actor(
    policy: Callable[..., Any] | None,
    observation_space: Space[Any],
    action_space: Space[Any],
    seed: int,
    n_lanes: int,
) -> VectorActor:
    """The actor of a vector environment; the spaces are those of one lane, lane i has seed + i."""
    if policy is None:
        return _RandomEach(action_space, seed, n_lanes)
    if getattr(policy, "batched", False):
        called = _instance(policy, observation_space, action_space, seed)
        return _Batched(called, action_space, n_lanes)
    return _Each(
        [
            _Called(_instance(policy, observation_space, action_space, seed + i), action_space)
            for i in range(n_lanes)
        ],
        action_space,
    )


class _Random:
    """Uniform over the action space."""

    def __init__(self, action_space: Space[Any], seed: int) -> None:
        self._stream = _random_actions(action_space, seed)

    def start(self) -> None:
        pass

    def act(self, _observation: Observation) -> Action:
        return next(self._stream)


class _RandomEach:
    """Uniform over the action space, each lane with a stream of its own."""

    def __init__(self, action_space: Space[Any], seed: int, n_lanes: int) -> None:
        self._streams = [_random_actions(action_space, seed + i) for i in range(n_lanes)]
        shape = (n_lanes, *(action_space.shape or ()))
        self._actions = np.zeros(shape, dtype=action_space.dtype)

    def start(self, lanes: Mask) -> None:
        pass

    def act(self, _observations: Observation, ignored: Mask | None) -> npt.NDArray[Any]:
        actions = self._actions = self._actions.copy()
        for i, stream in enumerate(self._streams):
            if ignored is None or not ignored[i]:
                actions[i] = next(stream)
        return actions


class _Called:
    """The caller's policy in one environment."""

    def __init__(self, policy: Callable[[Any], Any], action_space: Space[Any]) -> None:
        self._policy = policy
        self._reset = getattr(policy, "reset", None)
        self._checked = _checker(action_space, ())

    def start(self) -> None:
        if self._reset is not None:
            self._reset()

    def act(self, observation: Observation) -> Action:
        return self._checked(self._policy(observation))


class _BatchOfOne:
    """The caller's batched policy in one environment."""

    def __init__(
        self, policy: Callable[[Any], Any], observation_space: Space[Any], action_space: Space[Any]
    ) -> None:
        self._actor = _Batched(policy, action_space, 1)
        self._space = observation_space

    def start(self) -> None:
        self._actor.start(np.ones(1, dtype=np.bool_))

    def act(self, observation: Observation) -> Action:
        batch: Any = create_empty_array(self._space, 1)
        batch = concatenate(self._space, [observation], batch)
        return self._actor.act(batch, None)[0]


class _Each:
    """One actor a lane."""

    def __init__(self, actors: list[Actor], action_space: Space[Any]) -> None:
        self._actors = actors
        shape = (len(actors), *(action_space.shape or ()))
        self._actions = np.zeros(shape, dtype=action_space.dtype)

    def start(self, lanes: Mask) -> None:
        for actor, starts in zip(self._actors, lanes.tolist(), strict=True):
            if starts:
                actor.start()

    def act(self, observations: Observation, ignored: Mask | None) -> npt.NDArray[Any]:
        # A fresh array, for the environment may keep the one before; an ignored lane repeats what
        # it did last, which is valid.
        actions = self._actions = self._actions.copy()
        for i, actor in enumerate(self._actors):
            if ignored is None or not ignored[i]:
                actions[i] = actor.act(_lane(observations, i))
        return actions


class _Batched:
    """The caller's batched policy over all lanes."""

    def __init__(
        self, policy: Callable[[Any], Any], action_space: Space[Any], n_lanes: int
    ) -> None:
        self._policy = policy
        self._reset = getattr(policy, "reset", None)
        self._checked = _checker(action_space, (n_lanes,))

    def start(self, lanes: Mask) -> None:
        if self._reset is not None:
            self._reset(lanes)

    def act(self, observations: Observation, _ignored: Mask | None) -> npt.NDArray[Any]:
        return np.asarray(self._checked(self._policy(observations)))


def _random_actions(space: Space[Any], seed: int) -> Iterator[Any]:
    if isinstance(space, spaces.Discrete):
        # Drawn in blocks: space.sample() takes as long as a step of a small environment.
        rng = np.random.default_rng((seed, 1))
        low, high = int(space.start), int(space.start) + int(space.n)
        while True:
            yield from rng.integers(low, high, size=_BLOCK).tolist()
    # Not the environment's own seed: the same generator would draw its start and its actions.
    space = copy.deepcopy(space)
    space.seed(int(np.random.SeedSequence((seed, 1)).generate_state(1)[0]))
    while True:
        yield space.sample()


def _checker(space: Space[Any], batch: tuple[int, ...]) -> Callable[[Any], Any]:
    """A function that makes what a policy returned an action, or says what is wrong with it."""
    shape, dtype = (*batch, *(space.shape or ())), np.dtype(space.dtype)
    # Of the other spaces many environments clip what lies outside, so that is left to them.
    limited = isinstance(space, spaces.Discrete)
    low = int(space.start) if isinstance(space, spaces.Discrete) else 0
    high = low + int(space.n) - 1 if isinstance(space, spaces.Discrete) else 0
    quick = limited and not shape

    def checked(action: object) -> Action:
        if quick and type(action) is int and low <= action <= high:
            return action  # most policies, most often
        try:
            array = np.asarray(action)
        except ValueError:  # a tuple of an action and something else, for example
            array = np.empty((), dtype=object)
        if array.shape != shape or array.dtype.kind not in "biuf":
            raise MmreplayError(
                f"the policy returned {_described(action, array)}, expected "
                f"{'actions' if batch else 'an action'} of shape {shape} and dtype {dtype}"
            )
        if dtype.kind in "iu" and array.dtype.kind == "f":
            raise MmreplayError(
                f"the policy returned {_described(action, array)}, expected whole numbers: the "
                f"action space is {space}"
            )
        if limited and not bool(np.all((array >= low) & (array <= high))):
            raise MmreplayError(
                f"the policy returned {_described(action, array)}, expected {low} to "
                f"{high}: the action space is {space}"
            )
        out = array.astype(dtype, copy=False)
        return out if shape else out[()]

    return checked


def _described(action: object, array: npt.NDArray[Any]) -> str:
    if array.ndim == 0:
        return repr(action)
    return f"an array of shape {array.shape} and dtype {array.dtype}"


def _instance(
    policy: Callable[..., Any],
    observation_space: Space[Any],
    action_space: Space[Any],
    seed: int,
) -> Callable[..., Any]:
    if not inspect.isclass(policy):
        _check_call(policy, "policy(observation)", None)
        return policy
    form = "a class that is made by policy(observation_space, action_space, seed)"
    _check_call(policy, form, observation_space, action_space, seed)
    make: Callable[..., Any] = policy
    made: Callable[..., Any] = make(observation_space, action_space, seed)
    if not callable(made):
        raise MmreplayError(
            f"policy {policy.__name__}: its instances cannot be called; give it a method "
            f"__call__(self, observation)"
        )
    _check_call(made, "__call__(self, observation)", None)
    return made


def _check_call(called: Callable[..., Any], form: str, *values: object) -> None:
    """Raise MmreplayError if it does not take so many arguments."""
    try:
        inspect.signature(called).bind(*values)
    except TypeError as error:
        raise MmreplayError(f"policy {_name(called)}: expected {form}: {error}") from error
    except ValueError:  # of what is not written in Python
        return


def _lane(observations: Observation, i: int) -> Observation:
    if isinstance(observations, dict):
        return {key: _lane(value, i) for key, value in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_lane(value, i) for value in observations)
    return observations[i]


def _name(policy: Callable[..., Any]) -> str:
    name = getattr(policy, "__qualname__", None) or type(policy).__qualname__
    module = getattr(policy, "__module__", None) or type(policy).__module__
    return f"{module}:{name}"
