"""OGBench's .npz files: ``terminals`` marks the last row of a trajectory, the final observation.

Rewards are usually not in these files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange import arrays
from mmreplay.exchange.columns import RowShape, Shape, blocks
from mmreplay.exchange.fields import flags, has_values
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.tables import Block, Incoming, Tables

_ENDS, _SEEN = "terminals", "observations"


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A file, as OGBench downloads it."""
    with arrays.open_columns(source, losses) as columns:
        for name in (_ENDS, _SEEN):
            if name not in columns:
                raise FormatError(f"{source}: expected a column {name!r}, found {sorted(columns)}")
        ends = columns.pop(_ENDS)
        made: dict[str, RowShape] = {"truncations": Shape(ends.shape, np.dtype(np.bool_))}
        made["next_observations"] = columns[_SEEN]
        tables = Tables(made | columns, source, losses, "repeat", needs_rewards=False)
        used = {name: columns[name] for name in tables.used if name not in made}
        rows = blocks(used | {_ENDS: ends}, tables.n_rows, source)
        yield tables.incoming(_steps(rows, losses, source))


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
