"""Episodes as an Arrow table, which DuckDB, Polars and others read as it is; needs pyarrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError
from mmreplay.format.episode_fields import STARTED
from mmreplay.ids import LANE_SHIFT, Array


def arrow_table(episodes: npt.NDArray[np.void]) -> Any:
    """A table of episodes with their environments as a `pyarrow.Table`; see `Store`."""
    try:
        import pyarrow as pa  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise MissingExtraError(
            'a table of episodes needs pyarrow: pip install "mmreplay[exchange]"'
        ) from error
    names = episodes.dtype.names or ()
    columns = {"id": episodes["id"], "lane": episodes["id"] >> LANE_SHIFT, "env": episodes["env"]}
    columns |= {name: episodes[name] for name in names if name not in columns}
    arrays = {name: _arrow(pa, np.ascontiguousarray(one)) for name, one in columns.items()}
    if STARTED in arrays:
        missing = columns[STARTED] == 0
        arrays[STARTED] = pa.array(columns[STARTED], pa.timestamp("ns", "UTC"), mask=missing)
    return pa.table(arrays)


def _arrow(pa: Any, rows: Array) -> Any:
    """Rows, (n, ...), as an array of Arrow: lists of a fixed length for each further axis."""
    if rows.dtype.kind == "U":
        return pa.array(rows.tolist(), pa.string())
    flat = rows.reshape(-1)
    if rows.dtype == np.float16:  # which few engines read
        flat = flat.astype(np.float32)
    out = pa.array(flat)
    for size in reversed(rows.shape[1:]):
        out = pa.FixedSizeListArray.from_arrays(out, size)
    return out
