"""Plain arrays: a .npz file, a directory of .npy files, or a mapping in memory; OGBench's files.

One row per step, in the order of time: ``observations``, ``actions``, ``rewards``,
``terminations`` and ``truncations``; dict observations are ``observations/KEY``.
``final_observations`` has a row per end of an episode, or each row has its ``next_observations``.
"""

from __future__ import annotations

import dataclasses
import shutil
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from mmreplay.batches.runs import BLOCK_BYTES, Steps
from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.columns import (
    Column,
    NpyColumn,
    Part,
    RowShape,
    Shape,
    Unreadable,
    blocks,
    columns_of,
)
from mmreplay.exchange.fields import flags, has_values
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import (
    add_other_files,
    check_member,
    files_named,
    open_file,
    source_files,
)
from mmreplay.exchange.stored import Stored, table_rows, table_shapes
from mmreplay.exchange.tables import Block, Incoming, Tables
from mmreplay.exchange.transitions import FinalObservation

_SUFFIX = ".npy"
_archives = files_named(".npz")


def episode_files(folder: Path, losses: Losses) -> list[Path]:
    """The .npz files of a folder, unless it has .npy files, one per column."""
    is_table = any(name.endswith(_SUFFIX) for name in source_files(folder))
    return [] if is_table else _archives(folder, losses)


@contextmanager
def read(
    source: Path | Mapping[str, Any],
    losses: Losses,
    *,
    final_observation: FinalObservation = "repeat",
) -> Iterator[Incoming]:
    """See the module's docstring."""
    where = source if isinstance(source, Path) else "src"
    with open_columns(source, losses) as columns:
        yield read_columns(columns, where, losses, final_observation)


@contextmanager
def open_columns(source: Path | Mapping[str, Any], losses: Losses) -> Iterator[dict[str, Column]]:
    """The columns of files or of a mapping; raises SchemaError for anything else."""
    with ExitStack() as stack:
        if isinstance(source, Path):
            yield dict(_files(source, losses, stack))
        elif isinstance(source, Mapping):
            yield columns_of(source)
        else:
            raise SchemaError(
                f"src: expected a path or a mapping of arrays, found {type(source).__name__}"
            )


def read_columns(
    columns: Mapping[str, Column],
    where: object,
    losses: Losses,
    missing: FinalObservation,
) -> Incoming:
    """Columns by name as a dataset; raises FormatError if they do not fit together."""
    tables, given = Tables(columns, where, losses, missing), columns
    final = {key: columns[name] for key, name in tables.frames["final_observations"].items()}
    if tables.has_last_row:
        for key, name in tables.frames["observations"].items():
            final[key] = Part(columns[name], tables.n_rows, 1)
            columns = {**columns, name: Part(columns[name], 0, tables.n_rows)}
    rows = blocks({name: columns[name] for name in tables.used}, tables.n_rows)
    incoming = tables.incoming(rows, final)
    used = (*tables.used, *tables.frames["final_observations"].values())
    return _to_the_end(incoming, {name: given[name] for name in used})


def _to_the_end(incoming: Incoming, columns: Mapping[str, Column]) -> Incoming:
    """The same, with a check afterwards that no array has more rows than its header says."""

    def steps() -> Iterator[Steps]:
        yield from incoming.steps
        for column in columns.values():
            if isinstance(column, NpyColumn):
                column.finish()

    return dataclasses.replace(incoming, steps=steps())


def _files(source: Path, losses: Losses, stack: ExitStack) -> Iterator[tuple[str, Column]]:
    if source.is_dir():
        add_other_files(source, lambda name: name.endswith(_SUFFIX), losses)
        for name in source_files(source):
            if name.endswith(_SUFFIX):
                file = stack.enter_context(open_file(source / name))
                yield name.removesuffix(_SUFFIX), _column(file, str(source / name))
        return
    archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_file(source))))
    others = [one.filename for one in archive.infolist() if not one.filename.endswith(_SUFFIX)]
    losses.add_names("members that are not arrays", others)
    if twice := [name for name, n in Counter(archive.namelist()).items() if n > 1]:
        raise FormatError(f"{source}: expected one member of each name, found two of {twice[0]!r}")
    for about in archive.infolist():
        name = about.filename
        if name.endswith(_SUFFIX):
            check_member(about, source)
            stream = stack.enter_context(archive.open(name))
            yield name.removesuffix(_SUFFIX), _column(stream, f"{source}: {name}")


def _column(stream: IO[bytes], name: str) -> Column:
    try:
        return NpyColumn(stream, name)
    except FormatError as error:
        return Unreadable(str(error).removeprefix(f"{name}: "))


def write(stored: Stored, target: Path, losses: Losses, *, compressed: bool = False) -> None:
    """A zip if `target` ends in .npz, else a directory; see the module's docstring."""
    is_zip = target.suffix == ".npz"
    folder = target.with_name(f"{target.name}-columns") if is_zip else target
    with ExitStack() as stack:
        files = {}
        shapes = table_shapes(stored)
        for name, (shape, dtype) in shapes.items():
            path = folder / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            files[name] = stack.enter_context(path.open("xb"))
            about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(files[name], about | {"shape": shape})
        for run in stored.runs():
            for name, rows in table_rows(run, is_dict=stored.schema.is_dict).items():
                if rows.size:
                    whole = np.ascontiguousarray(rows, shapes[name][1])  # texts of one length
                    files[name].write(whole.view(np.uint8).data.cast("B"))
    if is_zip:
        how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        with zipfile.ZipFile(target, "x", how) as archive:
            for name in sorted(files):
                path = folder / f"{name}.npy"
                with (
                    path.open("rb") as file,
                    archive.open(f"{name}.npy", "w", force_zip64=True) as out,
                ):
                    shutil.copyfileobj(file, out, BLOCK_BYTES)
                path.unlink()  # so that only one array at a time takes its space twice
        shutil.rmtree(folder)
    elif compressed:
        losses.add("compression: of .npz files only")


_ENDS, _SEEN = "terminals", "observations"


@contextmanager
def read_ogbench(source: Path, losses: Losses) -> Iterator[Incoming]:
    """OGBench's: ``terminals`` marks the last row of a trajectory, its final observation."""
    with open_columns(source, losses) as columns:
        for name in (_ENDS, _SEEN):
            if name not in columns:
                raise FormatError(f"{source}: expected a column {name!r}, found {sorted(columns)}")
        ends = columns.pop(_ENDS)
        made: dict[str, RowShape] = {"truncations": Shape(ends.shape, np.dtype(np.bool_))}
        made["next_observations"] = columns[_SEEN]
        tables = Tables(made | columns, source, losses, "repeat", needs_rewards=False)
        used = {name: columns[name] for name in tables.used if name not in made}
        rows = blocks(used | {_ENDS: ends}, tables.n_rows, source)
        yield _to_the_end(tables.incoming(_steps(rows, losses, source)), used | {_ENDS: ends})


def _steps(rows: Iterator[Block], losses: Losses, source: object) -> Iterator[Block]:
    """Blocks of steps; the last row of a block waits for the next one."""
    held: Block | None = None
    for new in rows:
        block = new
        if held is not None:
            block = {name: np.concatenate((held[name], part)) for name, part in new.items()}
        is_final = flags(block[_ENDS], f"{source}: {_ENDS}")
        held = None if is_final[-1] else {name: part[-1:].copy() for name, part in block.items()}
        for name in sorted(block.keys() - {_ENDS, _SEEN}):
            is_lost = is_final & has_values(block[name])
            losses.add(f"column {name} of final observations: left out", int(is_lost.sum()))
        before = np.flatnonzero(~is_final[:-1])
        ends = is_final[before + 1]
        losses.add("trajectories of one row: they have no step", int(is_final.sum() - ends.sum()))
        steps = {name: part[before] for name, part in block.items()}
        yield steps | {"truncations": ends, "next_observations": block[_SEEN][before + 1]}
