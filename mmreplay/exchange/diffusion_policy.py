"""diffusion_policy's replay buffers: a zarr v2 group with ``data/…`` and ``meta/episode_ends``.

Its columns have no fixed names but ``action``: all others are observations, unless the option
`observations` names them. There are no rewards and no flags, unless we wrote ``reward``,
``terminal`` and ``extra.…``.
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
from mmreplay.exchange.tables import Block, Tables
from mmreplay.exchange.transitions import FinalObservation, check_final
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
    """A directory, or a .zip of one; `observations` are names of columns, or one of them."""
    check_final(final_observation)
    with ExitStack() as stack:
        files = Zarr2Files(source, stack)
        names = files.arrays("data")
        about = Zarr2Column(files, "meta/episode_ends")
        check_at_once(about.shape[0] * about.dtype.itemsize, f"{source}: meta/episode_ends")
        ends = about.read(0, about.shape[0])
        if "action" not in names or not len(ends):
            raise FormatError(f"{source}: expected data/action and an episode, found {names}")
        if ends.dtype.kind not in "iu" or (np.diff(ends.astype(np.int64), prepend=0) < 0).any():
            raise FormatError(
                f"{source}: meta/episode_ends: expected the rows at which episodes end, ascending, "
                f"found {ends!r:.80}"
            )
        wanted = [observations] if isinstance(observations, str) else observations
        chosen = _observations(names, wanted, source)
        columns: dict[str, Column] = {}
        for name in names:
            role = _ROLES.get(name, f"extras/{name.removeprefix(_EXTRA)}")
            if name in chosen:
                role = "observations" if len(chosen) == 1 else f"observations/{name}"
            try:
                columns[role] = Zarr2Column(files, f"data/{name}")
            except FormatError as error:
                if not role.startswith("extras/"):
                    raise
                losses.add(f"column {name}, which cannot be read: {error!s:.300}")
        check_at_once(
            sum(one.chunk_bytes for one in columns.values() if isinstance(one, Zarr2Column)),
            f"{source}: the chunks of all columns",
        )
        n_rows = int(ends[-1])
        for name, column in columns.items():
            if column.shape[0] < n_rows:
                raise FormatError(f"{source}: {name}: {column.shape[0]:,} rows, of {n_rows:,}")
            column.shape = (n_rows, *column.shape[1:])
        columns["episode"] = _Numbers(ends)
        tables = Tables(columns, source, losses, final_observation, needs_rewards=False)
        rows: Iterator[Block] = blocks({name: columns[name] for name in tables.used}, n_rows)
        yield tables.incoming(rows)


def _observations(names: list[str], wanted: Sequence[str] | None, source: Path) -> list[str]:
    """The columns that are observations; raises FormatError if there are no such."""
    if wanted is None:
        return [one for one in names if not _is_own(one)]
    for name in wanted:
        if name not in names or name in _ROLES:
            raise FormatError(f"{source}: no column {name!r} of observations: there are {names}")
    return list(wanted)


class _Numbers(ArrayColumn):
    """The number of the episode of each row."""

    def __init__(self, ends: Array) -> None:
        self.shape, self.dtype = (int(ends[-1]),), np.dtype("int64")
        self._ends = ends

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return np.asarray(self._ends.searchsorted(np.arange(start, stop), "right"))


def _is_own(name: str) -> bool:
    """Whether a column of that name is none of observations."""
    return name in _ROLES or name.startswith(_EXTRA)


def write(stored: Stored, target: Path, losses: Losses, *, key: str = "obs") -> None:
    """A directory; `key` names observations that are no dict."""
    check_key(key, _is_own)
    schema = stored.schema
    if schema.is_dict:
        check_names(stored.frames, _is_own, "diffusion_policy: observations")
    names = {one: one if schema.is_dict else key for one in stored.frames}
    zarr = need("zarr")
    losses.add("final observations: left out", stored.n_episodes)
    fields: dict[str, Field] = {names[one]: field for one, field in stored.frames.items()}
    fields |= {
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
            chunks=(_chunk(one, stored.n_steps), *one.shape),
        )
        for name, one in fields.items()
    }
    parts: dict[str, list[Array]] = {name: [] for name in out}
    done = dict.fromkeys(out, 0)

    def flush(name: str, least: int) -> None:
        """Write whole chunks of a column, so that none is compressed twice."""
        rows = np.concatenate(parts[name]) if parts[name] else np.empty(0)
        n = len(rows) if least == 0 else len(rows) // least * least
        if n:
            out[name][done[name] : done[name] + n] = rows[:n]
            done[name] += n
        parts[name] = [rows[n:]] if n < len(rows) else []

    waiting = 0
    for run in stored.runs():
        rows = {names[one]: frames[:-1] for one, frames in run.observation.items()}
        rows |= {"action": run.action, "reward": run.reward, "terminal": run.terminal}
        rows |= {_EXTRA + name: values for name, values in run.extras.items()}
        for name, values in rows.items():
            parts[name].append(values)
        waiting += len(run)
        if waiting * stored.row_bytes >= BLOCK_BYTES:
            for name in out:
                flush(name, out[name].chunks[0])
            waiting = 0
    for name in out:
        flush(name, 0)


def _chunk(one: Field, n_rows: int) -> int:
    """Rows a chunk: of about a megabyte."""
    return max(1, min(n_rows, _MOST_ROWS, (BLOCK_BYTES // 4) // one.row_bytes))
