"""diffusion_policy's replay buffers: a zarr v2 group with ``data/...`` and ``meta/episode_ends``.

All columns are observations, except ``action``, ``reward``, ``terminal`` and ``extra.…``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.columns import Column, PerEpisode, Unreadable, blocks
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import check_at_once
from mmreplay.exchange.tables import Incoming, Tables
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.exchange.zarr2_files import Zarr2Column, Zarr2Files
from mmreplay.ids import Array

_EXTRA = "extra."
_ROLES = {"action": "actions", "reward": "rewards", "terminal": "terminations"}
_DATA, _ENDS = "data/", "meta/episode_ends"
_END_BYTES = 64
"""About the memory that an end takes while all of them are read and checked."""


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A directory, or a .zip of one."""
    with ExitStack() as stack:
        files = Zarr2Files(source, stack)
        arrays = files.arrays(losses)
        names = [one.removeprefix(_DATA) for one in arrays if one.startswith(_DATA)]
        others = [one for one in arrays if not one.startswith(_DATA) and one != _ENDS]
        losses.add_names("arrays outside of data", others)
        ends = _episode_ends(files, losses)
        if "action" not in names or not len(ends):
            raise FormatError(f"{source}: expected data/action and an episode, found {names}")
        seen = [one for one in names if one not in _ROLES and not one.startswith(_EXTRA)]
        n_rows, n_after = int(ends[-1]), 0
        columns: dict[str, Column] = {}
        called: dict[str, str] = {}
        for name in names:
            role = _ROLES.get(name, f"extras/{name.removeprefix(_EXTRA)}")
            if name in seen:
                role = "observations" if len(seen) == 1 else f"observations/{name}"
            columns[role] = column = _column(files, name)
            called[role] = _DATA + name
            if isinstance(column, Zarr2Column):
                if column.shape[0] < n_rows:
                    raise FormatError(f"{source}: {name}: {column.shape[0]:,} rows, of {n_rows:,}")
                n_after = max(n_after, column.shape[0] - n_rows)
                column.shape = (n_rows, *column.shape[1:])
        losses.add("rows after the last end: they belong to no episode, left out", n_after)
        columns["episode"] = PerEpisode(np.arange(len(ends)), ends)
        tables = Tables(
            columns, source, losses, final_observation, needs_rewards=False, called=called
        )
        used = {name: columns[name] for name in tables.used}
        n_bytes = sum(getattr(one, "chunk_bytes", 0) for one in used.values())
        check_at_once(n_bytes, f"{source}: the chunks of all columns")
        yield tables.incoming(blocks(used, n_rows))


def _column(files: Zarr2Files, name: str) -> Column:
    try:
        return Zarr2Column(files, _DATA + name)
    except (FormatError, LookupError, TypeError, ValueError) as error:
        return Unreadable(f"cannot be read: {error!s:.300}")


def _episode_ends(files: Zarr2Files, losses: Losses) -> Array:
    column = Zarr2Column(files, _ENDS)
    where = f"{files.source}: {_ENDS}"
    check_at_once(column.shape[0] * _END_BYTES, where)
    ends = column.read(0, column.shape[0])
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    if ends.dtype.kind not in "iu" or (lengths < 0).any():
        raise FormatError(
            f"{where}: expected the rows at which episodes end, ascending, found {ends!r:.80}"
        )
    losses.add("episodes without a step: left out", int((lengths == 0).sum()))
    return ends[lengths > 0]
