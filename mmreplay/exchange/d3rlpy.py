"""D4RL's and d3rlpy's HDF5 files: flat tables, and those of version 2.1 of d3rlpy.

D4RL's tables have ``terminals``, ``timeouts`` and ``infos/…``. In d3rlpy's files an episode has as
many observations as steps, without the final one; d3rlpy itself uses the last row of a truncated
episode only as an observation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrays import read_columns
from mmreplay.exchange.columns import Column, PerEpisode
from mmreplay.exchange.fields import flags
from mmreplay.exchange.hdf5_files import Hdf5Source, open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.tables import Incoming
from mmreplay.exchange.transitions import FinalObservation

_NAME = re.compile(r"(observations|actions|rewards|terminated)_(\d{1,9})(?:_(\d+))?\Z")
_COUNTS = ("num_episodes", "version", "columns")


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A file of D4RL, of ``ReplayBuffer.dump``, or of version 1 of d3rlpy."""
    with open_hdf5(source) as file:
        is_flat = "num_episodes" not in file.columns
        columns = file.table() if is_flat else _episodes(file, losses)
        if is_flat:
            file.add_rest(columns, losses)
        for name, kinds in (("rewards", "biuf"), ("actions", "iu")):
            one = columns.get(name)
            if one is not None and one.shape[1:] == (1,) and one.dtype.kind in kinds:
                one.shape = one.shape[:1]
        yield read_columns(columns, source, losses, final_observation)


def _episodes(file: Hdf5Source, losses: Losses) -> dict[str, Column]:
    """The columns of version 2.1, which has a dataset per episode, and per part of a tuple."""
    n = int(file.value("num_episodes"))
    paths: dict[str, dict[int, str]] = {}
    for path in file.columns:
        match = _NAME.match(path)
        if match and int(match[2]) < n:
            part = "" if match[3] is None else f"/{match[3]}"
            paths.setdefault(match[1] + part, {})[int(match[2])] = path
    used = {path for names in paths.values() for path in names.values()}
    file.add_rest({*used, *_COUNTS}, losses)
    lengths = [file.column(f"rewards_{number}").shape[0] for number in range(n)]
    numbers = [number for number in range(n) if lengths[number]]
    losses.add("episodes without a step: left out", n - len(numbers))
    if not numbers:
        raise FormatError(f"{file.path}: no episode")
    ends = np.cumsum([lengths[number] for number in numbers])
    out = {
        name: file.joined({f"episode {one}": names.get(one, "") for one in numbers}, ends)
        for name, names in paths.items()
        if name != "terminated"
    }
    terminated = np.array([file.value(f"terminated_{number}") for number in numbers])
    is_terminated = flags(terminated, f"{file.path}: terminated")
    out["terminations"] = PerEpisode(is_terminated, ends, at_end=True)
    out["episode"] = PerEpisode(np.arange(len(ends)), ends)
    return out
