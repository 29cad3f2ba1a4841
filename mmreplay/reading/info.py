"""What is in a store, as a dict of plain values: `Store.info()` and ``mmreplay info --json``.

Invariant: the numbers of one answer belong together, and nothing here writes or waits; of a large
store only the rewards and the flags are read.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.format.layout import FINALS, ArraySpec
from mmreplay.ids import LANE_SHIFT, Ids
from mmreplay.reading.joined_lanes import Contents, JoinedLanes
from mmreplay.reading.lane_reader import LaneReader, LogReader, lane_state, store_state
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.storage.chunk_files import chunk_path
from mmreplay.storage.lane_metadata import read_holder, read_metadata
from mmreplay.storage.state_page import CheckpointFile
from mmreplay.system import checked_reads, platform
from mmreplay.system.held_directories import AnyPath

_ATTEMPTS = 20
_FLAG_BYTES = 1


def describe(lanes: LiveLanes, padding: str) -> dict[str, Any]:
    """What is in a store; every value is a plain one that JSON holds.

    The keys are in docs/commands.md. `last_row_s` is known to about half a minute: the time of a
    mapped file changes only when it is written to disk.
    """
    states = _settled_states(lanes)
    # The newest rows, and all that is counted: whatever looks again later sees newer ones.
    contents = lanes.contents()
    episodes, windows = contents.episodes, contents.windows
    transitions = sum(contents.n_transitions)
    ends = endings(lanes, episodes, states)
    ended = episodes[ends != "open"]
    sizes = {k: n for root in lanes.roots for k, n in checked_reads.allocated_bytes(root).items()}
    on_disk, raw = sum(sizes.values()), _raw_bytes(lanes, contents)
    stacked = transitions * _stacked_bytes(lanes)
    state, root = store_state(states), read_metadata(lanes.path)
    capacities = [reader.metadata["capacity"] for reader in lanes.readers]
    return {
        "path": str(lanes.path),
        "paths": [str(path) for path in lanes.roots],
        "format": root["format"],
        "state": state,
        "lanes": len(lanes.readers),
        "environments": sum(reader.n for reader in lanes.readers),
        "rows": sum(head for _, _, head in windows),
        "kept_rows": sum(head - base for base, _, head in windows),
        "transitions": transitions,
        "episodes": len(episodes),
        "terminated": int(np.count_nonzero(ends == "terminated")),
        "truncated": int(np.count_nonzero(ends == "truncated")),
        "open": len(episodes) - len(ended),
        "returns": _spread(ended["return"]),
        "lengths": _spread(ended["length"]),
        "capacity": None if None in capacities else sum(capacities),
        "non_finite_rewards": contents.n_odd_rewards,
        "fields": _fields(lanes, sizes),
        "episode_fields": {name: one.to_json() for name, one in lanes.fields.items()},
        "bytes_on_disk": on_disk,
        "bytes_raw": raw,
        "bytes_stacked": stacked,
        "stack": lanes.schema.stacks()[0] or 1,
        "saving_raw": raw / on_disk if raw and on_disk else None,
        "saving_stacked": stacked / on_disk if stacked and on_disk else None,
        "env": shared_metadata(lanes.readers),
        "uuid": root["uuid"],
        "padding": padding,
        "versions": root.get("versions"),
        "live": None if state == "closed" else _freshness(lanes, states),
        "lane_details": [
            {
                "path": str(reader.path),
                "name": reader.metadata.get("name"),
                "state": of_lane,
                "environments": reader.n,
                "rows": head,
                "first": first,
                "base": base,
                "transitions": n,
                "capacity": reader.metadata["capacity"],
            }
            for reader, of_lane, (base, first, head), n in zip(
                lanes.readers, states, windows, contents.n_transitions, strict=True
            )
        ],
    }


def action_names(lanes: LiveLanes) -> list[str]:
    """The names of the environment's actions by number; empty if the store has none."""
    about = shared_metadata(lanes.readers)
    names = about.get("action_names") if isinstance(about, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return []
    return names


def shared_metadata(readers: Iterable[LaneReader]) -> Any:
    """The JSON metadata of the lanes' environments: all ids, and what else they share."""
    found = [reader.metadata.get("env") for reader in readers]
    first = found[0]
    if not isinstance(first, dict) or all(one == first for one in found):
        return first
    others = [one if isinstance(one, dict) else {} for one in found[1:]]
    shared = {
        key: value for key, value in first.items() if all(one.get(key) == value for one in others)
    }
    named = [one.get("id") for one in (first, *others)]
    ids = dict.fromkeys(one for one in named if isinstance(one, str))
    return {"id": ", ".join(ids), **shared} if ids else shared


def endings(
    lanes: LiveLanes, episodes: npt.NDArray[np.void], states: Sequence[str] | None = None
) -> npt.NDArray[np.str_]:
    """How each episode ended: (n,) of ``terminated``, ``truncated`` and ``open``.

    Where a writer died, episodes ended as the next opening for writing will see it: terminated if
    their last step lost a life. `states` are those of the lanes; None looks.
    """
    if states is None:
        states = _states(lanes)
    crashed = np.array([state == "crashed" for state in states])[episodes["id"] >> LANE_SHIFT]
    terminated, truncated = episodes["terminated"].copy(), episodes["truncated"].copy()
    left = np.flatnonzero(crashed & ~terminated & ~truncated)
    truncated[left] = True
    terminated[left] = _lost_lives(lanes, episodes[left])
    return np.where(terminated, "terminated", np.where(truncated, "truncated", "open"))


def _lost_lives(lanes: LiveLanes, episodes: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Whether the last step of each of some episodes, (n,), was terminal."""
    strides = np.array([reader.n for reader in lanes.readers], np.int64)
    ids: Ids = episodes["id"]
    lasts = ids + (episodes["length"] - 1) * strides[ids >> LANE_SHIFT]

    def read() -> tuple[JoinedLanes, npt.NDArray[np.bool_]]:
        known = lanes.follow()
        there = np.flatnonzero(~known.index.invalid(lasts))
        out = np.zeros(lasts.size, np.bool_)
        out[there] = known.columns["non_terminals"].take(lasts[there]) == 0
        return known, out

    return lanes.retrying(read)


def _states(lanes: LiveLanes) -> list[str]:
    return [lane_state(reader.path, closed=reader.is_closed) for reader in lanes.readers]


def _settled_states(lanes: LiveLanes) -> list[str]:
    """The lanes' states, with the store's rows read while they were in them."""
    states: list[str] = []
    for _ in range(_ATTEMPTS):
        lanes.refresh()
        states = _states(lanes)
        # A writer that closed its lane since the refresh has left neither a lock nor a crash.
        each = zip(states, lanes.readers, strict=True)
        if not any(one == "crashed" and read_metadata(r.path)["closed"] for one, r in each):
            break
    return states


def _freshness(lanes: LiveLanes, states: Sequence[str]) -> dict[str, Any]:
    """How new the newest row is, what is durable of it, and who writes."""
    open_lanes = [
        reader for reader, state in zip(lanes.readers, states, strict=True) if state != "closed"
    ]
    now = time.time()
    heads = [reader.head for reader in open_lanes]
    logs = [reader.rows for reader in open_lanes]
    rows = [_age(log, _last_row(log), now) for log in logs]
    checkpoints = [_age(log, _modified(log.path / ".live" / "checkpoint"), now) for log in logs]
    unflushed = sum(_unflushed(reader) for reader in open_lanes)
    if any(
        reader.poll() and reader.head != head
        for reader, head in zip(open_lanes, heads, strict=True)
    ):
        rows = [0.0]
    return {
        "writers": _writers(open_lanes),
        "last_row_s": min(filter(math.isfinite, rows), default=None),
        "last_checkpoint_s": max(checkpoints) if all(map(math.isfinite, checkpoints)) else None,
        "unflushed_rows": unflushed,
        "untrusted_rows": sum(reader.rows.untrusted for reader in open_lanes),
    }


def _age(log: LogReader, at: float, now: float) -> float:
    """Seconds since `at`, by a clock that may have been set meanwhile; inf if `at` is 0: never."""
    if not at:
        return math.inf
    age = max(now - at, 0.0)
    # What stands in a page that is trusted came after this start of the system.
    return min(age, platform.uptime_s()) if log.is_live else age


def _last_row(log: LogReader) -> float:
    """When the newest row came, as far as the clocks of the files that hold it tell; 0 if never."""
    if not log.head:
        return 0.0
    paths: list[AnyPath] = []
    with contextlib.suppress(OSError, CorruptStoreError):  # it goes with a close
        live = log.path / ".live"
        names = checked_reads.names(live)
        paths += [live / name for name in names if name == "state" or name.endswith(".tail")]
    paths += [
        chunk_path(log.path, spec, (log.head - 1) // spec.chunk_rows)
        for spec in log.specs.values()
        if spec.is_raw and not spec.may_change
    ]
    return max((_modified(path) for path in paths), default=0.0)


def _modified(path: AnyPath) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _unflushed(reader: LaneReader) -> int:
    try:
        best = CheckpointFile(reader.path / ".live" / "checkpoint", reader.metadata["uuid"]).best
    except (OSError, MmreplayError):
        return 0  # closed at this moment, or damaged: `verify` says so
    return max(reader.head - best.head, 0)


def _writers(readers: Iterable[LaneReader]) -> list[dict[str, Any]]:
    """Who writes the lanes, or wrote them last, each once."""
    out: dict[tuple[Any, ...], dict[str, Any]] = {}
    for reader in readers:
        about = read_holder(reader.path)
        if about is not None:
            key = (about["pid"], about["host"])
            out.setdefault(key, {**about, "lanes": []})["lanes"].append(reader.number)
    return list(out.values())


def _raw_bytes(lanes: LiveLanes, contents: Contents) -> int:
    """What the lanes keep, uncompressed."""
    total = 0
    each = zip(lanes.readers, contents.windows, contents.n_finals, strict=True)
    for reader, (base, _, head), n_finals in each:
        total += (head - base) * sum(spec.row_bytes for spec in reader.rows.specs.values())
        total += n_finals * sum(spec.row_bytes for spec in reader.finals.specs.values())
    return total


def _fields(lanes: LiveLanes, sizes: Mapping[str, int]) -> dict[str, Any]:
    by_name: dict[str, list[tuple[LogReader, ArraySpec]]] = {}
    for reader in lanes.readers:
        for path, spec in reader.rows.specs.items():
            by_name.setdefault(path, []).append((reader.rows, spec))
        for path, spec in reader.finals.specs.items():
            by_name.setdefault(f"{FINALS}/{path}", []).append((reader.finals, spec))
    out: dict[str, Any] = {}
    for name, arrays in by_name.items():
        spec = arrays[0][1]
        codecs = {one.codec_name for _, one in arrays}
        folders = [str(log.path / one.path) for log, one in arrays]
        out[name] = {
            "dtype": spec.dtype.name,
            "shape": list(spec.row_shape),
            "codec": codecs.pop() if len(codecs) == 1 else "mixed",
            "chunk_rows": spec.chunk_rows,
            "bytes_on_disk": sum(sizes.get(folder, 0) for folder in folders),
        }
    return out


def _stacked_bytes(lanes: LiveLanes) -> int:
    """Bytes of one transition with all its frames, as a buffer that stores stacks keeps it."""
    schema = lanes.schema
    stack, keys = schema.stacks()
    total = sum(field.row_bytes for field in schema.columns().values()) + _FLAG_BYTES
    for key, field in schema.frames.items():
        each = (stack or 1) if keys is None or key in keys else 1
        total += (2 * each - 1) * field.row_bytes
    return total


def _spread(values: npt.NDArray[Any]) -> dict[str, float | int | None] | None:
    if not values.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spread = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    # JSON has no NaN.
    return {name: one.item() if np.isfinite(one) else None for name, one in spread.items()}
