"""`import_dataset`: a foreign dataset as a closed store; `export_dataset`: a store as one.

Invariant: what is made has its name only when it is whole and durable; the source is only read, and
nothing in it is unpickled.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.batches.runs import Steps
from mmreplay.errors import EmptyBufferError, FormatError, SchemaError, StoreExistsError
from mmreplay.exchange.formats import checked_options, named
from mmreplay.exchange.losses import Loss, Losses
from mmreplay.exchange.source_files import (
    check_claim,
    check_row,
    find_sources,
    reading,
    shown,
)
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.tables import ROLES, Incoming
from mmreplay.format.episode_fields import STARTED
from mmreplay.maintenance.episode_runs import row_bytes, write_runs
from mmreplay.maintenance.verify.report import as_json
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Field
from mmreplay.storage.lane_metadata import kept_extras, path_of_new_store
from mmreplay.system import checked_reads, disk_errors, durable_writes, user_paths
from mmreplay.system.staging import staging_directory
from mmreplay.texts import Text
from mmreplay.writing.create import create

_AHEAD = 8  # runs that are read ahead


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        path: the new store.
        format: of the source.
        transitions: number of transitions that can be sampled.
        episodes: number of whole episodes.
        terminated: how many of these terminated.
        truncated: how many of these were truncated.
        bytes_on_disk: of the new store.
        losses: what could not be converted.
    """

    path: str
    format: str
    transitions: int
    episodes: int
    terminated: int
    truncated: int
    bytes_on_disk: int
    losses: tuple[Loss, ...]

    to_json = as_json


def import_dataset(
    format: str,
    src: Any,
    dst: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    leave_out: Sequence[str] | None = None,
    codec: Any = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Imported:
    """Make a closed store of a dataset that another library wrote.

    Args:
        format: one of `exchange_formats`.
        src: a file or directory, or a list or pattern of them, which are read one after the other;
            of ``arrays`` also a mapping of arrays by name, of ``minari`` also the id of a dataset.
        dst: a directory that does not exist yet.
        columns: names of the columns to convert, as in the source, besides actions, rewards and
            ends of episodes; None for all. A group's name includes all below it.
        leave_out: names of columns that are not converted, or read.
        codec: of frames, as for `create`.
        progress: called with the uncompressed bytes of the rows that are done, and of all rows
            if the source says how many there are.
        options: of the format; see docs/exchange.md.

    Raises:
        SchemaError: no such format, option or column, or the target is inside a store.
        StoreNotFoundError: nothing at `src`, or no directory above the target.
        StoreExistsError: the target exists.
        FormatError: the source is not of that format, or has data that a store cannot hold.
        MissingExtraError: a library that reads the format is not installed.
        DiskFullError, FailedStoreError: as of `create`; nothing is left behind.
    """
    chosen = named(format)
    if chosen.read is None:
        raise SchemaError(f"{format}: this format has no import")
    called = None
    if chosen.has_roles:
        called = {role: options.pop(role) for role in ROLES if role in options}
    checked = checked_options(chosen.read, options, format, ROLES if chosen.has_roles else ())
    where = path_of_new_store(dst, "dst").absolute()
    losses = Losses(columns, leave_out, called)
    found = src if chosen.find is None else chosen.find(src)
    sources, source_bytes = find_sources(found, chosen, losses)
    what = shown(sources[0])
    with contextlib.ExitStack() as stack:
        read = functools.partial(chosen.read, losses=losses, **checked)
        with reading(what, format):
            incoming = stack.enter_context(read(sources[0]))
        if len(sources) == 1:
            losses.check_names(what)
        else:
            steps = _one_after_the_other(incoming, sources, read, format)
            incoming = dataclasses.replace(incoming, steps=steps, n_steps=0)
        folder = stack.enter_context(staging_directory(where))
        built = Path(str(folder)) / where.name
        writer = create(
            built,
            incoming.frame,
            incoming.action,
            extras=incoming.extras,
            reward_dtype=incoming.reward_dtype,
            codec=codec,
            metadata=dict(incoming.metadata) | {"imported": {"format": format}},
            flush_s=0,
            episode=incoming.episode,
        )
        stack.callback(writer._release_unclosed)  # noqa: SLF001 (within the package)
        size = row_bytes(writer.schema)
        check_row(size, what)
        check_claim(incoming.n_steps * size, source_bytes, what)
        n_done = 0

        def wrote(n_steps: int) -> None:
            nonlocal n_done
            n_done += n_steps
            check_claim(n_done * size, source_bytes, what)
            if progress is not None:
                progress(n_done * size, max(incoming.n_steps, n_done) * size)

        runs = _rounded(_runs(incoming, what, format), writer.schema.reward_dtype, losses)
        write_runs(writer, _ahead(runs), None, wrote)
        losses.check_names(what)
        with Store([built]) as store_made:
            episodes = store_made.episodes
            made = Imported(
                str(user_paths.as_path(dst)),
                format,
                len(store_made),
                len(episodes),
                int(episodes["terminated"].sum()),
                int(episodes["truncated"].sum()),
                sum(checked_reads.allocated_bytes(store_made.path).values()),
                losses.all(),
            )
        if not durable_writes.replace_directory(folder / where.name, folder.with_name(where.name)):
            raise StoreExistsError(f"{where}: another process created it meanwhile")
    return made


def _runs(incoming: Incoming, source: object, name: str) -> Iterator[Steps]:
    """The steps; raises FormatError for rows that do not match the fields."""
    runs, fields = iter(incoming.steps), _fields_of(incoming)
    while True:
        with reading(source, name):
            run = next(runs, None)
        if run is None:
            return
        columns = {"actions": run.action}
        columns |= {_observation_name(key): rows[:-1] for key, rows in run.observation.items()}
        columns |= {f"column {name}": rows for name, rows in run.extras.items()}
        for what, rows in columns.items():
            (shape, dtype), n = fields[what], len(run)
            if rows.shape != (n, *shape) or not np.can_cast(rows.dtype, dtype):
                raise FormatError(
                    f"{source}: {what}: expected {n:,} rows of {shape} {dtype}, as in the "
                    f"first episode, found {rows.shape} {rows.dtype}; write all episodes in the "
                    f"same way"
                )
        frames = {
            key: rows[:].astype(fields[_observation_name(key)][1], copy=False)
            for key, rows in run.observation.items()
        }
        # Not the time of the import: when the episode began is known only if the source says so.
        yield dataclasses.replace(run, observation=frames, episode={STARTED: 0, **run.episode})


def _one_after_the_other(
    first: Incoming, sources: Sequence[Any], read: Callable[[Any], Any], name: str
) -> Iterator[Steps]:
    """The steps of several sources; raises FormatError unless they have the same fields."""
    yield from first.steps
    expected = _fields_of(first)
    for source in sources[1:]:
        with reading(shown(source), name), read(source) as incoming:
            found = _fields_of(incoming)
            for what in sorted(expected.keys() | found.keys()):
                one, other = expected.get(what), found.get(what)
                if not one or not other or one[0] != other[0] or not np.can_cast(other[1], one[1]):
                    kinds = ("nothing" if it is None else f"{it[1]} {it[0]}" for it in (one, other))
                    raise FormatError(
                        f"{shown(source)}: {what}: expected {next(kinds)}, as in "
                        f"{shown(sources[0])}, found {next(kinds)}; import it alone, or choose "
                        f"columns"
                    )
            yield from incoming.steps


def _fields_of(incoming: Incoming) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of a dataset's columns by what they are; texts may be of any length."""
    fields: dict[str, Any] = {"actions": incoming.action}
    fields |= {_observation_name(key): one for key, one in incoming.frames.items()}
    fields |= {f"column {name}": one for name, one in incoming.extras.items()}
    fields |= {f"field {name} of episodes": one for name, one in incoming.episode.items()}
    fields["rewards"] = Field((), incoming.reward_dtype)
    return {
        name: (() if isinstance(one, Text) else one.shape, np.dtype(one.dtype))
        for name, one in fields.items()
    }


def _observation_name(key: str) -> str:
    """What an observation is called in messages."""
    return "observations" if key == FRAME else f"observations {key}"


def _rounded(steps: Iterator[Steps], dtype: np.dtype[Any], losses: Losses) -> Iterator[Steps]:
    """The same steps with rewards of the store's dtype; counts those that this rounds."""
    for n_runs, run in enumerate(steps):
        given = run.reward
        with np.errstate(over="ignore"):  # becomes infinite, as in `step`
            stored = given.astype(dtype)
        n_rounded = 0
        if given.dtype != dtype:
            losses.add(f"the dtype of rewards: {given.dtype}, stored as {dtype}", n_runs == 0)
            # Python compares integers with floats exactly, unlike numpy; a NaN is not a loss.
            pairs = zip(given.tolist(), stored.tolist(), strict=True)
            n_rounded = sum(a != b and a == a for a, b in pairs)  # noqa: PLR0124
        what = f"rewards of {given.dtype} that {dtype} does not hold exactly: rounded"
        losses.add(what, n_rounded)
        yield dataclasses.replace(run, reward=stored)


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the file or directory.
        format: of it.
        transitions: number of exported transitions.
        episodes: number of their episodes.
        bytes_on_disk: of what was written.
        losses: what could not be converted.
    """

    path: str
    format: str
    transitions: int
    episodes: int
    bytes_on_disk: int
    losses: tuple[Loss, ...]

    to_json = as_json


def export_dataset(
    src: str | os.PathLike[str],
    format: str,
    dst: str | os.PathLike[str],
    *,
    leave_out: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Exported:
    """Write all episodes of a store as a dataset of another library.

    A live store is exported as it was at one moment. If a capacity may evict its steps before they
    are read (InvalidIdError), `snapshot` the store first.

    Args:
        src: the store: closed, live or left by a crash.
        format: one of `exchange_formats`.
        dst: a file or directory, depending on the format, that does not exist yet; of ``minari``
            also the id of a dataset.
        leave_out: names of extra columns, derived ones too, that are not written.
        progress: called with the uncompressed bytes of the rows that are done, and of all rows.
        options: of the format; see docs/exchange.md.

    Raises:
        SchemaError: no such format or option, or rows that the format cannot hold.
        StoreNotFoundError, FormatError, CorruptStoreError, EmptyBufferError: there is no store, a
            damaged one, or one without an episode.
        StoreExistsError: the target exists.
        MissingExtraError: a library that writes the format is not installed.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing is left behind.
    """
    chosen = named(format, to_export=True)
    if chosen.write is None:
        raise SchemaError(f"{format}: this format has no export")
    checked = checked_options(chosen.write, options, format)
    source = user_paths.absolute_path(src, "src")
    losses = Losses()
    with contextlib.ExitStack() as stack:
        if chosen.place is not None:
            dst = stack.enter_context(chosen.place(dst, checked))
        where = path_of_new_store(dst, "dst").absolute()
        columns = kept_extras([source], leave_out)
        store = stack.enter_context(Store([source], columns=columns))
        stored = Stored(store, losses, progress)
        if not stored.n_steps:
            raise EmptyBufferError(f"{source}: nothing to export: no whole episode")
        with staging_directory(where) as folder:
            built = folder / where.name
            with disk_errors.writing(f"exporting to {format}", built):
                chosen.write(stored, Path(str(built)), losses, **checked)
            durable_writes.sync_tree(folder)
            if built.is_dir():
                is_free = durable_writes.replace_directory(built, folder.with_name(where.name))
            elif is_free := not os.path.lexists(where):
                durable_writes.rename(built, folder.with_name(where.name))
                durable_writes.sync_directory(folder.parent)
            if not is_free:
                raise StoreExistsError(f"{where}: another process created it meanwhile")
    n_bytes = where.stat().st_blocks * 512
    if where.is_dir():
        n_bytes = sum(checked_reads.allocated_bytes(where).values())
    return Exported(
        str(user_paths.as_path(dst)),
        format,
        stored.n_steps,
        stored.n_episodes,
        n_bytes,
        losses.all(),
    )


def _ahead(runs: Iterable[Steps]) -> Iterator[Steps]:
    """The same runs, read ahead in a thread."""
    source, pool = iter(runs), concurrent.futures.ThreadPoolExecutor(1, "mmreplay-read")
    try:
        coming = collections.deque(pool.submit(next, source, None) for _ in range(_AHEAD))
        while (run := coming.popleft().result()) is not None:
            coming.append(pool.submit(next, source, None))
            yield run
    finally:
        pool.shutdown(cancel_futures=True)
