"""Make environments from an id, a factory or an environment.

Invariant: an id names the same dynamics for one environment and for many.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from mmreplay.arguments import whole_number_or_none
from mmreplay.errors import MissingExtraError, MmreplayError
from mmreplay.format.layout import MAX_ENVIRONMENTS
from mmreplay.recording import atari
from mmreplay.recording.policies import name_of
from mmreplay.writing.env_fields import AnyEnv, EnvFields, env_fields, env_name

EnvLike = str | AnyEnv | Callable[[], AnyEnv]
"""A gymnasium id, an environment, or a function that makes one."""


@dataclass(frozen=True, slots=True)
class World:
    """The environments to step, and what is known of them."""

    env: AnyEnv
    fields: EnvFields
    name: str
    preprocessing: dict[str, Any] | None  # of an Atari game's frames
    owned: bool  # made here, and closed here
    spec: EnvSpec | None  # makes one of them again; None if the environment has it

    @property
    def n_envs(self) -> int:
        """Environments that step together."""
        return self.fields.lanes or 1

    def close(self) -> None:
        """Close environments that were made here."""
        if self.owned:
            self.env.close()


def make_world(env: EnvLike, n_envs: int | None) -> World:
    """Make the environments; `n_envs` None is 1, or the number of a vector environment."""
    n_envs = whole_number_or_none("envs", n_envs, 1, MAX_ENVIRONMENTS)
    if isinstance(env, str):
        return _from_id(env, n_envs or 1)
    if isinstance(env, (gymnasium.Env, VectorEnv)):
        return _from_env(env, n_envs, owned=False)
    made = env()
    if isinstance(made, VectorEnv) or n_envs in (None, 1):
        return _from_env(made, n_envs, owned=True, name=name_of(env))
    first = [made]
    return _vector(lambda: first.pop() if first else env(), n_envs or 1, name_of(env))


def resolve_id(env_id: str) -> tuple[str, EnvSpec]:
    """The id and its specification; ``module:id`` imports the module that registers it."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MmreplayError(
                f"environment {env_id!r}: cannot import {module}: {error}"
            ) from error
    has_atari = name in gymnasium.registry or atari.register()
    if not has_atari and (name.startswith("ALE/") or "NoFrameskip" in name):
        raise MissingExtraError(
            f'environment {env_id!r}: Atari games need ale-py: pip install "mmreplay[atari]"'
        )
    try:
        return name, gymnasium.spec(name)
    except gymnasium.error.Error as error:
        hint = "" if has_atari else ' (Atari games need pip install "mmreplay[atari]")'
        near = [
            one for one in gymnasium.registry if one.rpartition("-v")[0] in {name, f"ALE/{name}"}
        ]
        if near:
            hint = f"; write {near[-1]}"
        elif not module:
            hint += f" (your own environments need the module that registers them: MODULE:{name})"
        raise MmreplayError(f"environment {env_id!r}: {error}{hint}") from error


def _from_id(env_id: str, n_envs: int) -> World:
    name, spec = resolve_id(env_id)
    try:
        if not atari.is_atari(spec):
            # Without the checker: its warnings are for authors, and it takes time.
            make = functools.partial(gymnasium.make, spec, disable_env_checker=True)
            if n_envs > 1:
                return _vector(make, n_envs, name)
            return _from_env(make(), 1, owned=True, name=name)
        env = atari.make_one(spec) if n_envs == 1 else atari.AtariGames(spec, n_envs)
        done = atari.preprocessing(spec, n_envs)
        one = atari.spec_of_one(spec)
        return _from_env(env, n_envs, owned=True, name=name, preprocessing=done, spec=one)
    except (gymnasium.error.Error, ImportError) as error:
        if isinstance(error, MmreplayError):
            raise
        raise MmreplayError(f"environment {name!r} cannot be made: {error}") from error


def _vector(make: Callable[[], Any], n_envs: int, name: str) -> World:
    # Same-step autoreset: every step of every environment is a transition.
    env: VectorEnv[Any, Any, Any] = SyncVectorEnv(
        [make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )
    return _from_env(env, n_envs, owned=True, name=name)


def _from_env(
    env: AnyEnv,
    n_envs: int | None,
    *,
    owned: bool,
    name: str | None = None,
    preprocessing: dict[str, Any] | None = None,
    spec: EnvSpec | None = None,
) -> World:
    world = World(env, env_fields(env), name or env_name(env), preprocessing, owned, spec)
    if n_envs not in (None, world.n_envs):
        raise MmreplayError(
            f"envs: found {n_envs}, but {world.name} has {world.n_envs}; leave envs out, or give a "
            f"function that makes one environment"
        )
    return world
