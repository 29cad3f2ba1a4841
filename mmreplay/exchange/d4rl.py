"""D4RL's HDF5 files: a flat table with ``terminals``, ``timeouts`` and ``infos/…``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mmreplay.arguments import whole_number_or_none
from mmreplay.exchange.arrays import read_columns
from mmreplay.exchange.columns import ArrayColumn
from mmreplay.exchange.fields import flags
from mmreplay.exchange.hdf5_files import open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import check_at_once
from mmreplay.exchange.tables import Incoming
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.ids import Array


@contextmanager
def read(
    source: Path,
    losses: Losses,
    *,
    final_observation: FinalObservation = "repeat",
    max_episode_steps: int | None = None,
) -> Iterator[Incoming]:
    """A file; `max_episode_steps` cuts episodes in files without ``timeouts``, as D4RL does."""
    most = whole_number_or_none("max_episode_steps", max_episode_steps)
    with open_hdf5(source) as file:
        columns = file.table()
        if most is not None and "timeouts" not in columns:
            terminals = file.column("terminals")
            check_at_once(math.prod(terminals.shape) * terminals.dtype.itemsize, str(source))
            ends = flags(terminals.read(0, terminals.shape[0]), f"{source}: terminals")
            columns["timeouts"] = ArrayColumn(_timeouts(ends, most))
        yield read_columns(columns, source, losses, final_observation)
        file.add_rest(columns, losses)


def _timeouts(terminals: Array, most: int) -> Array:
    """(n,) bool: steps that end their episode because it has `most` steps."""
    out = np.zeros(len(terminals), np.bool_)
    start = 0
    for stop in [*(np.flatnonzero(terminals) + 1).tolist(), len(terminals)]:
        out[start + most - 1 : stop : most] = True
        start = stop
    return out & ~terminals
