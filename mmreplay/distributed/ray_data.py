"""`read` and `write`: stores as Datasets of Ray Data, for work on data by many machines.

Invariant: a block has the rows of whole chunks of frames, so that only the stacks and returns that
reach into another block decode a chunk again.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.arguments import true_or_false, whole_number
from mmreplay.batches.batch import fields_of
from mmreplay.datasets.load import load
from mmreplay.errors import EmptyBufferError, MissingExtraError, SchemaError, StoreExistsError
from mmreplay.ids import Ids, distinct
from mmreplay.sampling.epoch import Blocks
from mmreplay.system import user_paths
from mmreplay.writing.create import create

_OBSERVATION, _EXTRAS, _EPISODE = "observation", "extras", "episode"
_STEP = "action", "reward", "terminated", "truncated"


def read(
    path: str | os.PathLike[str],
    *,
    episodes: bool = False,
    block_rows: int = 4096,
    **settings: Any,
) -> Any:
    """A store as a `ray.data.Dataset`, which tasks of Ray read where they run.

    A row is a transition, with the columns of a `Batch`. With `episodes` it is a whole episode,
    with those of a `Trajectory`. What is in a dict is called ``observation.KEY``, ``extras.NAME``
    and ``episode.NAME``.

    Args:
        path: the store, which each machine finds there. Of a live one what is there now.
        episodes: whole episodes.
        block_rows: a block is that many steps of an environment, or of all, rounded up to whole
            chunks; or the episodes that begin in them.
        settings: stack, n_step, gamma, columns, …, as for `load`.

    Raises:
        MissingExtraError: Ray Data is not installed.
        EmptyBufferError: there is no transition, or no whole episode.
        SchemaError, StoreNotFoundError: as `load`.
    """
    true_or_false("episodes", episodes)
    whole_number("block_rows", block_rows)
    path, ray_data = user_paths.absolute_path(path, "read"), _ray_data()
    with load(path, **settings) as data:
        blocks = data.store.live.frame_chunks.at_least(block_rows)
        table = data.episodes if episodes else None
        ids = data.ids if table is None else table["id"]
    keys = blocks.keys(ids)
    items: list[dict[str, Any]] = [{"block": key} for key in distinct(keys).tolist()]
    if not items:
        raise EmptyBufferError(f"{path}: there is nothing to read yet")
    if table is None:
        of_block = functools.partial(_transitions, path, settings, blocks)
        return ray_data.from_items(items, override_num_blocks=len(items)).map_batches(
            of_block, batch_size=1
        )
    for item in items:
        here = table[keys == item["block"]]
        item |= {name: here[name].tolist() for name in ("id", "length", "terminated", "truncated")}
    return ray_data.from_items(items, override_num_blocks=len(items)).flat_map(
        functools.partial(_episodes, path, settings)
    )


def write(dataset: Any, path: str | os.PathLike[str], **fields: Any) -> None:
    """Store a `ray.data.Dataset` of episodes, with the columns of ``read(…, episodes=True)``.

    Each task writes one lane, with its episodes in the order in which they arrive. An episode
    without an end is stored as truncated. Columns that a step does not need may be missing.
    A failed task is not repeated: remove the store and call `write` again.

    Args:
        dataset: of episodes of T steps: observation (T + 1, …), action and reward (T, …), and
            terminated and truncated.
        path: the store to be made, by every machine that runs a task.
        fields: frame, action, extras, episode, …, as for `create`.

    Raises:
        MissingExtraError: Ray Data is not installed.
        StoreExistsError: there is something at the path.
    """
    store, ray_data = user_paths.path_to_create(path), _ray_data()
    if os.path.lexists(store):
        raise StoreExistsError(f"{store}: already exists; choose another path, or remove it")

    class Sink(ray_data.Datasink):  # type: ignore[misc, name-defined]
        """Writes the blocks of a task."""

        def write(self, blocks: Iterable[Any], ctx: Any) -> None:
            """Called in a task of Ray."""
            accessor = importlib.import_module("ray.data.block").BlockAccessor
            rows = (row for block in blocks for row in accessor.for_block(block).iter_rows(True))
            _write(rows, store, f"task-{ctx.task_idx:05}", fields)

    dataset.write_datasink(Sink(), ray_remote_args={"max_retries": 0})


def _transitions(
    path: Path, settings: Mapping[str, Any], blocks: Blocks, items: Mapping[str, Any]
) -> dict[str, Any]:
    """Transitions of some blocks, by column."""
    ids = blocks.members(np.asarray(items["block"])).ravel()
    with load(path, **settings) as data:
        kept: Ids = data.store.live.look(lambda index: ids[~index.invalid(ids)])
        return _flat(fields_of(data.transitions(kept)))


def _episodes(
    path: Path, settings: Mapping[str, Any], item: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The episodes of a block."""
    with load(path, **settings) as data:
        live = data.store.live
        each = zip(*(item[key] for key in ("id", "length", "terminated", "truncated")), strict=True)
        found = [live.lazy_trajectory(live.uuids, *one).read() for one in each]
    return [_flat(fields_of(one)) for one in found]


def _flat(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Those of dicts as ``name.key``."""
    out: dict[str, Any] = {}
    for name, value in columns.items():
        if isinstance(value, dict):
            out |= {f"{name}.{key}": one for key, one in value.items()}
        else:
            out[name] = value
    return out


def _write(
    rows: Iterator[dict[str, Any]], store: Path, lane: str, fields: Mapping[str, Any]
) -> None:
    """Write the episodes of a task into a lane of its own, if there are any."""
    first = next(rows, None)
    if first is None:
        return
    with create(store, lane=lane, **fields) as writer:
        if writer.rows:
            raise StoreExistsError(f"{writer.path}: this task was repeated; remove {store}")
        while first is not None:
            _append(writer, first)
            first = next(rows, None)


def _append(writer: Any, row: Mapping[str, Any]) -> None:
    """Write an episode; SchemaError for a column that a step needs and is not there."""
    alone, parts = row.get(_OBSERVATION), _part(row, _OBSERVATION)
    missing = [name for name in _STEP if name not in row]
    if missing or (alone is None and not parts):
        raise SchemaError(
            f"write: expected the columns {_OBSERVATION}, {', '.join(_STEP)}; found {sorted(row)}"
        )

    def frame(t: int) -> Any:
        return {key: value[t] for key, value in parts.items()} if alone is None else alone[t]

    actions, rewards = np.asarray(row["action"]), np.asarray(row["reward"])
    extras, n = _part(row, _EXTRAS), len(rewards)
    lost = ~np.asarray(row.get("non_terminal", np.ones(n, bool)), bool)
    fields = _part(row, _EPISODE)
    for key, value in fields.items():  # a text comes back as an array of one
        if isinstance(value, np.ndarray) and not value.ndim:
            fields[key] = value.item()
    writer.reset(frame(0), **fields)
    for t in range(n):
        is_last = t == n - 1
        more = {key: value[t] for key, value in extras.items()}
        ends = is_last and bool(row["terminated"])
        is_cut = is_last and not ends
        writer.step(
            actions[t],
            rewards[t],
            frame(t + 1),
            ends,
            is_cut,
            life_lost=bool(lost[t]) and not ends,
            **more,
        )


def _part(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The columns ``name.key`` of a row, by key."""
    return {
        key.removeprefix(f"{name}."): value
        for key, value in row.items()
        if key.startswith(f"{name}.")
    }


def _ray_data() -> Any:
    try:
        return importlib.import_module("ray.data")
    except ImportError as error:
        raise MissingExtraError(
            'mmreplay.distributed needs Ray Data: pip install "mmreplay[ray]" pandas pyarrow'
        ) from error
