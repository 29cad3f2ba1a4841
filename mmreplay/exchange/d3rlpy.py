"""d3rlpy's HDF5 files, of version 2.1, and the flat tables of version 1.

An episode has as many observations as steps, without the final one; d3rlpy itself uses the last row
of a truncated episode only as an observation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrays import read_columns
from mmreplay.exchange.columns import ArrayColumn, FlatColumn, blocks
from mmreplay.exchange.fields import field, flags, reward_dtype
from mmreplay.exchange.hdf5_files import open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming
from mmreplay.exchange.transitions import FinalObservation, Table, to_steps
from mmreplay.schema import FRAME

__all__ = ["read"]


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A file of ``ReplayBuffer.dump``, or of version 1."""
    with open_hdf5(source) as file:
        if "num_episodes" not in file:  # version 1
            columns = {name: ArrayColumn(one) for name, one in file.items() if len(one.shape)}
            if "episode_terminals" in columns:
                columns["dones"] = columns.pop("episode_terminals")
            for name in ("actions", "rewards"):
                if name in columns and columns[name].shape[1:] == (1,):
                    columns[name] = FlatColumn(file[name])
            yield read_columns(columns, source, losses, final_observation)
            return
        n = int(file["num_episodes"][()])
        if not n:
            raise FormatError(f"{source}: no episode")
        frames, actions, rewards = _episode(file, 0)
        tables = (table for number in range(n) for table in _tables(file, number))
        yield Incoming(
            {key: field(one.shape[1:], one.dtype, "observations") for key, one in frames.items()},
            field(actions.shape[1:], actions.dtype, "actions"),
            reward_dtype(rewards.dtype, "rewards"),
            {},
            to_steps(tables, final_observation, losses),
            n_steps=sum(file[f"rewards_{number}"].shape[0] for number in range(n)),
        )


def _episode(file: Any, number: int) -> tuple[dict[str, ArrayColumn], ArrayColumn, ArrayColumn]:
    """Observations by key, those of tuples ``0``, ``1``, …; actions; rewards."""
    frames: dict[str, ArrayColumn] = {}
    name = f"observations_{number}"
    if name in file:
        frames[FRAME] = ArrayColumn(file[name])
    while f"{name}_{len(frames)}" in file:
        frames[str(len(frames))] = ArrayColumn(file[f"{name}_{len(frames)}"])
    actions = file[f"actions_{number}"]
    is_flat = actions.dtype.kind in "iu" and actions.shape[1:] == (1,)
    return (
        frames,
        FlatColumn(actions) if is_flat else ArrayColumn(actions),
        FlatColumn(file[f"rewards_{number}"]),
    )


def _tables(file: Any, number: int) -> Iterator[Table]:
    frames, actions, rewards = _episode(file, number)
    where = f"{file.filename}: episode {number}"
    name = f"terminated_{number}"
    terminated = flags(np.reshape(file[name][()], 1), f"{file.filename}: {name}")[0]
    columns = {**frames, "actions": actions, "rewards": rewards}
    done = 0
    for block in blocks(columns, rewards.shape[0], where):
        done += len(block["rewards"])
        ends = np.zeros(len(block["rewards"]), np.bool_)
        ends[-1] = done == rewards.shape[0]
        yield Table(
            {key: block[key] for key in frames},
            block["actions"],
            block["rewards"],
            ends & terminated,
            ends,
            {},
        )
