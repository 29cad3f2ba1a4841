"""OGBench's .npz files: ``terminals`` marks the last row of a trajectory, the final observation.

Rewards are not in these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange import arrays
from mmreplay.exchange.columns import blocks
from mmreplay.exchange.fields import flags, has_values
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming
from mmreplay.exchange.tables import Block, Tables
from mmreplay.exchange.transitions import Table, to_steps
from mmreplay.schema import FRAME

__all__ = ["read"]


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A file, as OGBench downloads it."""
    with arrays.open_columns(source, losses) as columns:
        if "terminals" not in columns:
            raise FormatError(f"{source}: expected a column 'terminals', found {sorted(columns)}")
        tables = Tables(columns, source, losses, "repeat", needs_rewards=False)
        about = tables.incoming(())
        rows = blocks({name: columns[name] for name in tables.used}, tables.n_rows)
        names = {name: new for name, (new, _) in tables.extras.items()}
        observations = tables.frame_columns("observations")[FRAME]
        for name in sorted({*tables.used} - {*names, observations, "actions", "terminals"}):
            losses.add(f"column {name}: left out, as OGBench's files have none", tables.n_rows)
        steps = _tables(rows, observations, names, np.dtype(about.reward_dtype), losses, source)
        yield Incoming(
            about.frames,
            about.action,
            about.reward_dtype,
            about.extras,
            to_steps(steps, "repeat", losses),
            n_steps=tables.n_rows,
        )


def _tables(
    rows: Iterator[Block],
    observations: str,
    names: dict[str, str],
    rewards: np.dtype[np.generic],
    losses: Losses,
    source: object,
) -> Iterator[Table]:
    """Blocks of steps; the last row of a block waits for the next one."""
    held: Block | None = None
    for new in rows:
        block = new
        if held is not None:
            block = {name: np.concatenate((held[name], part)) for name, part in new.items()}
        is_final = flags(block["terminals"], f"{source}: terminals")
        held = None if is_final[-1] else {name: part[-1:].copy() for name, part in block.items()}
        for name in ("actions", *names):
            is_lost = is_final & has_values(block[name])
            losses.add(f"column {name} of final observations: left out", int(is_lost.sum()))
        before = np.flatnonzero(~is_final[:-1])
        ends = int(is_final[before + 1].sum())
        losses.add("trajectories of one row: they have no step", int(is_final.sum()) - ends)
        yield Table(
            {FRAME: block[observations][before]},
            block["actions"][before],
            np.zeros(len(before), rewards),
            np.zeros(len(before), np.bool_),
            is_final[before + 1],
            {name: block[path][before] for path, name in names.items()},
            {FRAME: block[observations][before + 1]},
        )
