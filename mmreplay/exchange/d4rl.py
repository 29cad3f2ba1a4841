"""D4RL's HDF5 files: a flat table with ``terminals``, ``timeouts`` and ``infos/…``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmreplay.exchange.arrays import read_columns
from mmreplay.exchange.hdf5_files import open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.tables import Incoming
from mmreplay.exchange.transitions import FinalObservation


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A file."""
    with open_hdf5(source) as file:
        columns = file.table()
        yield read_columns(columns, source, losses, final_observation)
        file.add_rest(columns, losses)
