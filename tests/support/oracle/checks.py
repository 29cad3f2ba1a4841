"""Comparisons of what a store says with what the model says, byte for byte.

Invariant: a check that returns has compared dtype, shape and every byte; one that finds a
difference raises AssertionError and names the array and the first place where it differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.batch import Batch
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.maintenance.verify.store import verify
from mmreplay.reading.column_views import LaneView
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME, Schema
from tests.support.oracle.model import LaneModel, Model

__all__ = [
    "check_batch",
    "check_columns",
    "check_copy",
    "check_disk",
    "check_episodes",
    "check_ids",
    "check_plain_zarr",
    "check_same",
    "check_store",
    "check_trajectories",
    "check_verified",
    "chunk_files",
    "columns_of",
]

Array = npt.NDArray[Any]


def check_same(found: object, expected: object, what: str) -> None:
    """Same dtype, shape and bytes.

    Raises:
        AssertionError: they differ.
    """
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            raise AssertionError(f"{what}: expected a dict of {sorted(expected)}, found {found!r}")
        for name, one in expected.items():
            check_same(found[name], one, f"{what}[{name!r}]")
        return
    left, right = np.asarray(found), np.asarray(expected)
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        raise AssertionError(
            f"{what}: expected {right.dtype} {right.shape}, found {left.dtype} {left.shape}"
        )
    if left.tobytes() == right.tobytes():
        return
    width = max(right.dtype.itemsize, 1)
    bytes_left = np.frombuffer(left.tobytes(), np.uint8).reshape(-1, width)
    bytes_right = np.frombuffer(right.tobytes(), np.uint8).reshape(-1, width)
    wrong = np.flatnonzero((bytes_left != bytes_right).any(axis=1))
    place = np.unravel_index(int(wrong[0]), right.shape)
    raise AssertionError(
        f"{what}: {wrong.size} of {right.size} elements differ, first at "
        f"{tuple(map(int, place))}: expected {right[place]!r}, found {left[place]!r}"
    )


def check_batch(found: Batch, expected: Batch, what: str = "batch") -> None:
    """Every field of two batches is the same."""
    for name in (
        "id",
        "reward",
        "discount",
        "non_terminal",
        "action",
        "weight",
        "extras",
        "observation",
        "next_observation",
        "terminated",
        "truncated",
    ):
        check_same(getattr(found, name), getattr(expected, name), f"{what}.{name}")


def check_ids(store: Store | Dataset | ReplayBuffer, model: Model) -> None:
    """The valid ids and their number are those of the model."""
    check_same(store.ids, model.ids(), "ids")
    if len(store) != len(model):
        raise AssertionError(f"len: expected {len(model)}, found {len(store)}")


def check_columns(store: Store, model: Model) -> None:
    """Every column of every lane, whole; zeros below the reader's base."""
    for view, lane in zip(store.lanes, model.lanes, strict=True):
        base = -1
        found: dict[str, Array] = {}
        while base != view.base:  # a background flush may evict while this reads
            base = view.base
            found = {path: one[:] for path, one in columns_of(view, model.schema).items()}
        greatest = lane.base_bounds()[1]
        if base > greatest:
            raise AssertionError(f"{view.path}: base: expected at most {greatest}, found {base}")
        if view.rows != len(lane.rows):
            raise AssertionError(f"{view.path}: expected {len(lane.rows)} rows, found {view.rows}")
        for path, one in found.items():
            check_same(one, lane.column(path, base), f"{view.path}: {path}")


def columns_of(view: LaneView, schema: Schema) -> dict[str, Any]:
    """The columns of a lane by their path in the store."""
    frames = view.frames
    out: dict[str, Any] = (
        {f"frames/{name}": one for name, one in frames.items()}
        if isinstance(frames, dict)
        else {"frames": frames}
    )
    ends = ("ends", "episode") if view._is_vector else ("resets",)
    out |= {name: getattr(view, name) for name in ("actions", "rewards", "non_terminals", *ends)}
    return out | {f"extras/{name}": view.extras[name] for name in schema.extras}


def check_episodes(store: Store | Dataset | ReplayBuffer, model: Model, *, live: bool) -> None:
    """The table of episodes: everything exact but the returns, where only rounding may differ."""
    expected = model.episodes(live)
    found = store.episodes
    check_same(found["id"], np.array([one.id for one in expected], np.int64), "episodes: id")
    for name in ("length", "terminated", "truncated"):
        wanted = np.array([getattr(one, name) for one in expected], found[name].dtype)
        check_same(found[name], wanted, f"episodes: {name}")
    for total, one in zip(found["return"].tolist(), expected, strict=True):
        if not abs(total - one.total) <= 1e-12 * one.magnitude:
            raise AssertionError(f"episodes: return: expected {one.total}, found {total} of {one}")


def check_trajectories(
    store: Store | Dataset | ReplayBuffer, model: Model, numbers: Sequence[int], *, live: bool
) -> None:
    """Some trajectories, whole."""
    for number in numbers:
        found, expected = store.trajectory(number), model.trajectory(number, live)
        frames = expected.observation
        what = f"trajectory {number}"
        check_same(
            found.observation,
            frames if model.schema.is_dict else frames[FRAME],
            f"{what}: observation",
        )
        for name in ("action", "reward", "non_terminal", "ids", "extras"):
            check_same(getattr(found, name), getattr(expected, name), f"{what}: {name}")
        if (found.terminated, found.truncated) != (expected.terminated, expected.truncated):
            raise AssertionError(f"{what}: expected {expected.terminated=}, {expected.truncated=}")


def check_store(
    store: Store,
    model: Model,
    *,
    live: bool,
    settings: Sequence[dict[str, Any]] = ({},),
    most: int = 200,
    generator: np.random.Generator | None = None,
) -> None:
    """Ids, columns, episodes, trajectories and transitions.

    Args:
        store: what is checked.
        model: what is right.
        live: whether the newest episode of a lane may go on.
        settings: of `transitions`; each is tried.
        most: transitions to compare for each of them; the oldest and newest are among them.
        generator: chooses the others.
    """
    check_ids(store, model)
    check_columns(store, model)
    check_episodes(store, model, live=live)
    n_episodes = len(store.episodes)
    check_trajectories(
        store,
        model,
        sorted({0, n_episodes // 2, n_episodes - 1} & set(range(n_episodes))),
        live=live,
    )
    ids = model.ids()
    if ids.size > most:
        random = generator or np.random.default_rng(0)
        edge = most // 3
        inner = random.choice(ids[edge:-edge], most - 2 * edge, replace=False)
        ids = random.permutation(np.concatenate((ids[:edge], inner, ids[-edge:])))
    for one in settings:
        expected = model.batch(ids, **{"padding": store.padding} | one, live=live)
        check_batch(store.transitions(ids, **one), expected, f"transitions({one})")


def chunk_files(lane: Path, path: str) -> dict[int, Path]:
    """The chunk files of an array by number, found without the code under test."""
    return {
        int(file.name.split(".")[1]): file
        for file in (lane / path).iterdir()
        if file.name.startswith("c.") and not file.name.endswith(".tmp")
    }


def chunk_rows(lane: Path, path: str) -> int:
    """Rows a chunk file, from zarr.json."""
    document = json.loads((lane / path / "zarr.json").read_bytes())
    return int(document["chunk_grid"]["configuration"]["chunk_shape"][0])


def row_paths(schema: Schema) -> list[str]:
    """Every array of rows."""
    return list(schema.arrays())


def check_disk(view: LaneView, lane: LaneModel) -> None:
    """After a flush: what a capacity has evicted is off the disk, and nothing else is.

    Raises:
        AssertionError: a chunk file wholly below base is still there, one that is needed is not,
            or base is not what the transitions ask for.
    """
    least, greatest = lane.base_bounds()
    if not least <= view.base <= greatest:
        raise AssertionError(
            f"{view.path}: base: expected {least} to {greatest}, found {view.base}"
        )
    for path in row_paths(lane.schema):
        rows = chunk_rows(view.path, path)
        there = chunk_files(view.path, path)
        late = [n for n in there if (n + 1) * rows <= view.base]
        if late:
            raise AssertionError(f"{view.path}/{path}: chunk files {late} lie below {view.base}")
    for path in row_paths(lane.schema):
        rows = chunk_rows(view.path, path)
        document = json.loads((view.path / path / "zarr.json").read_bytes())
        if document["codecs"][0]["name"] == "bytes" or not (view.path / ".live").exists():
            needed = range(view.base // rows, -(-len(lane.rows) // rows))
            gone = set(needed) - chunk_files(view.path, path).keys()
            if gone:
                raise AssertionError(f"{view.path}/{path}: chunk files {sorted(gone)} are missing")


_ZARR_KEYS = {
    "group": {"zarr_format", "node_type", "attributes"},
    "array": {
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
    },
}
_CODECS = {"bytes", "transpose", "sharding_indexed", "blosc", "zstd", "gzip", "crc32c"}


def check_plain_zarr(path: Path, *, copied: bool = True) -> None:
    """A closed store is plain zarr v3: standard keys and codecs, and no file of any other kind.

    Each lane has a copy of all documents below it in its own, word for word, if it must have one
    (`copied`).

    Raises:
        AssertionError: a private file, a directory that is no node, a key or codec of our own; a
            copy that is missing, or differs.
    """
    if copied:
        for lane in [*path.glob("lane-*")] or [path]:
            check_copy(lane)
    for folder, _, names in os.walk(path):
        where = Path(folder)
        if "zarr.json" not in names:
            raise AssertionError(f"{where}: no zarr.json")
        document = json.loads((where / "zarr.json").read_bytes())
        kind = document["node_type"]
        if document.get("attributes", {}).get("mmreplay", {}).get("kind") in ("lane", "vector"):
            document.pop("consolidated_metadata", None)
        if document.keys() != _ZARR_KEYS[kind] or document["zarr_format"] != 3:
            raise AssertionError(f"{where}: keys {sorted(document)} are not those of zarr v3")
        strangers = set(names) - {"zarr.json"}
        if kind == "array":
            shape = document["shape"]
            chunk = document["chunk_grid"]["configuration"]["chunk_shape"]
            count = -(-shape[0] // chunk[0])
            strangers -= {".".join(["c", str(n), *"0" * (len(shape) - 1)]) for n in range(count)}
            if not _codec_names(document["codecs"]) <= _CODECS:
                raise AssertionError(f"{where}: codecs {document['codecs']}")
        if strangers:
            raise AssertionError(f"{where}: {sorted(strangers)} belong to no zarr v3 {kind}")


def check_copy(lane: Path) -> None:
    """What a closed lane's zarr.json says of all others is what these say, in zarr's order.

    Raises:
        AssertionError: it is not.
    """
    root = json.loads((lane / "zarr.json").read_bytes())
    files = {one.parent.relative_to(lane).as_posix(): one for one in lane.rglob("zarr.json")}
    del files["."]
    order = sorted(files, key=lambda name: (name.count("/"), name))
    expected = {name: json.loads(files[name].read_bytes()) for name in order}
    copy = root.get("consolidated_metadata", {})
    found = copy.get("metadata", {})
    if list(found) != order or found != expected:
        wrong = [name for name in order if found.get(name) != expected[name]]
        raise AssertionError(f"{lane}: expected a copy of {order}, found {list(found)}: {wrong}")
    if (copy["kind"], copy["must_understand"]) != ("inline", False):
        raise AssertionError(f"{lane}: {copy}")


def _codec_names(codecs: Sequence[dict[str, Any]]) -> set[str]:
    names = {one["name"] for one in codecs}
    for one in codecs:
        for inner in ("codecs", "index_codecs"):
            names |= _codec_names(one.get("configuration", {}).get(inner, ()))
    return names


def check_verified(path: Path) -> None:
    """`mmreplay.verify` has nothing to say about a store.

    Raises:
        AssertionError: it has.
    """
    findings = verify(path).findings
    if findings:
        raise AssertionError("\n".join(["verify found:", *map(str, findings)]))
