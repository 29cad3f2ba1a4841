"""diffusion_policy's replay buffers: a zarr v2 group with ``data/…`` and ``meta/episode_ends``.

Only the column ``action`` has a fixed name: all others are observations, unless the option
`observations` names them. There are no rewards and no flags, except in our own exports, which have
``reward``, ``terminal`` and ``extra.…``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.columns import ArrayColumn, Column, blocks
from mmreplay.exchange.fields import check_key, check_names, need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import check_at_once
from mmreplay.exchange.steps import BLOCK_BYTES, Incoming
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.tables import Tables
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.exchange.zarr2_files import Zarr2Column, Zarr2Files
from mmreplay.ids import Array
from mmreplay.schema import Field

__all__ = ["read", "write"]

_EXTRA = "extra."
_MOST_ROWS = 65_536
_ROLES = {"action": "actions", "reward": "rewards", "terminal": "terminations"}


@contextmanager
def read(
    source: Path,
    losses: Losses,
    *,
    observations: str | Sequence[str] | None = None,
    final_observation: FinalObservation = "repeat",
) -> Iterator[Incoming]:
    """A directory, or a .zip of one; `observations` is the name of a column, or several names."""
    with ExitStack() as stack:
        files = Zarr2Files(source, stack)
        names = files.arrays("data")
        ends = _episode_ends(files)
        if "action" not in names or not len(ends):
            raise FormatError(f"{source}: expected data/action and an episode, found {names}")
        chosen = [one for one in names if not _is_own(one)]
        if observations is not None:
            chosen = [observations] if isinstance(observations, str) else list(observations)
        for name in chosen:
            if name not in names or name in _ROLES:
                raise FormatError(
                    f"{source}: no column {name!r} of observations: there are {names}"
                )
        columns: dict[str, Column] = {}
        chunk_bytes, n_rows = 0, int(ends[-1])
        for name in names:
            role = _ROLES.get(name, f"extras/{name.removeprefix(_EXTRA)}")
            if name in chosen:
                role = "observations" if len(chosen) == 1 else f"observations/{name}"
            try:
                column = Zarr2Column(files, f"data/{name}")
            except FormatError as error:
                if not role.startswith("extras/"):
                    raise
                losses.add(f"column {name}, which cannot be read: {error!s:.300}")
                continue
            if column.shape[0] < n_rows:
                raise FormatError(f"{source}: {name}: {column.shape[0]:,} rows, of {n_rows:,}")
            column.shape = (n_rows, *column.shape[1:])
            columns[role] = column
            chunk_bytes += column.chunk_bytes
        check_at_once(chunk_bytes, f"{source}: the chunks of all columns")
        columns["episode"] = _EpisodeNumbers(ends)
        tables = Tables(columns, source, losses, final_observation, needs_rewards=False)
        yield tables.incoming(blocks({name: columns[name] for name in tables.used}, n_rows))


def _episode_ends(files: Zarr2Files) -> Array:
    column = Zarr2Column(files, "meta/episode_ends")
    where = f"{files.source}: meta/episode_ends"
    check_at_once(column.shape[0] * column.dtype.itemsize, where)
    ends = column.read(0, column.shape[0])
    if ends.dtype.kind not in "iu" or (np.diff(ends.astype(np.int64), prepend=0) < 0).any():
        raise FormatError(
            f"{where}: expected the rows at which episodes end, ascending, found {ends!r:.80}"
        )
    return ends


class _EpisodeNumbers(ArrayColumn):
    """The number of the episode of each row."""

    def __init__(self, ends: Array) -> None:
        self.shape, self.dtype = (int(ends[-1]),), np.dtype("int64")
        self._ends = ends

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return np.asarray(self._ends.searchsorted(np.arange(start, stop), "right"))


def _is_own(name: str) -> bool:
    """Whether the format itself uses a name, or our exports do."""
    return name in _ROLES or name.startswith(_EXTRA)


def write(stored: Stored, target: Path, losses: Losses, *, key: str = "obs") -> None:
    """A directory; `key` names observations that are not a dict."""
    check_key(key, _is_own)
    schema = stored.schema
    if schema.is_dict:
        check_names(stored.frames, _is_own, "diffusion_policy: observations")
    names = {one: one if schema.is_dict else key for one in stored.frames}
    zarr = need("zarr")
    losses.add("final observations: left out", stored.n_episodes)
    fields = {names[one]: field for one, field in stored.frames.items()} | {
        "action": schema.action,
        "reward": Field((), schema.reward_dtype),
        "terminal": Field((), "bool"),
        **{_EXTRA + name: one for name, one in schema.extras.items()},
    }
    root = zarr.open_group(str(target), mode="w-", zarr_format=2)
    root.create_array("meta/episode_ends", data=np.cumsum(stored.lengths), compressors=None)
    out = {
        name: root.create_array(
            f"data/{name}",
            shape=(stored.n_steps, *one.shape),
            dtype=one.dtype,
            chunks=(_chunk_rows(one, stored.n_steps), *one.shape),
        )
        for name, one in fields.items()
    }
    parts: dict[str, list[Array]] = {name: [] for name in out}
    done = dict.fromkeys(out, 0)

    def flush(*, whole_chunks: bool) -> None:
        """Write what is in `parts`; whole chunks only, so that none is compressed twice."""
        for name, array in out.items():
            rows = np.concatenate(parts[name])
            n = len(rows) - (len(rows) % array.chunks[0] if whole_chunks else 0)
            array[done[name] : done[name] + n] = rows[:n]
            done[name] += n
            parts[name] = [rows[n:]]

    waiting = 0
    for run in stored.runs():
        for one, frames in run.observation.items():
            parts[names[one]].append(frames[:-1])
        for name, rows in run.extras.items():
            parts[_EXTRA + name].append(rows)
        parts["action"].append(run.action)
        parts["reward"].append(run.reward)
        parts["terminal"].append(run.terminal)
        waiting += len(run)
        if waiting * stored.row_bytes >= BLOCK_BYTES:
            flush(whole_chunks=True)
            waiting = 0
    flush(whole_chunks=False)


def _chunk_rows(one: Field, n_rows: int) -> int:
    """Rows per chunk, of about a megabyte."""
    return max(1, min(n_rows, _MOST_ROWS, (BLOCK_BYTES // 4) // one.row_bytes))
