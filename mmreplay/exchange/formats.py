"""The formats of imports and exports: their names, options, and what each cannot carry.

Invariant: importing the modules of the formats imports no library that reads one.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from mmreplay.errors import SchemaError
from mmreplay.exchange import (
    arrays,
    d3rlpy,
    diffusion_policy,
    dqn_replay,
    lerobot,
    lerobot_files,
    minari,
    minari_export,
    parquet,
    rlds,
    robomimic,
)
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import files_named
from mmreplay.exchange.tables import ROLES

Read = Callable[..., Any]
Write = Callable[..., None]


@dataclasses.dataclass(frozen=True, slots=True)
class ExchangeFormat:
    """A format of other libraries.

    Attributes:
        name: as `import_dataset` and `export_dataset` take it.
        about: what it is.
        not_in: what an import does not carry; None if there is no import.
        not_out: what an export does not carry; None if there is no export.
        takes_arrays: an import takes objects in memory as well as a path.
        has_roles: columns may have other names, which an option gives: ``observations="images"``.
        files: those of a folder that are sources of their own; [] if it is one source.
        tables: makes sources of all files, a list of those that are one table.
        read, write: convert one source, one store.
        find: the path of what an import was given.
        place: a context with the path of an export's target.
    """

    name: str
    about: str
    read: Read | None = None
    write: Write | None = None
    not_in: str | None = None
    not_out: str | None = None
    takes_arrays: bool = False
    has_roles: bool = False
    files: Callable[[Path, Losses], list[Path]] | None = None
    tables: Callable[[list[Path], Losses], list[list[Path]]] | None = None
    find: Callable[[Any], Any] | None = None
    place: Callable[[Any, dict[str, Any]], AbstractContextManager[Any]] | None = None

    @property
    def import_options(self) -> dict[str, list[str]]:
        """The options of an import by name, with their values; [] if these are not a list."""
        own = {name: _choices(kind) for name, kind in _options(self.read).items()}
        return own | {key: [] for key in (ROLES if self.has_roles else ())}

    @property
    def export_options(self) -> dict[str, list[str]]:
        """The same for an export."""
        return {name: _choices(kind) for name, kind in _options(self.write).items()}


def _options(call: Callable[..., Any] | None) -> dict[str, Any]:
    """The keyword arguments of a function, with their types."""
    if call is None:
        return {}
    parameters = inspect.signature(call, eval_str=True).parameters.values()
    return {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}


def _choices(kind: Any) -> list[str]:
    if kind is bool:
        return ["true", "false"]
    return list(get_args(kind)) if get_origin(kind) is Literal else []


_HDF5 = files_named(".hdf5", ".h5", ".hdf", needed=True)

_ALL = (
    ExchangeFormat(
        "arrays",
        "a .npz file, or several, an episode each or more; a directory of .npy files, one per "
        "column; in Python also a mapping of arrays",
        arrays.read,
        arrays.write,
        not_in="final observations, unless next_observations or final_observations has them",
        not_out="which lane a row was in, and the store's metadata",
        takes_arrays=True,
        has_roles=True,
        files=arrays.episode_files,
    ),
    ExchangeFormat(
        "parquet",
        "Parquet files with a row per step; where no column marks ends, an episode each",
        parquet.read,
        parquet.write,
        not_in="final observations, as with arrays; columns of texts",
        not_out="which lane a row was in, and the store's metadata",
        has_roles=True,
        files=parquet.files_below,
        tables=parquet.tables_of,
    ),
    ExchangeFormat(
        "minari",
        "a Minari dataset of HDF5, Arrow or Parquet files, by its path or its id",
        minari.read,
        minari_export.write,
        not_in="texts in observations and infos, actions of several arrays, "
        "options of episodes that are not numbers or not in all of them",
        not_out="the environment, unless the store was made with one or came from Minari; lanes",
        find=minari.find,
        place=minari_export.place,
    ),
    ExchangeFormat(
        "d4rl",
        "D4RL's files of HDF5",
        d3rlpy.read,
        not_in="final observations where there are no next_observations; metadata",
        has_roles=True,
        files=_HDF5,
    ),
    ExchangeFormat(
        "ogbench",
        "OGBench's .npz files",
        arrays.read_ogbench,
        not_in="rewards, unless the file has them; extra columns of final observations",
        files=arrays.episode_files,
    ),
    ExchangeFormat(
        "dqn_replay",
        "DQN Replay: a directory of the gzipped arrays of Dopamine's replay buffer",
        dqn_replay.read,
        not_in="final observations; truncations that are not followed by padding",
    ),
    ExchangeFormat(
        "d3rlpy",
        "d3rlpy's files of HDF5, of version 2.1 or 1",
        d3rlpy.read,
        not_in="final observations",
        files=_HDF5,
    ),
    ExchangeFormat(
        "robomimic",
        "robomimic's files of HDF5",
        robomimic.read,
        robomimic.write,
        not_in="final observations where there is no next_obs; masks; model files",
        not_out="truncation flags: dones is 0 at the end",
        files=_HDF5,
    ),
    ExchangeFormat(
        "diffusion_policy",
        "a replay buffer of diffusion_policy: a zarr v2 directory",
        diffusion_policy.read,
        not_in="rewards, flags and final observations, which it does not have",
    ),
    ExchangeFormat(
        "lerobot",
        "a LeRobot dataset of version 3: Parquet files, with images in them or videos beside them",
        lerobot.read,
        lerobot_files.write,
        not_in="final observations; truncations, without next.terminated or next.truncated; texts "
        "other than tasks; depth maps",
        not_out="final observations; lanes; the store's metadata, unless it came from LeRobot",
    ),
    ExchangeFormat(
        "rlds",
        "episodes of RLDS, a directory that TensorFlow Datasets wrote: TFRecord or ArrayRecord "
        "files",
        rlds.read,
        not_in="texts, encoded tensors, features without a fixed shape; actions of several arrays "
        "other than the chosen one",
    ),
)
_BY_NAME = {one.name: one for one in _ALL}


def exchange_formats() -> tuple[ExchangeFormat, ...]:
    """The formats of `import_dataset` and `export_dataset`."""
    return _ALL


def named(name: object, *, to_export: bool = False) -> ExchangeFormat:
    """The format of this name; raises SchemaError, with the names of those `to_export` to."""
    if isinstance(name, str) and name in _BY_NAME:
        return _BY_NAME[name]
    names = [one for one, known in _BY_NAME.items() if known.write is not None or not to_export]
    near = ["arrays"] if name in ("npz", "npy") else difflib.get_close_matches(str(name), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise SchemaError(f"format: expected one of {', '.join(names)}, found {name!r:.80}{hint}")


def checked_options(
    call: Callable[..., Any], given: Mapping[str, Any], name: str, more: Sequence[str] = ()
) -> dict[str, Any]:
    """The options of a format, besides `more`; SchemaError for unknown names and wrong types."""
    known = _options(call)
    for key, value in given.items():
        if key not in known:
            has = f"it has {', '.join([*known, *more])}" if known else "it has none"
            raise SchemaError(f"{name}: no such option as {key!r}; {has}")
        kind, what = known[key], ""
        texts: dict[Any, Any] = {str: str, str | None: (str, type(None))}
        # As a text, "False" would be true.
        if kind is bool and not isinstance(value, (bool, np.bool_)):
            what = "true or false"
        elif get_origin(kind) is Literal and value not in get_args(kind):
            what = f"one of {', '.join(get_args(kind))}"
        elif kind in texts and not isinstance(value, texts[kind]):
            what = "a text"
        if what:
            raise SchemaError(f"{name}: {key}: expected {what}, found {value!r:.80}")
    return dict(given)
