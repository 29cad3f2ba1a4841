"""`Run`: a receiver as a Ray actor on the learner's machine, and writers for actors anywhere.

Invariant: no step is lost that was acknowledged, whatever of Ray is killed; calls of one sender
arrive in order, because it waits for each, and Ray repeats none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import os
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number, whole_number_or_none
from mmreplay.datasets.dataset import Dataset
from mmreplay.distributed.blocks import Packed
from mmreplay.distributed.buffer import buffer as open_buffer
from mmreplay.distributed.limiter import Limits
from mmreplay.distributed.receiver import Receiver
from mmreplay.distributed.sender import BLOCK_STEPS, SendingVectorWriter, SendingWriter
from mmreplay.distributed.transport import Opened, Reply
from mmreplay.errors import ClosedError, MissingExtraError, MmreplayError
from mmreplay.format.episode_fields import EpisodeField
from mmreplay.schema import Field
from mmreplay.system import user_paths

_ASK_S = 0.02
_TAILS_BYTES = 1 << 30  # of all lanes of a run together
_CHUNK_ROWS = 16
_MOST_SHARD_FRAMES = 4096
_BLOCKS_UNDER_WAY = 2  # of each sender


class Run:
    """Actors on many machines write one store on this one.

    Made where the learner is: by a Ray driver, or a task or actor of Ray. A context manager:
    leaving it closes the store. It can be given to Ray's tasks and actors.

    Args:
        path: the store's directory on this machine; it is created, or continued.
        env: the environment of an actor, whose spaces give `frame`, `action` and `lanes`.
        frame, action, extras, reward_dtype, codec, padding, metadata, episode: as for `create`.
        lanes: environments that step together in an actor; None for one alone.
        actors: how many there are at most; each has a lane of its own.
        capacity: most transitions to keep, over all actors; each keeps its part of them.
        samples_per_insert: how often a transition is drawn on average; None for no limit. Actors
            wait for the learner, and the learner for them, where the other one is behind.
        min_size: transitions before the first sample.
        margin: samples that either side may be ahead; None for room for all blocks under way.
        archive: a URL to which the store is pushed every `archive_s` seconds, and at the close.
        flush_s: seconds between flushes: a power cut of this machine loses at most these.

    Raises:
        MissingExtraError: Ray is not installed, or what `archive` needs.
        SchemaError: an argument that is not valid, or does not fit the store that is there.
        MmreplayError: as `create`.

    Attributes:
        path: the store's directory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        env: Any = None,
        frame: Field | Mapping[str, Field] | None = None,
        action: Field | None = None,
        lanes: int | None = None,
        actors: int = 1,
        capacity: int | None = None,
        samples_per_insert: float | None = None,
        min_size: int = 1,
        margin: int | None = None,
        archive: str | None = None,
        archive_s: float = 300.0,
        extras: Mapping[str, Field] | None = None,
        reward_dtype: npt.DTypeLike | None = None,
        codec: str | Mapping[str, Any] | None = None,
        padding: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        episode: Mapping[str, EpisodeField] | None = None,
        flush_s: float = 30.0,
    ) -> None:
        self.path = user_paths.path_to_create(path)
        self._n_actors = whole_number("actors", actors)
        if env is not None:
            from mmreplay.writing.env_fields import env_fields, env_metadata  # noqa: PLC0415 (extra)

            found = env_fields(env)
            frame, action = frame or found.frame, action or found.action
            lanes, padding = lanes or found.lanes, padding or found.padding
            metadata = {**env_metadata(env), **(metadata or {})}
        self._lanes = whole_number_or_none("lanes", lanes)
        width = self._lanes or 1
        each = whole_number_or_none("capacity", capacity, self._n_actors * width)
        limits = Limits.checked(
            samples_per_insert,
            min_size,
            margin,
            rows_under_way=self._n_actors * width * BLOCK_STEPS * _BLOCKS_UNDER_WAY,
        )
        if archive is not None:
            _push()
        fields = {
            "frame": frame if lanes is None else _with_short_tails(frame, width, self._n_actors),
            "action": action,
            "capacity": None if each is None else each // self._n_actors,
            "extras": extras,
            "reward_dtype": None if reward_dtype is None else np.dtype(reward_dtype),
            "codec": codec,
            "padding": padding,
            "metadata": metadata,
            "episode": episode,
        }
        ray, here = _ray(), importlib.import_module("ray.util.scheduling_strategies")
        if not ray.is_initialized():
            ray.init()
        self._receiver = (
            ray.remote(ReceivingActor)
            .options(
                num_cpus=0,
                max_restarts=-1,
                max_task_retries=0,  # repeated, an append could overtake a later one
                max_concurrency=2 * self._n_actors + 16,
                scheduling_strategy=here.NodeAffinitySchedulingStrategy(
                    ray.get_runtime_context().get_node_id(), soft=False
                ),
            )
            .remote(str(self.path), fields, limits, flush_s, archive, archive_s)
        )
        names = [self._name(i) for i in range(self._n_actors)]
        _answer(self._receiver.prepare.remote(names, self._lanes))
        self._is_owner = True

    @staticmethod
    def _name(i: int) -> str:
        return f"actor-{i:05}"

    def writer(self, i: int, **options: Any) -> SendingWriter | SendingVectorWriter:
        """The writer of actor `i`, a `SendingVectorWriter` of `lanes` environments, if given.

        It is used like a writer of `create`, also by `RecordExperience`, in any process of Ray. The
        newest writer of an actor owns its lane: an earlier one raises LockedError.

        Raises:
            SchemaError: there is no actor of that number.
        """
        name = self._name(whole_number("i", i, 0, self._n_actors - 1))
        transport = RayTransport(self._receiver)
        if self._lanes is None:
            return SendingWriter(transport, name, **options)
        return SendingVectorWriter(transport, name, self._lanes, **options)

    def buffer(self, **options: Any) -> Dataset:
        """What the learner samples from; see `mmreplay.distributed.buffer`."""
        return open_buffer(self.path, **options)

    def close(self) -> None:
        """Close the store, which is plain zarr then; a second call does nothing.

        Let the actors end before: their writers find no receiver any more.
        """
        if self._is_owner:
            _answer(self._receiver.close.remote())
            self._is_owner = False
            _ray().kill(self._receiver)

    def __getstate__(self) -> dict[str, Any]:
        """A copy, for another process, does not close the store."""
        return {**self.__dict__, "_is_owner": False}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mmreplay.distributed.Run {self.path} actors={self._n_actors}>"


class ReceivingActor:
    """The receiver as an actor of Ray: what waits for the limiter does so beside what appends."""

    def __init__(
        self,
        path: str,
        fields: Mapping[str, Any],
        limits: Limits,
        flush_s: float,
        archive: str | None,
        archive_s: float,
    ) -> None:
        self._receiver, self._closed = Receiver(path, fields, limits, flush_s=flush_s), False
        self._archive, self._archive_s = archive, archive_s
        self._pushes: asyncio.Task[None] | None = None

    async def prepare(self, names: list[str], environments: int | None) -> None:
        """Make all lanes."""
        self._receiver.prepare(names, environments)
        self._begin_to_push()

    async def open(self, name: str, environments: int | None) -> Opened:
        """See `Receiver.open`."""
        if self._closed:
            raise ClosedError(f"{self._receiver.path}: this run was closed")
        self._begin_to_push()  # this process may be a new one
        return self._receiver.open(name, environments)

    async def append(self, name: str, token: int, start: int, block: Packed) -> int | None:
        """See `Receiver.append`; the answer is late while senders are ahead of the learner."""
        head = self._receiver.append(name, token, start, block)
        while head is not None and self._receiver.is_ahead and not self._closed:  # noqa: ASYNC110 (a page)
            await asyncio.sleep(_ASK_S)
        return head

    async def close(self) -> None:
        """Close the store, and push it."""
        self._closed = True
        if self._pushes is not None:
            self._pushes.cancel()
        self._receiver.close()
        if self._archive is not None:
            _push()(self._receiver.path, self._archive)

    def _begin_to_push(self) -> None:
        if self._archive is not None and self._pushes is None:
            self._pushes = asyncio.get_running_loop().create_task(self._push_forever())

    async def _push_forever(self) -> None:
        while True:
            await asyncio.sleep(self._archive_s)
            # What fails is tried again at the next time, and at the close, which raises.
            with contextlib.suppress(MmreplayError, OSError):
                await asyncio.to_thread(_push(), self._receiver.path, self._archive)


class RayTransport:
    """Calls of the receiver's actor."""

    def __init__(self, receiver: Any) -> None:
        self._receiver = receiver

    def open(self, name: str, environments: int | None) -> Opened:
        """See `Receiver.open`."""
        opened: Opened = _answer(self._receiver.open.remote(name, environments))
        return opened

    def append(self, name: str, token: int, start: int, block: Packed) -> Reply:
        """See `Receiver.append`."""
        return _RayReply(self._receiver.append.remote(name, token, start, block))


@dataclasses.dataclass(frozen=True, slots=True)
class _RayReply:
    reference: Any

    def done(self) -> bool:
        return bool(_ray().wait([self.reference], timeout=0)[0])

    def result(self) -> int | None:
        head: int | None = _answer(self.reference)
        return head


def _answer(reference: Any) -> Any:
    """What a call returns; ConnectionError where the actor died, or is not reached."""
    ray = _ray()
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, MmreplayError):
            raise error.cause from None
        raise
    # Restarting, too: then calls fail at once, and work again some seconds later.
    except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
        raise ConnectionError(f"the receiver is gone: {error!s:.400}") from error


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError(
            'mmreplay.distributed needs ray: pip install "mmreplay[ray]"'
        ) from error


def _push() -> Any:
    """`push(path, url)` of the archive."""
    try:
        return importlib.import_module("mmreplay.archive.push").push
    except ImportError as error:
        raise MissingExtraError(
            'archive: expected what pushes stores: pip install "mmreplay[archive]"'
        ) from error


def _with_short_tails(frame: Any, width: int, n_lanes: int) -> Any:
    """The frame fields of lanes of many environments, with shards that all tails have room for."""
    if frame is None:
        return None
    fields = frame if isinstance(frame, Mapping) else {"": frame}
    row_bytes = sum(one.row_bytes for one in fields.values()) * width
    rows = min(_TAILS_BYTES // (2 * n_lanes * row_bytes), _MOST_SHARD_FRAMES // width)
    if any(one.shard or one.chunk for one in fields.values()) or rows * width >= _MOST_SHARD_FRAMES:
        return frame
    shard = max(rows // _CHUNK_ROWS, 1) * _CHUNK_ROWS
    out = {key: dataclasses.replace(one, shard=shard) for key, one in fields.items()}
    return out if isinstance(frame, Mapping) else out[""]
