"""d3rlpy's HDF5 files, of version 2.1, and the flat tables of version 1.

An episode has as many observations as steps, so the last one after it is not there; d3rlpy itself
takes the last row of a truncated episode for an observation only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrays import read_columns
from mmreplay.exchange.columns import ArrayColumn, blocks
from mmreplay.exchange.fields import field, flags, reward_dtype
from mmreplay.exchange.hdf5_files import open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming
from mmreplay.exchange.transitions import FinalObservation, Table, check_final, to_steps
from mmreplay.ids import Array
from mmreplay.schema import FRAME

__all__ = ["read"]

_COLUMNS = ("observations", "actions", "rewards", "terminated")


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A file of ``ReplayBuffer.dump``, or of version 1."""
    check_final(final_observation)
    with open_hdf5(source) as file:
        if "num_episodes" not in file:  # version 1
            columns = {name: ArrayColumn(one) for name, one in file.items() if len(one.shape)}
            if "episode_terminals" in columns:
                columns["dones"] = columns.pop("episode_terminals")
            for name in ("actions", "rewards"):
                if name in columns and columns[name].shape[1:] == (1,):
                    columns[name] = _Flat(file[name])
            yield read_columns(columns, source, losses, final_observation)
            return
        n = int(file["num_episodes"][()])
        if not n:
            raise FormatError(f"{source}: no episode")
        first = _episode(file, 0)
        frames = {
            key: field(one.shape[1:], one.dtype, "observations")
            for key, one in first.items()
            if key not in _COLUMNS[1:]
        }
        actions = first["actions"]
        tables = (
            table
            for number in range(n)
            for table in _tables(
                _episode(file, number), _terminated(file, number), f"{source}: episode {number}"
            )
        )
        yield Incoming(
            frames[FRAME] if list(frames) == [FRAME] else frames,
            field(actions.shape[1:], actions.dtype, "actions"),
            reward_dtype(first["rewards"].dtype, "rewards"),
            {},
            {},
            to_steps(tables, final_observation, losses),
            sum(file[f"rewards_{number}"].shape[0] for number in range(n)),
        )


class _Flat(ArrayColumn):
    """A column of rows of one number."""

    def __init__(self, rows: Any) -> None:
        super().__init__(rows)
        self.shape = self.shape[:1]

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        return super().read(start, stop).reshape(stop - start)


def _episode(file: Any, number: int) -> dict[str, ArrayColumn]:
    """Observations by key, of tuples ``0``, ``1``, …, and the other columns of an episode."""
    out: dict[str, ArrayColumn] = {}
    name = f"observations_{number}"
    if name in file:
        out[FRAME] = ArrayColumn(file[name])
    else:
        part = 0
        while f"{name}_{part}" in file:
            out[str(part)] = ArrayColumn(file[f"{name}_{part}"])
            part += 1
    actions = file[f"actions_{number}"]
    is_flat = actions.dtype.kind in "iu" and actions.shape[1:] == (1,)
    out["actions"] = _Flat(actions) if is_flat else ArrayColumn(actions)
    out["rewards"] = _Flat(file[f"rewards_{number}"])
    return out


def _terminated(file: Any, number: int) -> bool:
    name = f"terminated_{number}"
    return bool(flags(np.reshape(file[name][()], 1), f"{file.filename}: {name}")[0])


def _tables(columns: Mapping[str, ArrayColumn], terminated: bool, where: str) -> Iterator[Table]:
    n_rows, done = columns["rewards"].shape[0], 0
    for block in blocks(columns, n_rows, where):
        n = len(block["rewards"])
        done += n
        ends = np.arange(done - n, done) == n_rows - 1
        yield Table(
            {key: rows for key, rows in block.items() if key not in _COLUMNS[1:]},
            block["actions"],
            block["rewards"],
            ends & terminated,
            ends,
            {},
        )
