"""OGBench's .npz files: ``terminals`` marks the last row of a trajectory, whose action is none.

So each trajectory has its final observation. Rewards are not in these files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange import arrays
from mmreplay.exchange.columns import blocks
from mmreplay.exchange.fields import flags
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming, Steps
from mmreplay.exchange.tables import Block, Tables
from mmreplay.schema import FRAME

__all__ = ["read"]


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A file, as OGBench downloads it."""
    with arrays.open_columns(source) as columns:
        if "terminals" not in columns:
            raise FormatError(f"{source}: expected a column 'terminals', found {sorted(columns)}")
        tables = Tables(columns, source, losses, "repeat", needs_rewards=False)
        about = tables.incoming(())
        rows = blocks({name: columns[name] for name in tables.used}, tables.n_rows)
        names = {name: new for name, (new, _) in tables.extras.items()}
        observations = tables.frame_columns("observations")[FRAME]
        for name in sorted({*tables.used} - {*names, observations, "actions", "terminals"}):
            losses.add(f"column {name}: left out, as OGBench's files have none", tables.n_rows)
        yield Incoming(
            about.frame,
            about.action,
            about.reward_dtype,
            about.extras,
            {},
            _steps(rows, observations, names, np.dtype(about.reward_dtype), losses, source),
            tables.n_rows,
        )


def _steps(
    rows: Iterator[Block],
    observations: str,
    names: dict[str, str],
    rewards: np.dtype[np.generic],
    losses: Losses,
    source: object,
) -> Iterator[Steps]:
    """Each trajectory; the last row of a block is kept for the next."""
    begins, held = True, None
    for new in rows:
        block = (
            new
            if held is None
            else {name: np.concatenate((held[name], rows)) for name, rows in new.items()}
        )
        ends = flags(block["terminals"], f"{source}: terminals")
        held = None if ends[-1] else {name: rows[-1:].copy() for name, rows in block.items()}
        bounds = [0, *(np.flatnonzero(ends) + 1).tolist()]
        if held is not None:
            bounds.append(len(ends))
        for start, stop in itertools.pairwise(bounds):
            is_over = bool(ends[stop - 1])
            n = stop - start - 1
            if is_over and names:
                losses.add("extra columns of final observations", 1)
            if n:
                part = slice(start, stop - 1)
                yield Steps(
                    {FRAME: block[observations][start:stop]},
                    block["actions"][part],
                    np.zeros(n, rewards),
                    np.zeros(n, np.bool_),
                    {name: block[path][part] for path, name in names.items()},
                    begins,
                    is_over,
                )
            begins = is_over or (begins and not n)
