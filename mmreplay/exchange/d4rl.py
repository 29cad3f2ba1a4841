"""D4RL's HDF5 files: a flat table with ``terminals``, ``timeouts`` and ``infos/…``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.arguments import whole_number_or_none
from mmreplay.exchange.columns import ArrayColumn, blocks
from mmreplay.exchange.fields import flags, need
from mmreplay.exchange.hdf5_files import open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming
from mmreplay.exchange.tables import Block, Tables
from mmreplay.exchange.transitions import FinalObservation, check_final
from mmreplay.ids import Array

__all__ = ["read"]


@contextmanager
def read(
    source: Path,
    losses: Losses,
    *,
    final_observation: FinalObservation = "repeat",
    max_episode_steps: int | None = None,
) -> Iterator[Incoming]:
    """A file; `max_episode_steps` cuts episodes in files without ``timeouts``, as D4RL does."""
    check_final(final_observation)
    most = whole_number_or_none("max_episode_steps", max_episode_steps)
    h5py = need("h5py")
    with open_hdf5(source) as file:
        columns: dict[str, ArrayColumn] = {}

        def add(name: str, one: Any) -> None:
            if isinstance(one, h5py.Dataset) and one.shape:
                columns[name] = ArrayColumn(one)

        file.visititems(add)
        if most is not None and "timeouts" not in columns and "rewards" in columns:
            columns["timeouts"] = _NoFlags(columns["rewards"].shape)
        tables = Tables(columns, source, losses, final_observation)
        rows: Iterator[Block] = blocks({n: columns[n] for n in tables.used}, tables.n_rows)
        yield tables.incoming(rows if most is None else _cut(rows, most, source))


class _NoFlags(ArrayColumn):
    """A flag for each row that is not set."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape[:1], np.dtype(np.bool_)

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return np.zeros(stop - start, np.bool_)


def _cut(rows: Iterator[Block], most: int, source: Path) -> Iterator[Block]:
    """The same rows, with a timeout where an episode has so many steps."""
    done = 0  # steps of the running episode
    for block in rows:
        terminal = flags(block["terminals"], f"{source}: terminals")
        ends = terminal | flags(block["timeouts"], f"{source}: timeouts")
        timeouts = ends & ~terminal
        start = 0
        for stop in [*(np.flatnonzero(ends) + 1).tolist(), len(ends)]:
            timeouts[start + most - 1 - done : stop : most] = True
            done = (done + stop - start) % most
            if stop and ends[stop - 1]:
                done = 0
            start = stop
        yield block | {"timeouts": timeouts & ~terminal}
