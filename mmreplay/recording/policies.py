"""Policies choose the actions: the random policy, or the caller's own.

The caller's policy is a callable, ``policy(observation) -> action``, for one environment:

- The observation is one observation as the environment returns it, not batched and not stacked.
- A *class* is instantiated once per environment, ``cls(observation_space, action_space, seed)``
  with that environment's own seed, so a policy may keep a state per environment.
- A method ``reset()``, if it has one, is called before the first observation of each episode.
- With an attribute ``batched = True`` it gets the observations of all environments at once, with
  the environments as the first axis even if there is only one, and returns one action for each. A
  class is instantiated once, with the first environment's seed, and its ``reset`` gets a bool array
  of the environments where an episode begins. Actions of environments that are about to be reset
  are ignored.

Invariant: each environment's stream of actions has one action per recorded transition.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from mmreplay.arguments import imported
from mmreplay.errors import MmreplayError
from mmreplay.recording.autoreset import Mask, lane_of
from mmreplay.writing.env_fields import Action, Observation

Policy = Callable[..., Any]
PolicyLike = str | Policy
"""``"random"``, ``"module:callable"``, or the callable itself."""

_BLOCK = 4096


def load_policy(policy: PolicyLike) -> tuple[str, Policy | None]:
    """The policy's name for the metadata, and the callable (None for the random policy)."""
    if callable(policy):
        return name_of(policy), policy
    if policy == "random":
        return policy, None
    return policy, imported("policy", policy, "policy(observation)", "'random', ")


def name_of(function: Callable[..., Any]) -> str:
    """``module:name`` of a function or class, or of an object's class."""
    one: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{one.__module__}:{one.__qualname__}"


class Actor:
    """Chooses the actions of one environment (`n_lanes` None), or of all of a vector."""

    def __init__(
        self,
        policy: Policy | None,  # None: random
        observation_space: Space[Any],  # of one environment
        action_space: Space[Any],
        seed: int,
        n_lanes: int | None,
    ) -> None:
        self._is_single, n = n_lanes is None, n_lanes or 1
        self._observation_space = observation_space
        self._is_batched = getattr(policy, "batched", False)
        batch = (n,) if self._is_batched else ()
        self._resets: list[Policy | None] = []
        self._calls: list[Policy] = []
        for one in range(seed, seed + (1 if self._is_batched else n)):
            made: Any = _random(action_space, one) if policy is None else policy
            if isinstance(made, type):
                made = made(observation_space, action_space, one)
            self._resets.append(getattr(made, "reset", None))
            self._calls.append(made if policy is None else _checked(made, action_space, batch))
        self._actions = np.zeros((n, *(action_space.shape or ())), dtype=action_space.dtype)

    def start(self, lanes: Mask) -> None:
        """An episode begins in these environments with the next observation."""
        if self._is_batched:
            if self._resets[0] is not None:
                self._resets[0](lanes)
            return
        for i in np.flatnonzero(lanes).tolist():
            if (reset := self._resets[i]) is not None:
                reset()

    def act(self, observations: Observation, ignored: Mask | None) -> Action:
        """The action or actions; those of `ignored` environments need only be valid."""
        if self._is_batched and self._is_single:
            batch: Any = create_empty_array(self._observation_space, 1)
            batch = concatenate(self._observation_space, [observations], batch)
            return np.asarray(self._calls[0](batch))[0]
        if self._is_batched or self._is_single:
            return self._calls[0](observations)
        # A copy, because the environment may keep the array; an ignored environment repeats its
        # last action, which is valid.
        actions = self._actions = self._actions.copy()
        for i, call in enumerate(self._calls):
            if ignored is None or not ignored[i]:
                actions[i] = call(lane_of(observations, i))
        return actions


def _random(space: Space[Any], seed: int) -> Policy:
    """The random policy of one environment: uniform over the action space."""

    def actions() -> Iterator[Any]:
        if isinstance(space, spaces.Discrete):
            # In blocks: space.sample() takes as long as a step of a small environment.
            rng = np.random.default_rng((seed, 1))
            low, high = int(space.start), int(space.start) + int(space.n)
            while True:
                yield from rng.integers(low, high, size=_BLOCK).tolist()
        # Not the environment's seed: its start and the actions would come from the same stream.
        own = copy.deepcopy(space)
        own.seed(int(np.random.SeedSequence((seed, 1)).generate_state(1)[0]))
        while True:
            yield own.sample()

    stream = actions()
    return lambda _observation: next(stream)


def _checked(policy: Policy, space: Space[Any], batch: tuple[int, ...]) -> Policy:
    """The policy, each of whose results is converted to an action, or refused."""
    shape, dtype = (*batch, *(space.shape or ())), np.dtype(space.dtype)
    # Many environments clip actions outside other spaces themselves.
    limits = None
    if isinstance(space, spaces.Discrete):
        limits = int(space.start), int(space.start) + int(space.n) - 1

    def act(observation: Observation) -> Action:
        action = policy(observation)
        if limits and not shape and type(action) is int and limits[0] <= action <= limits[1]:
            return action  # the most frequent case
        try:
            array = np.asarray(action)
        except ValueError:  # a tuple of an action and something else, for example
            array = np.empty((), dtype=object)
        expected = None
        if array.shape != shape or array.dtype.kind not in "biuf":
            expected = f"{'actions' if batch else 'an action'} of shape {shape} and dtype {dtype}"
        elif dtype.kind in "iu" and array.dtype.kind == "f":
            expected = f"whole numbers: the action space is {space}"
        elif limits and ((array < limits[0]) | (array > limits[1])).any():
            expected = f"{limits[0]} to {limits[1]}: the action space is {space}"
        if expected is not None:
            found = f"an array of shape {array.shape} and dtype {array.dtype}"
            raise MmreplayError(
                f"the policy returned {found if array.ndim else repr(action)}, expected {expected}"
            )
        out = array.astype(dtype, copy=False)
        return out if shape else out[()]

    return act
