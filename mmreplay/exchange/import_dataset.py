"""`import_dataset`: a foreign dataset as a closed store.

Invariant: the store has its name only when it is whole and durable; the source is only read, and
nothing in it is unpickled.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import (
    FormatError,
    MmreplayError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from mmreplay.exchange.formats import checked_options, named
from mmreplay.exchange.losses import Loss, Losses
from mmreplay.exchange.steps import Incoming, Steps, frame_dict
from mmreplay.ids import Array
from mmreplay.maintenance.episodes import row_bytes, write_runs
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Field, Schema
from mmreplay.storage.lane_metadata import store_around
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.limits import check_limit
from mmreplay.system.staging import staging_directory
from mmreplay.writing.create import create

__all__ = ["Imported", "import_dataset"]

_OF_READING = (
    OSError,
    ValueError,  # those of pyarrow are, too
    LookupError,
    TypeError,
    AttributeError,  # of JSON that is a list where it should be an object
    EOFError,
    RuntimeError,  # of h5py
    zlib.error,
    zipfile.BadZipFile,
    struct.error,
)
"""What libraries raise for a file that is not what it should be."""


@dataclasses.dataclass(frozen=True, slots=True)
class Imported:
    """What an import made.

    Attributes:
        path: the new store.
        format: of the source.
        transitions: that can be sampled.
        episodes: whole ones.
        terminated: of them.
        truncated: of them.
        bytes_on_disk: of the new store.
        losses: what could not be carried over as it was.
    """

    path: str
    format: str
    transitions: int
    episodes: int
    terminated: int
    truncated: int
    bytes_on_disk: int
    losses: tuple[Loss, ...]

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return dataclasses.asdict(self) | {"losses": [one.to_json() for one in self.losses]}


def import_dataset(
    format: str,
    src: Any,
    dst: str | os.PathLike[str],
    *,
    codec: Any = None,
    finite: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Imported:
    """Make a closed store of a dataset that another library wrote.

    Args:
        format: one of `exchange_formats`.
        src: a file or directory; of ``arrays`` also a mapping of arrays by name.
        dst: a directory that does not exist yet.
        codec: of frames, as for `create`.
        finite: whether a NaN or an infinity among floats is refused, as for `create`.
        progress: called with bytes of rows that are done and those in all, uncompressed, as
            far as the source says how many there are.
        options: of the format; see docs/exchange.md.

    Raises:
        SchemaError: no such format or option, or the target lies within a store; `finite`, and a
            value is not. It names its column and step.
        StoreNotFoundError: nothing at `src`, or no directory above the target.
        StoreExistsError: the target exists.
        FormatError: the source is not of that format, or holds what no store can.
        MissingExtraError: a library that reads the format is not installed.
        DiskFullError, FailedStoreError: as of `create`, or a limit of open files or memory was
            reached; nothing is left behind.
    """
    chosen = named(format)
    if chosen.read is None:
        raise SchemaError(f"{format}: can be exported to, and not imported from")
    checked = checked_options(chosen.read, options, format)
    source: Any = src
    if not (chosen.takes_arrays and not isinstance(src, (str, os.PathLike))):
        source = user_paths.absolute_path(src, "src")
        if not os.path.lexists(source):
            raise StoreNotFoundError(f"{source}: there is no such file or directory")
    where = user_paths.path_to_create(dst, "dst")
    if os.path.lexists(where):
        raise StoreExistsError(f"{where}: there is something already; choose another path")
    user_paths.check_parent(where)
    if (store := store_around(where)) is not None:
        raise SchemaError(f"{where}: lies within the store {store}; choose another path")
    losses = Losses()
    what = source if isinstance(source, Path) else "src"
    with (
        _reading(chosen.read(source, losses, **checked), what, format) as incoming,
        staging_directory(where) as folder,
    ):
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
            finite=finite,
        )
        writer.close()
        steps = _checked(incoming, what, format)
        if finite:
            steps = _finite(steps, what)
        _write(built, writer.schema, steps, incoming.n_steps, losses, progress)
        with Store([built]) as store_made:
            made = _describe(user_paths.as_path(dst), format, store_made, losses)
        if not durable_writes.replace_directory(folder / where.name, folder.with_name(where.name)):
            raise StoreExistsError(f"{where}: somebody else made it at this moment")
    return made


@contextmanager
def _reading(
    opened: AbstractContextManager[Incoming], source: object, name: str
) -> Iterator[Incoming]:
    """The opened source; errors of opening it as FormatError."""
    try:
        incoming = opened.__enter__()
    except MmreplayError:
        raise
    except _OF_READING as error:
        raise _unreadable(source, name, error) from error
    try:
        yield incoming
    finally:
        opened.__exit__(None, None, None)


def _checked(incoming: Incoming, source: object, name: str) -> Iterator[Steps]:
    """The steps; errors of reading them, and what does not fit together, as FormatError."""
    runs, fields = iter(incoming.steps), {"actions": incoming.action, **incoming.extras}
    frames = frame_dict(incoming.frame)
    while True:
        try:
            run = next(runs, None)
        except MmreplayError:
            raise
        except _OF_READING as error:
            raise _unreadable(source, name, error) from error
        if run is None:
            return
        columns = {"actions": run.action, **run.extras}
        for key, one in fields.items():
            _check_rows(columns[key], len(run), one, f"{source}: {key}")
        for key, one in frames.items():
            what = f"{source}: observations{'' if key == FRAME else f' {key}'}"
            _check_rows(run.observation[key], len(run) + 1, one, what)
        yield run


def _check_rows(rows: Array, n: int, expected: Field, what: str) -> None:
    """Raise FormatError unless there are n rows of a field, in each run as in the first."""
    if rows.shape != (n, *expected.shape) or not np.can_cast(rows.dtype, expected.dtype):
        raise FormatError(
            f"{what}: expected {n:,} rows of {expected.shape} {expected.dtype}, as in the first "
            f"episode, found {rows.shape} {rows.dtype}; write all episodes alike"
        )


def _finite(steps: Iterable[Steps], source: object) -> Iterator[Steps]:
    """The same steps; a value that is not finite as SchemaError, before its run is written."""
    n_before = 0
    for run in steps:
        columns = {"reward": run.reward, "action": run.action, **run.extras}
        for key, frames in run.observation.items():
            columns["observation" if key == FRAME else f"observation[{key!r}]"] = frames
        for name, values in columns.items():
            if values.dtype.kind == "f" and not (good := np.isfinite(values)).all():
                row, *at = np.argwhere(~good)[0].tolist()
                which = f"of step {n_before + row:,}"
                if row == len(run):  # of observations there is one more
                    which = f"after step {n_before + row - 1:,}"
                raise SchemaError(
                    f"{source}: {name} {which}{f', at {at}' if at else ''}: expected finite "
                    f"numbers, found {values[row, *at]} (steps are counted from 0, as they are "
                    f"imported); mend the source, or import it without finite"
                )
        n_before += len(run)
        yield run


def _unreadable(source: object, name: str, error: BaseException) -> FormatError:
    """What to raise for it; raises ReachedLimitError itself if it was a limit of this process."""
    if isinstance(error, OSError):
        check_limit(error, source)
    if isinstance(error, NotADirectoryError):
        why = "expected a directory, found a file"
    elif isinstance(error, IsADirectoryError):
        why = "expected a file, found a directory"
    else:
        why = f"{type(error).__name__}: {error!s:.300}"
    return FormatError(
        f"{source}: cannot be read as {name}: {why}; see `mmreplay import --help` for the formats"
    )


def _write(
    built: Path,
    schema: Schema,
    steps: Iterator[Steps],
    n_expected: int,
    losses: Losses,
    progress: Callable[[int, int], None] | None,
) -> None:
    dtype, size, n_done = schema.reward_dtype, row_bytes(schema), 0

    def rounded() -> Iterator[Steps]:
        for run in steps:
            with np.errstate(over="ignore"):  # it becomes infinite, as in `step`
                reward = run.reward.astype(dtype)
            losses.add(*_rounded(run.reward, reward))
            yield dataclasses.replace(run, reward=reward)

    def wrote(n_steps: int) -> None:
        nonlocal n_done
        n_done += n_steps
        if progress is not None:
            progress(n_done * size, max(n_expected, n_done) * size)

    write_runs(built, rounded(), os.cpu_count() or 1, wrote)


def _rounded(given: Array, stored: Array) -> tuple[str, int]:
    """How many rewards are another number in a store, and a word on it."""
    n_rounded = 0
    if given.dtype != stored.dtype:
        # Python compares whole numbers with floats exactly, which numpy does not; a NaN stays one.
        pairs = zip(given.tolist(), stored.tolist(), strict=True)
        n_rounded = sum(a != b and a == a for a, b in pairs)  # noqa: PLR0124
    return f"rewards of {given.dtype} that {stored.dtype} does not hold exactly: rounded", n_rounded


def _describe(where: Path, name: str, store: Store, losses: Losses) -> Imported:
    episodes = store.episodes
    return Imported(
        str(where),
        name,
        len(store),
        len(episodes),
        int(episodes["terminated"].sum()),
        int(episodes["truncated"].sum()),
        sum(checked_reads.allocated_bytes(store.path).values()),
        losses.all(),
    )
