"""`pack`: stores copied, joined, filtered and compressed again into one closed store.

Invariant: the new store has its name only when it is whole, durable and of rows that matched their
checksums; the sources are only read. Interrupted, the next pack to the same place takes away what
is left.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import itertools
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.arguments import whole_number_or_none
from mmreplay.episode_index import EPISODE_DTYPE
from mmreplay.errors import CorruptStoreError, SchemaError, StoreExistsError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import LANE_SHIFT
from mmreplay.maintenance.chosen_episodes import EpisodeNumbers, choose
from mmreplay.maintenance.copy_lane import KEPT
from mmreplay.maintenance.packed_lane import PackedLane
from mmreplay.maintenance.packed_layout import FrameLayout, Logs
from mmreplay.maintenance.packed_log import PackedLog
from mmreplay.maintenance.progress import ByteCount
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.store import Store
from mmreplay.schema import Codec, Schema
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import hold_store, lane_paths, read_metadata, store_around
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.staging import staging_directory
from mmreplay.system.worker_processes import Call, Pause, can_fork, run_in_processes

_ATTEMPTS = 20
_AHEAD = 4
"""Chunk files that wait for each thread."""
_BYTES_A_PROCESS = 16 << 20
"""Of rows, for which one is forked: that takes milliseconds, and compressing these ten or more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """What a pack made.

    Attributes:
        path: the new store.
        lanes: it has.
        rows: kept ones, over all lanes; of a lane of many environments its ticks.
        transitions: that can be sampled.
        episodes: whole ones.
        left_out: whole episodes of the sources that were not wanted.
        source_bytes: of the sources on disk, as allocated.
        bytes_on_disk: of the new store.
    """

    path: str
    lanes: int
    rows: int
    transitions: int
    episodes: int
    left_out: int
    source_bytes: int
    bytes_on_disk: int

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return dataclasses.asdict(self)


def pack(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    codec: Codec = None,
    min_return: float | None = None,
    episodes: EpisodeNumbers | None = None,
    workers: int | None = None,
    *,
    envs: Iterable[int] | None = None,
    chunk_frames: int | None = None,
    shard_frames: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Packed:
    """Copy stores into one closed store, all of their rows or some of their episodes.

    A source may be closed, live or left by a crash; each of its lanes is taken as of one moment.
    Without a choice of episodes, rows keep their numbers, and a lane stays one of as many
    environments as it is of. With one, each lane becomes a lane of one environment, in which the
    episodes that are wanted follow one another, in the order of `Store.episodes`. The lanes of
    several sources stand side by side, in the order of the sources.

    Args:
        sources: a store, or several of equal rows.
        target: a directory that does not exist yet.
        codec: of the frames, see `mmreplay.Field`. None: they stay as they are, and are not
            decoded.
        min_return: keep the episodes whose return is no less.
        episodes: keep these: their numbers in `Store.episodes` of the sources one after the other,
            a mask over it, or a function of it that gives either.
        workers: that compress and copy; None for one a processor. Processes where there is much to
            compress on Linux, and this process has no other thread; else threads.
        envs: keep the episodes of these environments, counted over all lanes.
        chunk_frames: frames that are compressed together; of raw ones, frames a chunk file.
        shard_frames: frames a shard, a multiple of `chunk_frames`.
        progress: called with bytes of rows that are done and those in all, uncompressed.

    Raises:
        StoreNotFoundError: no store there, or no directory above the target.
        FormatError: something there that is no store.
        StoreExistsError: the target exists.
        SchemaError: the rows of the sources differ, an argument is none, or the target lies within
            a store.
        EmptyBufferError: no episode is wanted.
        DiskFullError: no room; nothing is left behind.
        FailedStoreError: a write or fsync failed, a source was removed meanwhile, or a process was
            killed that compressed.
        CorruptStoreError: rows that cannot be read, or do not match their checksum.
    """
    wanted = FrameLayout.of(codec, chunk_frames, shard_frames)
    paths: list[object] = [sources]
    if isinstance(sources, Iterable) and not isinstance(sources, str):
        paths = list(sources)
    if not paths:
        raise SchemaError("sources: expected a store or more, found none")
    named = [user_paths.as_path(path, "sources") for path in paths]
    n_workers = whole_number_or_none("workers", workers) or os.cpu_count() or 1
    where = user_paths.as_path(target, "target")
    user_paths.path_to_create(target, "target")
    if os.path.lexists(where):
        raise StoreExistsError(f"{where}: there is something already; choose another path")
    user_paths.check_parent(where)
    for path in named:
        read_metadata(path)
    if (store := store_around(where)) is not None:
        raise SchemaError(f"{where}: lies within the store {store}; choose another path")
    for _ in range(_ATTEMPTS):
        roots = [hold_store(path).root for path in named]
        try:
            with staging_directory(where) as folder:
                work = _Pack(roots, folder, wanted, progress)
                work.choose(min_return, episodes, envs)
                work.build(folder / where.name, n_workers, where)
                if not durable_writes.replace_directory(
                    folder / where.name, folder.with_name(where.name)
                ):
                    raise StoreExistsError(f"{where}: somebody else made it at this moment")
        except EvictedError:  # a source was opened again, or exchanged: all of it once more
            continue
        return _describe(where, work)
    raise CorruptStoreError(
        f"{named[0]}: a source was reopened, or exchanged, {_ATTEMPTS} times while it was being "
        f"packed; try again when nobody opens it"
    )


class _Pack:
    """One attempt, in a directory of its own beside the target."""

    def __init__(
        self,
        roots: Sequence[AnyPath],
        folder: AnyPath,
        wanted: FrameLayout,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._wanted, self._progress = wanted, progress
        self._root = read_metadata(roots[0])
        self._is_lane = len(roots) == 1 and self._root["kind"] != "lanes"
        self.source_bytes = sum(sum(checked_reads.allocated_bytes(root).values()) for root in roots)
        self.left_out = 0
        self.lanes: list[PackedLane] = []
        for root in roots:
            for path in lane_paths(root):
                number = len(self.lanes)
                self.lanes.append(PackedLane(path, number, folder / f"source-{number}"))
        self._check_schemas()

    def _check_schemas(self) -> None:
        first = self.lanes[0].reader
        for lane in self.lanes[1:]:
            if (text := _difference(first.schema, lane.reader.schema)) is not None:
                raise SchemaError(
                    f"{lane.reader.path}: {text}, as in {first.path}; pack them apart"
                )

    def choose(
        self,
        min_return: float | None,
        episodes: EpisodeNumbers | None,
        envs: Iterable[int] | None,
    ) -> None:
        """Choose episodes, if anything was asked for; raises as `choose`."""
        if min_return is None and episodes is None and envs is None:
            return
        tables = [np.empty(0, EPISODE_DTYPE)]
        for number, lane in enumerate(self.lanes):  # together they may be raw and compressed
            with Store([lane.reader.path]) as store:
                tables.append(store.episodes)
            tables[-1]["id"] += number << LANE_SHIFT
        table = np.concatenate(tables)
        self._check_in_place()  # or they may be of rows that came meanwhile
        widths = [lane.reader.width for lane in self.lanes]
        chosen = choose(table, widths, min_return=min_return, episodes=episodes, envs=envs)
        self.left_out = len(table) - len(chosen)
        numbers = chosen["id"] >> LANE_SHIFT
        for number, lane in enumerate(self.lanes):
            lane.choice = chosen[numbers == number]

    def _check_in_place(self) -> None:
        for lane in self.lanes:
            if lane.is_replaced():
                raise EvictedError(str(lane.reader.path))

    def build(self, built: AnyPath, n_workers: int, where: Path) -> None:
        """Write the store, durably, which will be at `where`.

        Raises EvictedError if a source is another by now.
        """
        plans, common = self._plans()
        checks: list[Iterator[Callable[[], None]]] = []
        logs: list[PackedLog] = []
        names = _names(lane.reader.metadata.get("name") for lane in self.lanes)
        paths = [
            built if self._is_lane else built / layout.lane_name(number)
            for number in range(len(self.lanes))
        ]
        for lane, path, specs, name in zip(self.lanes, paths, plans, names, strict=True):
            rows, only = lane.rows(), len(self.lanes) == 1
            lane.write_documents(path, rows, specs, name=name, generator=only)
            checks.append(lane.checks(rows, specs))
            logs += [PackedLog(path / log, rows[log], specs[log]) for log in specs]
        if not self._is_lane:
            self._write_root(built, common)
        done = ByteCount(self._progress, lambda: sum(log.weight for log in logs))
        _write(itertools.chain.from_iterable(checks), logs, n_workers, done, str(where))
        for log in logs:
            log.write_checksums()
        for lane, path in zip(self.lanes, paths, strict=True):
            lane.finish(path)
        self._check_in_place()
        durable_writes.sync_tree(built)
        done.finish()

    def _plans(self) -> tuple[list[Logs], dict[str, ArraySpec]]:
        """The arrays of each lane, and those that all lanes of one environment have."""
        first = self.lanes[0].reader
        wanted = self._wanted if self._is_lane else self._wanted.with_codecs_of(first)
        of_rows = [lane.reader for lane in self.lanes if isinstance(lane.reader, LaneReader)]
        common = wanted.of_rows([*of_rows, first][0], None if self._is_lane else 0)
        return [
            {"": common} if lane.becomes_rows else wanted.same_kind(lane.reader)
            for lane in self.lanes
        ], common

    def _write_root(self, built: AnyPath, common: Mapping[str, ArraySpec]) -> None:
        """The attributes of a store of lanes: those of the first source, and the common layout."""
        own = {key: self._root[key] for key in KEPT if key in self._root and key != "name"}
        own |= {
            "format": layout.FORMAT,
            "kind": "lanes",
            "uuid": uuid.uuid4().hex,
            "schema": self.lanes[0].reader.schema.to_json(),
            "layout": layout.layout_json(common),
        }
        durable_writes.write_new(built / "zarr.json", layout.group_json(own))


def _difference(first: Schema, other: Schema) -> str | None:
    """The field in which rows differ, in words; None if they are alike."""
    mine, theirs = first.columns(), other.columns()
    for path in [*mine, *(path for path in theirs if path not in mine)]:
        if path not in theirs:
            return f"expected {path}, found no such field"
        if path not in mine:
            return f"{path}: found, and expected no such field"
        if not mine[path].same_data(theirs[path]):
            a, b = mine[path], theirs[path]
            return f"{path}: expected {a.shape} {a.dtype}, found {b.shape} {b.dtype}"
    return None


def _names(given: Iterable[str | None]) -> list[str | None]:
    """The names of lanes; one that another lane has already gets a number behind."""
    out: list[str | None] = []
    known: set[str] = set()
    for name in given:
        new, n = name, 1
        while new in known:
            n += 1
            new = f"{name}-{n}"
        known |= {new} if new is not None else set()
        out.append(new)
    return out


@dataclasses.dataclass(frozen=True, slots=True)
class _Written:
    """A chunk file: of which log, of which array there, and how many bytes of rows it has."""

    log: int
    path: str
    chunk: int
    checksum: int
    n_bytes: int


def _write_file(number: int, log: PackedLog, spec: ArraySpec, chunk: int, pause: Pause) -> _Written:
    checksum = log.write(spec, chunk, pause)
    return _Written(number, spec.path, chunk, checksum, log.weight_of(spec, chunk))


def _check(check: Callable[[], None], _: Pause) -> None:
    check()


def _write(
    checks: Iterable[Callable[[], None]],
    logs: Sequence[PackedLog],
    n_workers: int,
    done: ByteCount,
    what: str,
) -> None:
    """Make all checks and write all chunk files, in processes or threads; the first error ends it.

    Compressing, reading and writing leave the interpreter to other threads. But they do so
    thousands of times a second, and with each time one may wait for it.
    """
    calls: Iterator[Call[_Written | None]] = itertools.chain(
        (functools.partial(_check, check) for check in checks),
        (
            functools.partial(_write_file, number, log, spec, chunk)
            for number, log in enumerate(logs)
            for spec, chunk in log.files()
        ),
    )

    def take(written: _Written | None) -> None:
        if written is not None:
            logs[written.log].note(written.path, written.chunk, written.checksum)
            done.add(written.n_bytes)

    n_files, n_bytes = map(sum, zip(*(log.made() for log in logs), strict=True))
    n_processes = min(n_workers, n_files, n_bytes // _BYTES_A_PROCESS)
    if n_processes > 1 and can_fork() and run_in_processes(calls, take, n_processes, what):
        return
    _run_in_threads(calls, take, n_workers)


def _run_in_threads(
    calls: Iterator[Call[_Written | None]], take: Callable[[_Written | None], None], n_threads: int
) -> None:
    stop = threading.Event()

    def pause() -> None:
        if stop.is_set():
            raise concurrent.futures.CancelledError

    running: set[concurrent.futures.Future[_Written | None]] = set()
    with concurrent.futures.ThreadPoolExecutor(n_threads, "mmreplay-pack") as pool:
        try:
            while True:
                # A few ahead: metadata may speak of more files than there are.
                for call in itertools.islice(calls, _AHEAD * n_threads - len(running)):
                    running.add(pool.submit(call, pause))
                if not running:
                    return
                ended, running = concurrent.futures.wait(
                    running, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in ended:
                    take(future.result())
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _describe(where: Path, work: _Pack) -> Packed:
    """What stands in a packed store."""
    with Store([where]) as store:
        readers = store.live.readers
        return Packed(
            str(where),
            len(readers),
            sum(reader.head - reader.base for reader in readers),
            len(store),
            len(store.episodes),
            work.left_out,
            work.source_bytes,
            sum(checked_reads.allocated_bytes(where).values()),
        )
