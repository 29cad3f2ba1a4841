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

from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.arrays import read_columns
from mmreplay.exchange.columns import ArrayColumn, blocks
from mmreplay.exchange.fields import field, flags, reward_dtype
from mmreplay.exchange.hdf5_files import new_hdf5, open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming, Steps
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.transitions import FinalObservation, Table, check_final, to_steps
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field

__all__ = ["read", "write"]

_VERSION = "2.1"
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


def write(stored: Stored, target: Path, losses: Losses, *, final_row: bool = False) -> None:
    """A file of version 2.1.

    `final_row` adds a row with the final observation, no action and no reward to each truncated
    episode: as d3rlpy takes the last row of these for an observation only, it then has as many
    transitions as the store. Dict observations become tuples in the order of their keys.
    """
    schema = stored.schema
    n_cut = int((~stored.terminated).sum())
    if not final_row:
        losses.add("final observations: left out", stored.n_episodes)
        losses.add("last steps of truncated episodes: d3rlpy makes no transition of these", n_cut)
    else:
        losses.add("final observations of terminated episodes: left out", stored.n_episodes - n_cut)
    if len(schema.extras):
        losses.add(f"extra columns: {', '.join(schema.extras)}", stored.n_steps)
    with new_hdf5(target) as file:
        file["columns"] = list(_COLUMNS)
        file["num_episodes"] = stored.n_episodes
        file["version"] = _VERSION
        out = _Out(file, stored, final_row=final_row)
        for run in stored.runs():
            losses.add("lost lives within episodes: left out", out.append(run))


class _Out:
    """Episodes that are being written."""

    def __init__(self, file: Any, stored: Stored, *, final_row: bool) -> None:
        self._file, self._stored, self._final_row = file, stored, final_row
        self._keys = list(stored.frames)
        self._number, self._at = -1, 0
        self._frames: dict[str, Any] = {}
        self._columns: dict[str, Any] = {}
        action = stored.schema.action
        if len(action.shape) > 1:
            raise SchemaError(f"d3rlpy: actions of shape {action.shape}: expected () or (n,)")

    def _begin(self) -> None:
        self._number += 1
        self._at = 0
        stored, schema, number = self._stored, self._stored.schema, self._number
        terminated = bool(stored.terminated[number])
        n_rows = int(stored.lengths[number]) + (self._final_row and not terminated)
        action = schema.action

        def make(name: str, one: Field) -> Any:
            return self._file.create_dataset(name, (n_rows, *(one.shape or (1,))), one.dtype)

        for place, key in enumerate(self._keys):
            name = f"observations_{number}" + (f"_{place}" if schema.is_dict else "")
            one = stored.frames[key]
            self._frames[key] = self._file.create_dataset(name, (n_rows, *one.shape), one.dtype)
        self._columns["actions"] = make(f"actions_{number}", action)
        self._columns["rewards"] = make(f"rewards_{number}", Field((), schema.reward_dtype))
        self._file[f"terminated_{number}"] = terminated

    def append(self, run: Steps) -> int:
        """Some steps; how many lives were lost that cannot be kept."""
        if run.begins:
            self._begin()
        n, start = len(run), self._at
        self._at = stop = start + n
        more = int(self._final_row and run.ends and not run.terminal[-1])
        for key in self._keys:
            self._frames[key][start : stop + more] = run.observation[key][: n + more]
        self._columns["actions"][start:stop] = run.action.reshape(n, -1)
        self._columns["rewards"][start:stop] = run.reward.reshape(n, 1)
        return int(run.terminal[: n - run.ends].sum())
