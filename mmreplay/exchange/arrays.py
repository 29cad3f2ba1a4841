"""Plain arrays: a .npz file, a directory of .npy files, or a mapping in memory.

One row per step, in the order of time: ``observations``, ``actions``, ``rewards``,
``terminations`` and ``truncations``; dict observations are ``observations/KEY``.
``final_observations`` has a row per end of an episode, or each row has its ``next_observations``.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.exchange.columns import Column, NpyColumn, blocks, columns_of
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import check_member, open_file
from mmreplay.exchange.steps import Frames, Incoming
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.tables import Block, Tables, table_rows, table_shapes
from mmreplay.exchange.transitions import FinalObservation

__all__ = ["open_columns", "read", "read_columns", "write"]

_COPY_BYTES = 1 << 20


@contextmanager
def read(
    source: Path | Mapping[str, Any],
    losses: Losses,
    *,
    final_observation: FinalObservation = "repeat",
) -> Iterator[Incoming]:
    """See the module's docstring."""
    where = source if isinstance(source, Path) else "src"
    with open_columns(source) as columns:
        yield read_columns(columns, where, losses, final_observation)


@contextmanager
def open_columns(source: Path | Mapping[str, Any]) -> Iterator[dict[str, Column]]:
    """The columns of files or of a mapping; raises SchemaError for anything else."""
    with ExitStack() as stack:
        if isinstance(source, Path):
            yield {name: one for name, one in _files(source, stack) if one.shape}
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
    tables = Tables(columns, where, losses, missing)
    final = {key: columns[name] for key, name in tables.frame_columns("final_observations").items()}

    def final_rows(_block: Block, start: int, stop: int) -> Frames:
        return {key: column.read(start, stop) for key, column in final.items()}

    used = {name: columns[name] for name in tables.used}
    return tables.incoming(blocks(used, tables.n_rows), final_rows if final else None)


def _files(source: Path, stack: ExitStack) -> Iterator[tuple[str, Column]]:
    if source.is_dir():
        for path in sorted(source.rglob("*.npy")):
            name = path.relative_to(source).with_suffix("").as_posix()
            yield name, NpyColumn(stack.enter_context(open_file(path)), str(path))
        return
    archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_file(source))))
    for about in archive.infolist():
        name = about.filename
        if name.endswith(".npy"):
            check_member(about, source)
            stream = stack.enter_context(archive.open(name))
            yield name.removesuffix(".npy"), NpyColumn(stream, f"{source}: {name}")


def write(stored: Stored, target: Path, losses: Losses, *, compressed: bool = False) -> None:
    """A zip if `target` ends in .npz, else a directory; see the module's docstring."""
    is_zip = target.suffix == ".npz"
    folder = target.with_name(f"{target.name}-columns") if is_zip else target
    with ExitStack() as stack:
        files = {}
        for name, (shape, dtype) in table_shapes(stored).items():
            path = folder / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            files[name] = stack.enter_context(path.open("xb"))
            files[name].write(_header(shape, dtype))
        for run in stored.runs():
            for name, rows in table_rows(run, is_dict=stored.schema.is_dict).items():
                if rows.size:
                    files[name].write(np.ascontiguousarray(rows).data.cast("B"))
    if is_zip:
        _zip_and_remove(folder, target, compressed=compressed)
    elif compressed:
        losses.add("compression: of .npz files only")


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    descr = np.lib.format.dtype_to_descr(dtype)
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return out.getvalue()


def _zip_and_remove(folder: Path, target: Path, *, compressed: bool) -> None:
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(target, "x", kind) as archive:
        for path in sorted(folder.rglob("*.npy")):
            about = zipfile.ZipInfo(path.relative_to(folder).as_posix())
            about.compress_type = kind
            about.file_size = path.stat().st_size
            with path.open("rb") as file, archive.open(about, "w") as member:
                shutil.copyfileobj(file, member, _COPY_BYTES)
            path.unlink()
    shutil.rmtree(folder)
