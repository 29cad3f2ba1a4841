"""`pack`: writes all or some episodes of one or several stores to one new closed store.

Invariant: the new store gets its name when it is whole and durable, and all its rows matched their
checksums; the sources are only read. The next pack to the same place removes what an interrupted
one left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import check_number, mask_of, whole_number_or_none
from mmreplay.batches.runs import Steps
from mmreplay.episode_index import EPISODE_DTYPE
from mmreplay.errors import (
    CorruptStoreError,
    EmptyBufferError,
    InvalidIdError,
    SchemaError,
    StoreExistsError,
)
from mmreplay.format.episode_fields import STARTED
from mmreplay.ids import LANE_SHIFT, environments
from mmreplay.maintenance.copy_lane import check_intact
from mmreplay.maintenance.episode_runs import read_runs, row_bytes, write_runs
from mmreplay.maintenance.snapshot import snapshot
from mmreplay.maintenance.verify.report import as_json
from mmreplay.reading.episode_columns import joined_fields, joined_tables
from mmreplay.reading.info import shared_metadata
from mmreplay.reading.lane_reader import LogReader
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Codec, Field, Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import kept_extras, path_of_new_store, read_metadata
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.staging import staging_directory
from mmreplay.writing.create import create

EpisodeNumbers = npt.ArrayLike | Callable[[npt.NDArray[np.void]], npt.ArrayLike]
"""Numbers of episodes, a mask over all of them, or a function of the table that returns either."""


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """What a pack made.

    Attributes:
        path: the new store.
        transitions: that can be sampled.
        episodes: whole ones.
        left_out: whole episodes of the sources that were not chosen.
        source_bytes: of the sources on disk, as allocated.
        bytes_on_disk: of the new store.
    """

    path: str
    transitions: int
    episodes: int
    left_out: int
    source_bytes: int
    bytes_on_disk: int

    to_json = as_json


def pack(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    codec: Codec = None,
    min_return: float | None = None,
    episodes: EpisodeNumbers | None = None,
    workers: int | None = None,
    *,
    capacity: int | None = None,
    envs: Iterable[int] | None = None,
    chunk_frames: int | None = None,
    shard_frames: int | None = None,
    leave_out: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Packed:
    """Write the whole episodes of stores, or some of them, into one closed store of one lane.

    A source may be closed, live or crashed; it is read as of one moment, and an episode that runs
    then ends there as truncated. Episodes are in the order of the sources and of `Store.episodes`,
    of any lane and environment, and have new ids. Episodes whose first steps were evicted,
    priorities and random state are left out.

    Args:
        sources: a store, or several of equal rows: a list, or a glob pattern.
        target: a directory that does not exist yet.
        codec: of the frames, see `mmreplay.Field`. None: that of the first source.
        min_return: keep the episodes with at least this return.
        episodes: keep these: their numbers in `Store.episodes` of the sources, concatenated, a mask
            over it, or a function of it that returns either.
        workers: threads that compress; None for one per processor but one, which reads.
        capacity: keep this many transitions at most, the newest. None: no limit.
        envs: keep the episodes of these environments, counted over all lanes.
        chunk_frames: frames that are compressed together; of raw ones, frames per chunk file.
        shard_frames: frames per shard, a multiple of `chunk_frames`.
        leave_out: names of extra columns, derived ones too, that the new store does not get.
        progress: called with bytes of rows done and in total, uncompressed.

    Raises:
        StoreNotFoundError: no store there or given, or no directory above the target.
        FormatError: a source is not a store.
        StoreExistsError: the target exists.
        SchemaError: the rows of the sources differ, an argument is not valid, or the target lies
            within a store.
        EmptyBufferError: no episode is chosen.
        DiskFullError: no room; nothing is left behind.
        FailedStoreError: a write or fsync failed, or a source was removed meanwhile.
        CorruptStoreError: rows are unreadable or do not match their checksum; or a source was
            reopened or exchanged meanwhile.
    """
    Field((), "uint8", codec)
    lengths = {
        "chunk": whole_number_or_none("chunk_frames", chunk_frames),
        "shard": whole_number_or_none("shard_frames", shard_frames),
    }
    n_threads = whole_number_or_none("workers", workers)
    named = user_paths.matching(sources, "sources")
    where = path_of_new_store(target)
    for path in named:
        read_metadata(path)
    with staging_directory(where) as folder, contextlib.ExitStack() as opened:
        columns = kept_extras(named, leave_out)
        opened_sources = [
            _Source(path, folder / f"source-{number}", columns, opened)
            for number, path in enumerate(named)
        ]
        first = opened_sources[0].store
        _check_schemas(opened_sources)
        declared = joined_fields((one.path, one.store.live.fields) for one in opened_sources)
        declared.pop(STARTED, None)
        n_episodes, n_chosen = _choose(opened_sources, min_return, episodes, envs)
        built = Path(str(folder)) / where.name
        readers = [reader for one in opened_sources for reader in one.readers]
        writer = create(
            built,
            _frames(first, codec, lengths),
            first.schema.action,
            capacity,
            first.schema.extras,
            first.schema.reward_dtype,
            derived=first.schema.derived,
            padding=first.padding,
            metadata=shared_metadata(readers),
            flush_s=0,
            episode=declared,
        )
        size, n_done = row_bytes(first.schema), 0
        total = sum(int(one.chosen["length"].sum()) for one in opened_sources) * size

        def wrote(n_steps: int) -> None:
            nonlocal n_done
            n_done += n_steps
            if progress is not None:
                progress(n_done * size, total)

        runs = itertools.chain.from_iterable(source.runs() for source in opened_sources)
        write_runs(writer, runs, n_threads, wrote)
        with Store([built]) as made:
            n_transitions, n_kept = len(made), len(made.episodes)
        if not durable_writes.replace_directory(folder / where.name, folder.with_name(where.name)):
            raise StoreExistsError(f"{where}: another process made it at this moment")
        return Packed(
            str(where),
            n_transitions,
            n_kept,
            n_episodes - n_chosen,
            sum(sum(checked_reads.allocated_bytes(path).values()) for path in named),
            sum(checked_reads.allocated_bytes(where).values()),
        )


class _Source:
    """A closed store to pack: one that is not closed is copied beside the target first.

    `chosen` are its chosen episodes, as in `Store.episodes`.
    """

    def __init__(
        self,
        path: Path,
        spare: AnyPath,
        columns: Sequence[str] | None,
        opened: contextlib.ExitStack,
    ) -> None:
        self.path = path
        self.store = Store([user_paths.absolute_path(path)], columns=columns)
        if not all(reader.is_closed for reader in self.readers):
            self.store.close()
            snapshot(path, str(spare))
            self.store = Store([spare], columns=columns)
        opened.callback(self.store.close)
        self.chosen = np.empty(0, EPISODE_DTYPE)
        self._uuids = self.store.live.uuids

    @property
    def readers(self) -> Sequence[Any]:
        """Its lanes."""
        return self.store.live.readers

    def runs(self) -> Iterator[Steps]:
        """The chosen steps, after a check of the raw files, which have no checksums inside."""
        changed = CorruptStoreError(
            f"{self.path}: was reopened or exchanged while it was being packed; pack it again"
        )
        try:
            for reader in self.readers:
                for log in (reader.rows, reader.finals):
                    _check_files(log)
                for spec in reader.document.episodes.values():
                    for chunk in chunk_files.chunk_files(reader.path, spec):
                        check_intact(reader.rows, spec, chunk, (chunk + 1) * spec.chunk_rows)
            yield from read_runs(self.store, self.chosen)
        except (EvictedError, InvalidIdError) as error:
            raise changed from error
        if self.store.live.uuids != self._uuids:
            raise changed


def _check_files(log: LogReader) -> None:
    """Compare uncompressed chunk files with their checksums."""
    for spec in log.specs.values():
        stop = -(-log.head // spec.chunk_rows) if spec.is_raw else 0
        for chunk in range(log.base // spec.chunk_rows, stop):
            check_intact(log, spec, chunk)


def _check_schemas(sources: Sequence[_Source]) -> None:
    first = sources[0].store.schema
    for source in sources[1:]:
        other = source.store.schema
        if not other.same_data(first):
            raise SchemaError(
                f"{source.path}: expected rows as in {sources[0].path}, found "
                f"{first.differences(other)}; pack them separately"
            )


def _choose(
    sources: Sequence[_Source], min_return: float | None, episodes: EpisodeNumbers | None, envs: Any
) -> tuple[int, int]:
    """Choose episodes of each source; returns how many there are and how many were chosen.

    Raises SchemaError for an argument that is not valid, EmptyBufferError if no episode is chosen.
    """
    tables, widths = [source.store.episodes for source in sources], list[int]()
    table, bounds = joined_tables(tables), np.cumsum([0, *map(len, tables)]).tolist()
    for source, (start, stop) in zip(sources, itertools.pairwise(bounds), strict=True):
        table["id"][start:stop] += len(widths) << LANE_SHIFT
        widths += [reader.n for reader in source.readers]
    mask = np.ones(len(table), np.bool_)
    if min_return is not None:
        check_number("min_return", min_return, least=-math.inf)
        mask &= table["return"] >= min_return  # NaN is not
    if episodes is not None:
        given = episodes(table) if callable(episodes) else episodes
        mask &= mask_of("episodes", given, len(table), "episodes")
    if envs is not None:
        listed = list(envs) if isinstance(envs, Iterable) else envs
        wanted = mask_of("envs", listed, sum(widths), "environments")
        mask &= wanted[environments(table["id"], widths)]
    if any(one is not None for one in (min_return, episodes, envs)) and not mask.any():
        best = np.nanmax(table["return"], initial=-math.inf)
        more = f"; the greatest return is {best:g}" if best > -math.inf else ""
        raise EmptyBufferError(
            f"none of {len(table):,} whole episodes was chosen{more}: choose others"
        )
    for source, one, start in zip(sources, tables, bounds, strict=False):
        source.chosen = one[mask[start : start + len(one)]]
    return len(table), int(np.count_nonzero(mask))


def _frames(first: Store, codec: Codec, lengths: dict[str, int | None]) -> Any:
    schema: Schema = first.schema
    specs = first.live.readers[0].rows.specs
    fields = {
        key: Field(
            field.shape,
            field.dtype,
            codec or specs[schema.frame_paths[key]].codec or "raw",
            **lengths,
        )
        for key, field in schema.frames.items()
    }
    return fields if schema.is_dict else fields[FRAME]
