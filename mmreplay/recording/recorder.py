"""The recorder: step environments with a policy and append every transition to a store.

Invariant: exactly `steps` transitions over all environments are recorded, each made by an
environment, unless the recording is stopped before.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.errors import MmreplayError, SchemaError, StoreNotFoundError
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.reading.store import open_store
from mmreplay.recording.autoreset import lives_left
from mmreplay.recording.environments import EnvLike, World, make_world
from mmreplay.recording.experience import RecordExperience, words
from mmreplay.recording.policies import Actor, Policy, PolicyLike, load_policy
from mmreplay.recording.progress import Meter, RecordProgress
from mmreplay.system import user_paths
from mmreplay.writing.create import create
from mmreplay.writing.env_fields import env_metadata, spaces_of

_POLICIES = load_policy.__module__
_NOT_THEIRS = ("mmreplay.writing.", Meter.__module__)
_MAX_SEED = 2**31 - 2**16
"""Emulators take seeds of 31 bits; environment i gets seed + i."""


@dataclass(frozen=True, slots=True)
class RecordResult:
    """What a recording did.

    Attributes:
        path: the store.
        env: the environment's id, or the name of what made it.
        environments: how many stepped together.
        steps: transitions recorded by this call.
        episodes: episodes that ended in it.
        rows: of the store, evicted ones included; one per step of a vector environment.
        evicted_rows: rows that can no longer be sampled, because of a capacity.
        seconds: from the first step until the store was closed.
        steps_per_s: transitions per second, closing included.
        bytes_on_disk: blocks allocated to the store's files.
        stopped: whether it was stopped before it had all steps.
    """

    path: str
    env: str
    environments: int
    steps: int
    episodes: int
    rows: int
    evicted_rows: int
    seconds: float
    steps_per_s: float
    bytes_on_disk: int
    stopped: bool

    to_json = asdict


def record(
    env: EnvLike,
    path: str | Path,
    steps: int,
    *,
    envs: int | None = None,
    policy: PolicyLike = "random",
    seed: int = 0,
    codec: str | Mapping[str, Any] | None = None,
    capacity: int | None = None,
    append: bool = False,
    progress: Callable[[RecordProgress], None] | None = None,
    flush_s: float = 30.0,
    life_loss: bool | None = None,
    stop: Callable[[], bool] | None = None,
    episode: Mapping[str, EpisodeField] | None = None,
) -> RecordResult:
    """Record environments into a store.

    An Atari id gets the standard preprocessing (84x84 gray, frame skip 4, no-op start; see
    `mmreplay.recording.atari`); all other environments are recorded unchanged. If the last
    step of a vector environment would exceed `steps`, only its first environments are recorded.

    Args:
        env: a gymnasium id, an environment, a vector environment with any autoreset mode, or a
            function that makes one. Environments made here are closed here.
        path: the store's directory.
        steps: transitions to record, over all environments together.
        envs: environments that step together; None for 1, for those of a vector environment, or
            with `append` for those of the store.
        policy: ``"random"``, ``"module:callable"`` or a callable, see
            `mmreplay.recording.policies`.
        seed: environment i is reset with seed + i, and its policy gets that seed too. With
            `append`, another seed is derived from it, so that new episodes follow.
        codec: the frames' codec, see `mmreplay.Field`; with `append` the store's own, or None.
        capacity: most transitions to keep, the newest; None keeps all.
        append: continue a store of the same environment, also after a crash; create it if it does
            not exist.
        progress: called a few times per second.
        flush_s: seconds between flushes; 0 flushes only at the end.
        life_loss: treat a lost life as terminal, without a reset; the environment's info needs
            ``lives``. None: the store's own setting with `append`, else False.
        stop: called after each step; True ends the recording. See `stop_on_signals`.
        episode: fields of episodes, as for `create`, that the info of an episode's last step has
            under these names, in the environments where it has them.

    Raises:
        MissingExtraError: gymnasium, ale-py or OpenCV is not installed.
        SchemaError: the spaces cannot be stored, or do not fit the existing store.
        StoreExistsError: the path exists, and `append` is False.
        MmreplayError: no such environment or policy, or one of them raised; steps recorded before
            are kept.
    """
    steps = whole_number("steps", steps)
    if stop is not None and not callable(stop):
        raise MmreplayError(f"stop: expected a function without arguments, found {stop!r:.80}")
    seed = whole_number("seed", seed, 0, _MAX_SEED)
    user_paths.path_to_create(path)
    policy_name, called = load_policy(policy)
    earlier = _earlier(Path(path)) if append else None
    if earlier is not None and envs is None and isinstance(env, str):
        envs = earlier.n_envs
    if life_loss is None:
        life_loss = earlier is not None and earlier.metadata.get("life_loss") is True
    meter = Meter(steps, Path(path), progress)
    with _explained(path, meter):
        world = make_world(env, envs)
    what = {"id": world.name, "preprocessing": world.preprocessing, "life_loss": life_loss}
    try:
        if earlier is not None:
            _check_same(earlier, world, path, what)
            if earlier.rows:  # so that new episodes follow
                seed = int(np.random.SeedSequence((seed, earlier.rows)).generate_state(1)[0]) >> 2
        # The first action comes before the store: a policy that fails leaves no store behind.
        with _explained(path, meter):
            loop = Loop(world, called, seed, life_loss=life_loss)
        about = env_metadata(world.env, world.spec)
        run = {
            "seed": seed,
            "lane_seeds": [seed + i for i in range(world.n_envs)],
            "policy": policy_name,
            "rows_before": 0 if earlier is None else earlier.rows,
            "versions": about.pop("versions"),
        }
        runs = [] if earlier is None else earlier.metadata.get("runs", [])
        writer = create(
            path,
            frame=world.fields.frame,
            action=world.fields.action,
            lanes=world.fields.lanes,
            codec=codec,
            capacity=capacity,
            append=append,
            metadata={**about, **what, "runs": [*runs, run]},
            flush_s=flush_s,
            episode=episode,
        )
        meter.start()
        with writer, _explained(path, meter):
            loop.run(writer, steps, meter, stop, tuple(episode or ()))
        last = meter.finish()
    finally:
        world.close()
    return RecordResult(
        path=str(path),
        env=world.name,
        environments=world.n_envs,
        steps=last.steps,
        episodes=last.episodes,
        rows=writer.rows,
        evicted_rows=writer.files.rows.first,
        seconds=last.seconds,
        steps_per_s=last.steps_per_s,
        bytes_on_disk=last.bytes_on_disk,
        stopped=last.steps < steps,
    )


class Loop:
    """Environments after their reset, with the first action chosen and nothing recorded yet."""

    def __init__(self, world: World, policy: Policy | None, seed: int, *, life_loss: bool) -> None:
        self._env, self._life_loss = world.env, life_loss
        observation, info = self._first = world.env.reset(seed=seed)
        if life_loss:
            lives_left(info)
        self._lanes = world.fields.lanes
        self._actor = Actor(policy, *spaces_of(world.env), seed, self._lanes)
        self._actor.start(np.ones(world.n_envs, np.bool_))
        self._action = self._actor.act(observation, None)

    def run(
        self,
        writer: Any,
        total: int,
        meter: Meter,
        stop: Callable[[], bool] | None = None,
        fields: Sequence[str] = (),
    ) -> None:
        """Record `total` transitions; `fields` of episodes are in the infos of last steps."""
        wrap: Any = RecordExperience  # which chooses its class by the environment
        env = wrap(
            self._env,
            writer,
            life_loss=self._life_loss,
            episode=lambda info: {name: info[name] for name in fields if name in info},
        )
        env.begun(*self._first)
        actor, action = self._actor, self._action
        while True:
            env.most = total - meter.steps
            observation = env.step(action)[0]
            made = env.made()
            meter.steps += made.steps
            meter.episodes += made.episodes
            if meter.steps >= total or (stop is not None and stop()):
                return
            started = made.started
            if made.over is not None:
                started = made.over
                # Gymnasium takes the mask out of the options and keeps it.
                options = None if self._lanes is None else {"reset_mask": started.copy()}
                observation = env.reset(options=options)[0]
            if started is not None:
                actor.start(started)
            if perf_counter() >= meter.due:
                meter.report()
            action = actor.act(observation, made.ignored)


class _Earlier(NamedTuple):
    """The store that is continued; `n_envs` is None for a single environment."""

    n_envs: int | None
    rows: int
    metadata: dict[str, Any]


def _earlier(path: Path) -> _Earlier | None:
    try:
        with open_store(path) as store:
            reader = store.live.readers[0]
            if reader.path != store.live.path:
                raise SchemaError(
                    f"append: {path} has several lanes, each written by its own process; record "
                    f"into another path and load both, or write to one lane with "
                    f"mmreplay.create({str(path)!r}, lane=NAME, env=...)"
                )
            own = reader.metadata
            return _Earlier(reader.environments, reader.head, dict(own.get("env") or {}))
    except StoreNotFoundError:
        return None


def _check_same(earlier: _Earlier, world: World, path: str | Path, what: dict[str, Any]) -> None:
    """Check that the new rows come from the same environment; the writer compares the fields."""
    if earlier.n_envs != world.fields.lanes:
        raise SchemaError(
            f"append: {path} was recorded with {words(earlier.n_envs)}, found "
            f"{words(world.fields.lanes)}"
        )
    for name, found in what.items():
        expected = earlier.metadata.get(name, found)
        if expected != found:
            cure = "leave it out, or " if name == "life_loss" else ""
            raise SchemaError(
                f"append: {path} was recorded with {name} {expected!r}, found {found!r}; {cure}"
                f"record into another path and load both"
            )


@contextmanager
def _explained(path: str | Path, meter: Meter) -> Iterator[None]:
    """Turn errors of the environment or the policy into a message that names it and the line."""
    try:
        yield
    except MmreplayError:
        raise
    except Exception as error:
        passed = {
            str(one.f_globals.get("__name__")) for one, _ in traceback.walk_tb(error.__traceback__)
        }
        if any(name.startswith(_NOT_THEIRS) for name in passed):
            raise
        source = "policy" if _POLICIES in passed else "environment"
        at = traceback.extract_tb(error.__traceback__)[-1]
        kept = f"; {path} keeps the {meter.steps:,} steps before" if meter.steps else ""
        raise MmreplayError(
            f"the {source} raised {type(error).__name__}: {error} ({at.filename}:{at.lineno}){kept}"
        ) from error
