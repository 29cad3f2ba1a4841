"""Arrow files, and Arrow arrays to numpy and back: numbers, fixed lists, and frames as bytes.

Invariant: a row that is missing, or of another length than the others, is refused, not filled in.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import checked_name
from mmreplay.ids import Array

KEY = b"mmreplay"
"""In a field's metadata: shape and dtype of its rows, as JSON."""

_IMAGE_NDIM = 2
_MAGIC = b"ARROW1\0\0"
_HEADER, _COMPRESSION = 2, 3
"""Fields of a message, and of a record batch."""


def arrow_table(path: Path) -> Any:
    """The table of an Arrow file.

    Raises FormatError for compression and dictionaries, which take any amount of memory, and for
    offsets of lists outside their data, which would end the process.
    """
    pa = need("pyarrow")
    with pa.memory_map(checked_name(path)) as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise FormatError(f"{path}: expected an Arrow file")
        # The messages in their order: a footer may lead anywhere.
        while (message := _next_message(file)) is not None:
            if message.type == "dictionary" or _is_compressed(message):
                raise FormatError(
                    f"{path}: compressed, or with dictionaries; write it without, as Minari does"
                )
        file.seek(len(_MAGIC))
        table = pa.ipc.open_stream(file).read_all()
    table.validate(full=True)
    return table


def _next_message(file: Any) -> Any:
    try:
        return need("pyarrow").ipc.read_message(file)
    except EOFError:
        return None


def _is_compressed(message: Any) -> bool:
    """Source: apache/arrow, format/Message.fbs; FlatBuffers' tables."""
    data = message.metadata.to_pybytes()

    def slot(table: int, number: int) -> int:
        """The position of a field of a table; 0 if it is missing."""
        fields = table - int.from_bytes(data[table : table + 4], "little", signed=True)
        n_bytes = int.from_bytes(data[fields : fields + 2], "little")
        at = fields + 4 + 2 * number
        offset = int.from_bytes(data[at : at + 2], "little") if 4 + 2 * number < n_bytes else 0
        return table + offset if offset else 0

    def follow(at: int) -> int:
        return at + int.from_bytes(data[at : at + 4], "little")

    batch = slot(follow(0), _HEADER)
    return message.type == "record batch" and batch > 0 and slot(follow(batch), _COMPRESSION) > 0


def to_arrow(rows: Array) -> Any:
    """Rows (n, *shape) as an arrow array: of numbers, of lists, or of bytes if they are images."""
    pa = need("pyarrow")
    n, shape = len(rows), rows.shape[1:]
    if not shape:
        return pa.array(rows)
    if rows.dtype == np.uint8 and len(shape) >= _IMAGE_NDIM:
        kind = pa.binary(math.prod(shape))
        buffer = pa.py_buffer(np.ascontiguousarray(rows))
        return pa.Array.from_buffers(kind, n, [None, buffer])
    flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, math.prod(shape))


def arrow_field(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """The field of such a column, with shape and dtype in its metadata."""
    pa = need("pyarrow")
    about = json.dumps({"shape": list(shape), "dtype": np.dtype(dtype).name})
    kind = to_arrow(np.zeros((0, *shape), dtype)).type
    return pa.field(name, kind, metadata={KEY: about.encode()})


def shape_of(field: Any, first: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and dtype of the rows of a column, from its metadata, or from `first`, some rows.

    None if they are not numeric.
    """
    about = (field.metadata or {}).get(KEY)
    if about is not None:
        given = json.loads(about)
        return tuple(given["shape"]), np.dtype(given["dtype"])
    pa = need("pyarrow")
    kind, shape, first = field.type, [], first.drop_null()
    while pa.types.is_nested(kind):
        if not hasattr(kind, "value_type"):
            return None
        if pa.types.is_fixed_size_list(kind):
            length = kind.list_size
        else:
            length = len(first[0]) if len(first) else 0
        shape.append(length)
        first, kind = first.flatten().drop_null(), kind.value_type
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return None
    return tuple(shape), dtype


def from_arrow(array: Any, shape: tuple[int, ...], dtype: Any, name: str) -> Array:
    """Rows (n, *shape) of an arrow array.

    Raises FormatError if one is missing, of another shape, or does not fit the dtype.
    """
    pa, n = need("pyarrow"), len(array)
    kind = array.type
    if pa.types.is_fixed_size_binary(kind):
        _check_whole(array, name)
        data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * kind.byte_width :]
        rows: Array = data[: n * kind.byte_width].view(dtype).reshape(n, *shape)
        return rows
    levels = 0
    while pa.types.is_nested(kind):
        levels, kind = levels + 1, kind.value_type
    lengths = shape if levels == len(shape) else (math.prod(shape),) * levels  # flat lists
    for length in lengths:
        _check_whole(array, name)
        found = need("pyarrow.compute").list_value_length(array).to_numpy()
        if (wrong := np.flatnonzero(found != length)).size:
            raise FormatError(
                f"{name}: expected rows of shape {shape}, found {len(wrong):,} lists without "
                f"{length:,} values, the first with {found[wrong[0]]:,}"
            )
        array = array.flatten()
    _check_whole(array, name)
    values = np.asarray(array.to_numpy(zero_copy_only=False))
    if not np.can_cast(values.dtype, dtype):
        raise FormatError(
            f"{name}: expected {np.dtype(dtype)}, found {values.dtype}; write this column with one "
            f"type in all files and in their metadata"
        )
    out: Array = values.astype(dtype, copy=False).reshape(n, *shape)
    return out


def _check_whole(array: Any, name: str) -> None:
    if array.null_count:
        raise FormatError(f"{name}: {array.null_count:,} values are missing; fill them in first")
