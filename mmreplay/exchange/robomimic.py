"""robomimic's HDF5 files: a group per demonstration, observations by key, and masks of names.

The final observation is the last one of ``next_obs``, if there is one. A demonstration terminated
if its last ``done`` is set, else it was truncated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.columns import ArrayColumn, blocks
from mmreplay.exchange.fields import (
    Extras,
    add_extra,
    check_key,
    check_names,
    extra_name,
    field,
    flags,
    key_names,
    need,
    reward_dtype,
)
from mmreplay.exchange.hdf5_files import new_hdf5, open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming, Steps
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.transitions import FinalObservation, Table, to_steps
from mmreplay.ids import Array
from mmreplay.schema import Field

__all__ = ["read", "write"]

_NUMBER = re.compile(r"(\d+)\Z")
_GYM = 2
"""robomimic's number for environments of Gym."""
_MASK = "mask."
_STEP = ("actions", "rewards", "dones")
_OWN = (*_STEP, "obs", "next_obs")


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A file."""
    h5py = need("h5py")
    with open_hdf5(source) as file:
        demos = sorted(
            (name for name, one in file["data"].items() if isinstance(one, h5py.Group)), key=_order
        )
        if not demos:
            raise FormatError(f"{source}: data: expected demonstrations, found none")
        yield _Demos(file, demos, losses, final_observation).incoming()


def _order(name: str) -> tuple[int, str]:
    found = _NUMBER.search(name)
    return (int(found[1]) if found else -1, name)


class _Demos:
    """The demonstrations of a file."""

    def __init__(
        self, file: Any, demos: list[str], losses: Losses, missing: FinalObservation
    ) -> None:
        self._file, self._demos, self._losses, self._missing = file, demos, losses, missing
        first = file["data"][demos[0]]
        if "obs" not in first or "actions" not in first:
            raise FormatError(
                f"{file.filename}: {demos[0]}: expected obs and actions, found "
                f"{', '.join(first) or 'nothing'}; extract observations with robomimic first"
            )
        self._keys = key_names(first["obs"], file.filename)
        self._has_rewards = "rewards" in first
        self._extras: Extras = {}
        n = first["actions"].shape[0]
        for name, one in first.items():
            if name in _STEP or not hasattr(one, "shape"):
                continue
            if one.shape[:1] != (n,):
                losses.add(f"{name}: not one row per step", len(demos))
                continue
            add_extra(self._extras, name, extra_name(name), one.shape[1:], one.dtype, losses)
        if "model_file" in first.attrs:
            losses.add("model_file of demonstrations: texts", len(demos))
        masks = file.get("mask", {})
        self._masks = {
            extra_name(_MASK + name): {
                one.decode() if isinstance(one, bytes) else str(one) for one in rows[:]
            }
            for name, rows in masks.items()
        }
        if not self._has_rewards:
            losses.add("rewards: the source has none, so they are 0", len(demos))

    def incoming(self) -> Incoming:
        """Fields, metadata and steps."""
        data, first = self._file["data"], self._file["data"][self._demos[0]]
        extras = dict(self._extras.values())
        extras |= {name: Field((), "bool") for name in self._masks}
        rewards = first["rewards"].dtype if self._has_rewards else np.dtype("float32")
        args = data.attrs.get("env_args")
        about = json.loads(args) if args is not None else {}
        tables = (table for name in self._demos for table in self._tables(name))
        return Incoming(
            {
                key: field(first["obs"][name].shape[1:], first["obs"][name].dtype, f"obs/{name}")
                for key, name in self._keys.items()
            },
            field(first["actions"].shape[1:], first["actions"].dtype, "actions"),
            reward_dtype(rewards, "rewards"),
            extras,
            to_steps(tables, self._missing, self._losses),
            ({"id": about["env_name"]} if about.get("env_name") else {})
            | {"robomimic": {"env_args": about, "masks": sorted(self._masks)}},
            sum(data[name]["actions"].shape[0] for name in self._demos),
        )

    def _tables(self, demo: str) -> Iterator[Table]:
        group = self._file["data"][demo]
        n_rows, done = group["actions"].shape[0], 0
        columns = {f"obs/{name}": ArrayColumn(group["obs"][name]) for name in self._keys.values()}
        for name in ("actions", *(("rewards",) if self._has_rewards else ()), *self._extras):
            columns[name] = ArrayColumn(group[name])
        if "dones" in group:
            columns["dones"] = ArrayColumn(group["dones"])
        after = group.get("next_obs")
        where = f"{self._file.filename}: {demo}"
        if after is not None:
            for name in self._keys.values():
                columns_after = after[name].shape[0]
                if columns_after != n_rows:
                    raise FormatError(
                        f"{where}: next_obs/{name}: expected {n_rows:,} rows, found "
                        f"{columns_after:,}"
                    )
        for block in blocks(columns, n_rows, where):
            n = len(block["actions"])
            done += n
            ends = np.arange(done - n, done) == n_rows - 1
            final = None
            if after is not None and done == n_rows:
                final = {key: after[name][-1:] for key, name in self._keys.items()}
            extras = {new: block[name] for name, (new, _) in self._extras.items()}
            for name, demos in self._masks.items():
                extras[name] = np.full(n, demo in demos)
            yield Table(
                {key: block[f"obs/{name}"] for key, name in self._keys.items()},
                block["actions"],
                block["rewards"].reshape(n) if self._has_rewards else np.zeros(n, np.float32),
                flags(block["dones"], f"{where}: dones")
                if "dones" in block
                else np.zeros(n, np.bool_),
                ends,
                extras,
                None,
                final,
            )


def write(
    stored: Stored,
    target: Path,
    losses: Losses,
    *,
    key: str = "obs",
    next_obs: bool = True,
) -> None:
    """A file; `key` names observations that are not a dict; `next_obs` False leaves these out."""
    check_key(key)
    check_names(stored.schema.extras, _OWN.__contains__, "robomimic: extra columns")
    about: Mapping[str, Any] = stored.metadata.get("robomimic") or {}
    masks = [name for name in about.get("masks", ()) if name in stored.schema.extras]
    args = about.get("env_args") or {
        "env_name": str(stored.metadata.get("id", "")),
        "type": _GYM,
        "env_kwargs": {},
    }
    if not next_obs:
        losses.add("final observations: left out, as next_obs=False", stored.n_episodes)
    if not stored.schema.action.shape:
        losses.add("scalar actions: exported as vectors of length 1", 1)
    names = {one: one if stored.schema.is_dict else key for one in stored.frames}
    demos: dict[str, list[str]] = {name: [] for name in masks}
    number = start = 0
    with new_hdf5(target) as file:
        data = file.create_group("data")
        data.attrs["total"] = stored.n_steps
        data.attrs["env_args"] = json.dumps(args)
        for run in stored.runs():
            n, demo = int(stored.lengths[number]), f"demo_{number}"
            group = data.require_group(demo)
            for name, rows in _columns(run, names, next_obs=next_obs).items():
                if name not in demos:
                    if run.begins:
                        group.create_dataset(name, (n, *rows.shape[1:]), rows.dtype)
                    group[name][start : start + len(run)] = rows
                elif run.begins and rows[0]:
                    demos[name].append(demo)
            group.attrs["num_samples"] = n
            start += len(run)
            if run.ends:
                number, start = number + 1, 0
        for name, chosen in demos.items():
            file[f"mask/{name.removeprefix(_MASK)}"] = np.array(chosen, dtype="S")


def _columns(run: Steps, names: Mapping[str, str], *, next_obs: bool) -> dict[str, Array]:
    """Some steps, by the names in a demonstration; `names` has those of observations."""
    out = {f"obs/{name}": run.observation[key][:-1] for key, name in names.items()}
    if next_obs:
        out |= {f"next_obs/{name}": run.observation[key][1:] for key, name in names.items()}
    return out | {
        "actions": run.action if run.action.ndim > 1 else run.action[:, None],
        "rewards": run.reward,
        "dones": run.terminal.astype(np.int64),
        **run.extras,
    }
