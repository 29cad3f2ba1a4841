"""robomimic's HDF5 files: a group per demonstration, with observations by key.

Final observations are those of ``next_obs``, if there are any. A demonstration terminated if its
last ``done`` is set, else it was truncated. Its attributes are fields of the episode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.batches.runs import Steps
from mmreplay.errors import FormatError, SchemaError
from mmreplay.exchange.columns import Column, PerEpisode, blocks
from mmreplay.exchange.fields import PREFIX, common_type
from mmreplay.exchange.hdf5_files import Hdf5Source, new_hdf5, open_hdf5
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import by_numbers
from mmreplay.exchange.stored import Stored
from mmreplay.exchange.tables import Incoming, Tables
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.format.episode_fields import STARTED
from mmreplay.ids import Array

_GYM = 2  # robomimic's number for environments of Gym
_STEP = ("actions", "rewards", "dones")
_OWN = (*_STEP, "obs", "next_obs")
_COUNT = "num_samples"


@contextmanager
def read(
    source: Path, losses: Losses, *, final_observation: FinalObservation = "repeat"
) -> Iterator[Incoming]:
    """A file."""
    with open_hdf5(source) as file:
        lengths = _demonstrations(file, losses)
        demos = {name: n for name, n in lengths.items() if n}
        ends = np.cumsum(list(demos.values()))
        columns, called = _columns_of(file, demos, ends)
        columns["episode"] = PerEpisode(np.arange(len(ends)), ends)
        fields = _attributes(file, demos, ends)
        columns |= {f"{PREFIX}{name}": one for name, one in fields.items()}
        called |= {f"{PREFIX}{name}": f"attribute {name}" for name in fields}
        used = {"data@total", "data@env_args"}
        used |= {f"data/{demo}@{name}" for demo in lengths for name in (_COUNT, *fields)}
        for path in file.columns:
            above, _, inside = path.partition("/")
            if above == "data" and inside.partition("/")[0] in lengths:
                used.add(path)
        file.add_rest(used, losses)
        tables = Tables(
            columns, source, losses, final_observation, needs_rewards=False, called=called
        )
        rows = blocks({name: columns[name] for name in tables.used}, tables.n_rows, source)
        about = json.loads(file.file["data"].attrs.get("env_args", "{}"))
        metadata = {"robomimic": {"env_args": about}}
        if about.get("env_name"):
            metadata["id"] = about["env_name"]
        yield tables.incoming(rows, metadata=metadata)


def _demonstrations(file: Hdf5Source, losses: Losses) -> dict[str, int]:
    """The names of demonstrations in order, and how many steps each has."""
    names = [path.removeprefix("data/") for path in file.groups if path.startswith("data/")]
    names = sorted((name for name in names if "/" not in name), key=by_numbers)
    lengths: dict[str, int] = {}
    for name in names:
        actions = file.columns.get(f"data/{name}/actions")
        if actions is None or f"data/{name}/obs" not in file.groups:
            raise FormatError(
                f"{file.path}: {name}: expected obs and actions; extract observations with "
                f"robomimic first"
            )
        lengths[name] = file.column(f"data/{name}/actions").shape[0]
    losses.add("demonstrations without a step: left out", list(lengths.values()).count(0))
    if not any(lengths.values()):
        raise FormatError(f"{file.path}: data: expected demonstrations, found none")
    return lengths


def _columns_of(
    file: Hdf5Source, demos: Mapping[str, int], ends: Array
) -> tuple[dict[str, Column], dict[str, str]]:
    """What all demonstrations have, by the names of a table, and their names here."""
    columns: dict[str, Column] = {}
    called: dict[str, str] = {}
    for path in file.columns:
        above, _, inside = path.partition("/")
        demo, _, name = inside.partition("/")
        if above != "data" or demo not in demos or name in called.values():
            continue
        role = name if name.partition("/")[0] in _OWN else f"extras/{name}"
        role = "terminations" if name == "dones" else role
        called[role] = name
        columns[role] = file.joined({one: f"data/{one}/{name}" for one in demos}, ends)
    return columns, called


def _attributes(file: Hdf5Source, demos: Mapping[str, int], ends: Array) -> dict[str, PerEpisode]:
    """The attributes that all demonstrations have, of one value or as many of one type."""
    found = [dict(file.file["data"][demo].attrs) for demo in demos]
    out: dict[str, PerEpisode] = {}
    for name in sorted(set(found[0]).intersection(*found[1:]) - {_COUNT}):
        values = [one[name] for one in found]
        dtype = common_type(values)
        if dtype is not None and len({np.shape(one) for one in values}) == 1:
            texts = [one.encode() if isinstance(one, str) else one for one in values]
            out[name] = PerEpisode(np.array(texts, dtype), ends)
    return out


def write(stored: Stored, target: Path, losses: Losses, *, next_obs: bool = True) -> None:
    """A file, with ``obs/obs`` for observations that are not a dict."""
    if clash := [name for name in stored.schema.extra_fields if name in _OWN]:
        raise SchemaError(
            f"robomimic: extra columns: the format itself uses the name {clash[0]!r}; record them "
            f"under another name, or export to arrays or minari"
        )
    about: Mapping[str, Any] = stored.metadata.get("robomimic") or {}
    args = about.get("env_args") or {
        "env_name": str(stored.metadata.get("id", "")),
        "type": _GYM,
        "env_kwargs": {},
    }
    if not next_obs:
        losses.add("final observations: left out, as next_obs=False", stored.n_episodes)
    if not stored.schema.action.shape:
        losses.add("scalar actions: exported as vectors of length 1", 1)
    names = {one: one if stored.schema.is_dict else "obs" for one in stored.frames}
    number = start = 0
    with new_hdf5(target) as file:
        data = file.create_group("data")
        data.attrs["total"] = stored.n_steps
        data.attrs["env_args"] = json.dumps(args)
        for run in stored.runs():
            n, group = int(stored.lengths[number]), data.require_group(f"demo_{number}")
            for name, rows in _columns(run, names, next_obs=next_obs).items():
                if run.begins:
                    group.create_dataset(name, (n, *rows.shape[1:]), rows.dtype)
                group[name][start : start + len(run)] = rows
            group.attrs[_COUNT] = n
            if run.begins:
                for name, value in run.episode.items():
                    if name != STARTED or value:
                        is_text = isinstance(value, bytes)
                        group.attrs[name] = value.decode(errors="replace") if is_text else value
            start += len(run)
            if run.ends:
                number, start = number + 1, 0


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
