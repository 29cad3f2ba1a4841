"""Minari datasets of HDF5, Arrow and Parquet, read without Minari; `minari_export` writes them.

An import also keeps seeds and options of episodes (extra columns ``episode.…``), infos (``info.…``,
those of the reset ``reset_info.…``; a store's own extra columns under their own names), spaces, the
environment's specification and other metadata; exporting that store gives the same dataset.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.columns import Column
from mmreplay.exchange.fields import (
    Extras,
    add_extra,
    extra_name,
    field,
    flags,
    key_names,
    reward_dtype,
)
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.minari_files import Episodes, open_episodes
from mmreplay.exchange.source_files import add_other_files, read_json
from mmreplay.exchange.spaces import compacted, leaves, only
from mmreplay.exchange.steps import Incoming, Steps, block_steps
from mmreplay.exchange.tables import problem_of
from mmreplay.ids import Array
from mmreplay.schema import FRAME, Field

__all__ = ["NO_SEED", "OURS", "read"]

OURS = "mmreplay"
"""In the metadata of our exports: ``extras`` are the infos that are a store's extra columns, whose
value of the reset means nothing."""

_COUNTED = {"total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding", OURS}
"""Metadata that an export computes."""

_PARTS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
_MOST_METADATA = 400_000
NO_SEED = np.int64(-1)
"""A missing seed; 2**64 - 1 where seeds are uint64."""


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A dataset's folder, or the ``data`` in it."""
    folder = source / "data" if (source / "data").is_dir() else source
    raw = read_json(folder / "metadata.json")
    if not raw.get("total_episodes"):
        raise FormatError(f"{source}: a dataset without an episode")
    add_other_files(source, lambda name: folder == source or name.startswith("data/"), losses)
    with ExitStack() as stack:
        yield _Dataset(folder, raw, losses, stack).incoming()


@dataclasses.dataclass(frozen=True, slots=True)
class _Info:
    """A column of infos: its name here, whether it has an extra row, and is a store's own."""

    name: str
    more: bool
    is_ours: bool

    @property
    def has_reset(self) -> bool:
        """Whether the extra row is a value of the reset."""
        return self.more and not self.is_ours


class _Dataset:
    """An opened dataset."""

    def __init__(self, folder: Path, raw: dict[str, Any], losses: Losses, stack: ExitStack) -> None:
        self._folder, self._raw, self._losses, self._problem = folder, raw, losses, ""
        self._n = int(raw["total_episodes"])
        self._spaces = {
            name: json.loads(raw[f"{name}_space"])
            for name in ("observation", "action")
            if isinstance(raw.get(f"{name}_space"), str)
        }
        by_name = {
            "/".join(map(str, (f"{name}s", *leaf.path))): leaf
            for name, space in self._spaces.items()
            for leaf in leaves(space)
        }
        jpegs = bool(raw.get("jpeg_encoding", True))
        images = {name: leaf for name, leaf in by_name.items() if jpegs and leaf.is_image}
        kind = str(raw.get("data_format", "hdf5"))
        self._episodes: Episodes = open_episodes(
            folder, kind, self._n, images, by_name, losses, stack
        )
        columns = (self._episodes.columns(number) for number in range(self._n))
        first = next((one for one in columns if one["rewards"].shape[0]), None)
        if first is None:
            raise FormatError(f"{folder}: a dataset without a step")
        self._first = first
        self._frames = self._frame_columns()
        if "actions" not in self._first:
            raise FormatError(f"{folder}: actions of several arrays; a store has one")
        self._infos: dict[str, _Info] = {}
        self._extras: dict[str, Field] = {}
        self._find_infos()
        self._about = [self._episodes.attributes(number) for number in range(self._n)]
        self._about_columns = self._find_attributes()
        self._extras |= dict(self._about_columns.values())

    def _frame_columns(self) -> dict[str, str]:
        """Columns of observations by the keys of the store."""
        found = [
            name
            for name in self._first
            if name.partition("/")[0] == "observations" and self._is_usable(name)
        ]
        if found == ["observations"]:
            return {FRAME: "observations"}
        if not found:
            raise FormatError(
                f"{self._folder}: an episode without observations{self._problem:.400}"
            )
        keys = key_names((name.partition("/")[2] for name in found), self._folder)
        return {key: f"observations/{name}" for key, name in keys.items()}

    def _find_infos(self) -> None:
        ours = self._raw.get(OURS, {}).get("extras", [])
        n_steps = self._first["rewards"].shape[0]
        extras: Extras = {}
        others = [name for name in self._first if name.partition("/")[0] not in _PARTS]
        self._losses.add_names("columns that Minari does not name", others)
        for name, one in self._first.items():
            if not name.startswith("infos/") or not self._is_usable(name):
                continue
            if not one.shape or one.shape[0] not in (n_steps, n_steps + 1):
                self._losses.add(f"{name}: not one row per step")
                continue
            path = name.removeprefix("infos/")
            own = extra_name(path if path in ours else f"info.{path}")
            if add_extra(extras, name, own, one.shape[1:], one.dtype, self._losses):
                self._infos[name] = _Info(own, one.shape[0] > n_steps, path in ours)
        self._extras = dict(extras.values())
        for info in self._infos.values():
            if info.has_reset:
                self._extras[f"reset_{info.name}"] = self._extras[info.name]

    def _is_usable(self, name: str) -> bool:
        """Whether a column is asked for, and is numbers; everything else is a loss."""
        if not self._losses.takes(name):
            return False
        if problem := problem_of(self._first[name]):
            self._losses.add(f"column {name}: {problem}")
            self._problem += f"; {name}: {problem}"
        return not problem

    def _find_attributes(self) -> Extras:
        """Name and field of the extra column of each attribute of episodes."""
        out: Extras = {}
        names = {name for own in self._about for name in own} - {"id", "total_steps"}
        for name in sorted(names):
            values = [np.asarray(own[name]) for own in self._about if name in own]
            what = f"{name} of episodes"
            dtype = _common_dtype(values, widest=name == "seed")
            if (
                dtype is None
                or len({one.shape for one in values}) > 1
                or (len(values) < self._n and name != "seed")
            ):
                self._losses.add(f"{what}: not in all of them, or of different types", len(values))
                continue
            if name == "seed":
                none = NO_SEED.astype(dtype)
                self._losses.add(
                    f"{what}: {none}, which means a missing seed",
                    sum(bool((one == none).any()) for one in values),
                )
            own = extra_name(f"episode.{name}")
            add_extra(out, name, own, values[0].shape, dtype, self._losses)
        return out

    def incoming(self) -> Incoming:
        """Fields, metadata and steps."""
        first = self._first
        actions = first["actions"]
        frames = {
            key: field(first[name].shape[1:], first[name].dtype, name)
            for key, name in self._frames.items()
        }
        row_bytes = sum(one.row_bytes for one in (*frames.values(), *self._extras.values()))
        return Incoming(
            frames,
            field(actions.shape[1:], actions.dtype, "actions"),
            reward_dtype(first["rewards"].dtype, "rewards"),
            self._extras,
            self._steps(block_steps(row_bytes)),
            self._metadata(),
            int(self._raw.get("total_steps", 0)),
        )

    def _metadata(self) -> dict[str, Any]:
        own = {key: value for key, value in self._raw.items() if key not in _COUNTED}
        fields = {"observation": {*self._frames}, "action": {FRAME}}
        for name, space in self._spaces.items():
            own.pop(f"{name}_space")
            if (kept := only(space, fields[name])) is not None:
                own[f"{name}_space"] = compacted(kept)
        about: dict[str, Any] = {
            "metadata": own,
            "rewards": self._first["rewards"].dtype.name,
            "infos": {
                one.name: [path.removeprefix("infos/"), one.has_reset]
                for path, one in self._infos.items()
                if not one.is_ours
            },
            "episodes": {name: path for path, (name, _) in self._about_columns.items()},
        }
        if len(json.dumps(about)) > _MOST_METADATA:
            self._losses.add("metadata of more than 400 kB")
            about["metadata"] = {}
        spec = own.get("env_spec")
        env_id = json.loads(spec).get("id") if isinstance(spec, str) else None
        return {"minari": about} | ({"id": env_id} if env_id else {})

    def _steps(self, size: int) -> Iterator[Steps]:
        for number in range(self._n):
            columns = self._episodes.columns(number)
            n_steps = columns["rewards"].shape[0]
            if not n_steps:
                self._losses.add("episodes without a step")
                continue
            self._check_lengths(number, columns, n_steps)
            for name in columns.keys() - self._first.keys():
                self._losses.add(f"column {name}: not in the first episode, left out")
            for start in range(0, n_steps, size):
                yield self._run(number, columns, start, min(start + size, n_steps))

    def _check_lengths(self, number: int, columns: Mapping[str, Column], n_steps: int) -> None:
        expected = dict.fromkeys(self._frames.values(), n_steps + 1)
        expected |= dict.fromkeys(("actions", "terminations", "truncations"), n_steps)
        for name, n_rows in expected.items():
            if columns[name].shape[0] != n_rows:
                raise FormatError(
                    f"{self._folder}: episode {number}: {name}: expected {n_rows:,} rows for "
                    f"{n_steps:,} rewards, found {columns[name].shape[0]:,}"
                )

    def _run(self, number: int, columns: Mapping[str, Column], start: int, stop: int) -> Steps:
        n, n_steps = stop - start, columns["rewards"].shape[0]
        where = f"{self._folder}: episode {number}"
        values = {name: np.zeros((n, *one.shape), one.dtype) for name, one in self._extras.items()}
        for path, info in self._infos.items():
            rows, more = columns.get(path), info.more
            if rows is None or rows.shape[0] != n_steps + more:
                self._losses.add(f"{path}: not in this episode as in the first: zeros", start == 0)
                continue
            if info.has_reset and start == 0:
                values[f"reset_{info.name}"][0] = rows.read(0, 1)[0]
            values[info.name] = rows.read(start + more, stop + more)
        for path, (name, _) in self._about_columns.items():
            values[name][:] = self._about[number].get(path, NO_SEED.astype(values[name].dtype))
        truncated = flags(columns["truncations"].read(start, stop), f"{where}: truncations")
        terminated = flags(columns["terminations"].read(start, stop), f"{where}: terminations")
        before_last = slice(-1 if stop == n_steps else None)
        self._losses.add(
            "terminations within an episode: taken as lost lives",
            int(terminated[before_last].sum()),
        )
        self._losses.add(
            "truncations within an episode: left out",
            int(truncated[before_last].sum()),
        )
        if stop == n_steps:
            both, neither = terminated[-1] & truncated[-1], not terminated[-1] | truncated[-1]
            self._losses.add("episodes with both flags at their end: terminated", int(both))
            self._losses.add("episodes without a flag at their end: truncated", int(neither))
        return Steps(
            {key: columns[name].read(start, stop + 1) for key, name in self._frames.items()},
            columns["actions"].read(start, stop),
            columns["rewards"].read(start, stop).reshape(n),
            terminated,
            values,
            start == 0,
            stop == n_steps,
        )


def _common_dtype(values: Sequence[Array], *, widest: bool) -> np.dtype[Any] | None:
    """A dtype that holds all these numbers exactly; None if no dtype does.

    Integers of several dtypes are int64 if that holds them all, else uint64, where numpy would
    choose float64. So are all integers if `widest`.
    """
    dtypes = {one.dtype for one in values}
    kinds = {dtype.kind for dtype in dtypes}
    if kinds <= {"i", "u"} and (widest or len(kinds) > 1):
        low = min((int(one.min()) for one in values if one.size), default=0)
        high = max((int(one.max()) for one in values if one.size), default=0)
        fitting = (np.dtype(name) for name in ("int64", "uint64"))
        return next(
            (d for d in fitting if np.iinfo(d).min <= low and high <= np.iinfo(d).max), None
        )
    return np.result_type(*dtypes) if len(kinds) == 1 else None
