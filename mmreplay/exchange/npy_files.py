"""Arrays in numpy's own format, written a block of rows at a time, alone or in a zip.

Invariant: the header says how many rows there will be, and closing checks that there are as many.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from mmreplay.ids import Array

__all__ = ["NpyFiles", "header_of", "zip_members"]

_COPY_BYTES = 1 << 20


class NpyFiles:
    """Files of arrays below a directory, by name; a context manager.

    Args:
        folder: made here.
        columns: shape, the number of rows first, and dtype of each, by name; a name with a slash
            lies in a directory.
    """

    def __init__(self, folder: Path, columns: Mapping[str, tuple[tuple[int, ...], Any]]) -> None:
        self._folder, self._columns = folder, dict(columns)
        self._rows = dict.fromkeys(columns, 0)
        self._stack = ExitStack()
        self._files: dict[str, Any] = {}

    def __enter__(self) -> Self:
        for name, (shape, dtype) in self._columns.items():
            path = self._folder / f"{name}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self._stack.enter_context(path.open("xb"))
            file.write(header_of(shape, dtype))
            self._files[name] = file
        return self

    def append(self, name: str, rows: Array) -> None:
        """Add rows of the column's dtype."""
        if rows.size:
            self._files[name].write(np.ascontiguousarray(rows).data.cast("B"))
        self._rows[name] += len(rows)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        wrong = {n: r for n, r in self._rows.items() if r != self._columns[n][0][0]}
        if kind is None and wrong:
            raise RuntimeError(f"{self._folder}: rows written {wrong}, of {self._columns}")


def header_of(shape: tuple[int, ...], dtype: Any) -> bytes:
    """What stands before the rows of an array."""
    about = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, about)
    return out.getvalue()


def zip_members(folder: Path, target: Path, *, compressed: bool) -> None:
    """Put the files of a folder into a zip, and remove them."""
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
