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
from mmreplay.ids import LANE_SHIFT
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.lane_state import lane_state, store_state
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.chunk_files import chunk_path
from mmreplay.storage.lane_metadata import read_holder, read_metadata
from mmreplay.system import checked_reads, platform
from mmreplay.system.held_directories import AnyPath

STACK = 4
"""Images an observation in the stacked storage that a store is compared with."""

_ATTEMPTS = 20


def describe(lanes: LiveLanes, padding: str) -> dict[str, Any]:
    """What is in a store; every value is a plain one that JSON holds.

    The newest rows are taken first. The keys are in docs/api.md; what is not said there:

    - state is ``live`` if a writer is at work on any lane now, ``crashed`` if one was left by a
      writer that died, else ``closed``.
    - rows, transitions, episodes and capacity are of all lanes; capacity is None if any keeps all.
    - open episodes are still running, or, in a live lane, cut off with no reset after it yet.
    - returns and lengths are None if no episode ended, and so is a value that is not finite.
    - bytes_stacked counts the transitions with `stack` frames each as observation and next
      observation, action, reward, one flag and extras. Vectors are rarely stacked: for these it is
      1 frame.
    - last_row_s is known to about half a minute: the clock of a mapped file stands still between
      two writes to disk.
    """
    states = _settled_states(lanes)
    episodes = lanes.episodes()  # takes the newest rows; what follows is of the same ones
    windows = [lanes.index.window(number) for number in range(len(lanes.readers))]
    counts = [_transitions(lanes, number) for number in range(len(lanes.readers))]
    transitions = sum(counts)
    ends = endings(lanes, episodes, states)
    ended = episodes[ends != "open"]
    roots = _roots(lanes)
    sizes = {k: n for root in roots for k, n in checked_reads.allocated_bytes(root).items()}
    on_disk = sum(sizes.values())
    fields = _fields(lanes, sizes)
    kept_rows = sum(head - base for base, _, head in windows)
    row_bytes = sum(spec.row_bytes for spec in lanes.readers[0].specs.values())
    stack = _usual_stack(lanes)
    stacked = transitions * _stacked_bytes(lanes, stack)
    state = store_state(states)
    capacities = [reader.metadata["capacity"] for reader in lanes.readers]
    root = read_metadata(roots[0])
    return {
        "path": str(roots[0]),
        "paths": [str(path) for path in roots],
        "format": root["format"],
        "state": state,
        "lanes": len(lanes.readers),
        "rows": sum(head for _, _, head in windows),
        "kept_rows": kept_rows,
        "transitions": transitions,
        "episodes": len(episodes),
        "terminated": int(np.count_nonzero(ends == "terminated")),
        "truncated": int(np.count_nonzero(ends == "truncated")),
        "open": len(episodes) - len(ended),
        "returns": _spread(ended["return"]),
        "lengths": _spread(ended["length"]),
        "capacity": None if None in capacities else sum(capacities),
        "fields": fields,
        "bytes_on_disk": on_disk,
        "bytes_raw": kept_rows * row_bytes,
        "bytes_stacked": stacked,
        "stack": stack,
        "saving_raw": _ratio(kept_rows * row_bytes, on_disk),
        "saving_stacked": _ratio(stacked, on_disk),
        "env": lanes.readers[0].metadata.get("env"),
        "uuid": root["uuid"],
        "padding": padding,
        "versions": root.get("versions"),
        "live": None if state == "closed" else _freshness(lanes, states),
        "lane_details": _lane_details(lanes, states, counts),
    }


def endings(
    lanes: LiveLanes, episodes: npt.NDArray[np.void], states: Sequence[str] | None = None
) -> npt.NDArray[np.str_]:
    """How each episode ended: (n,) of ``terminated``, ``truncated`` and ``open``.

    The newest episode of a lane whose writer died goes on no more: it was cut off there, as the
    next opening for writing will see it. `states` are those of the lanes; None looks.
    """
    if states is None:
        states = _states(lanes)
    crashed = np.array([state == "crashed" for state in states])[episodes["id"] >> LANE_SHIFT]
    cut = episodes["truncated"] | (crashed & ~episodes["terminated"])
    return np.where(episodes["terminated"], "terminated", np.where(cut, "truncated", "open"))


def _states(lanes: LiveLanes) -> list[str]:
    return [lane_state(reader.path, closed=reader.metadata["closed"]) for reader in lanes.readers]


def _settled_states(lanes: LiveLanes) -> list[str]:
    """The lanes' states, with the store's rows read while they were in them."""
    states: list[str] = []
    for _ in range(_ATTEMPTS):
        lanes.refresh()
        states = _states(lanes)
        # A writer that closed its lane since the refresh has left neither a lock nor a crash.
        if not any(
            state == "crashed" and read_metadata(reader.path)["closed"]
            for state, reader in zip(states, lanes.readers, strict=True)
        ):
            break
    return states


def _freshness(lanes: LiveLanes, states: Sequence[str]) -> dict[str, Any]:
    """How new the newest row is, what is durable of it, and who writes."""
    open_lanes = [
        reader for reader, state in zip(lanes.readers, states, strict=True) if state != "closed"
    ]
    now = time.time()
    heads = [reader.head for reader in open_lanes]
    rows = [_age(reader, _last_row(reader), now) for reader in open_lanes]
    checkpoints = [
        _age(reader, _modified(reader.path / ".live" / "checkpoint"), now) for reader in open_lanes
    ]
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
        "untrusted_rows": sum(reader.untrusted for reader in open_lanes),
    }


def _age(reader: LaneReader, at: float, now: float) -> float:
    """Seconds since `at`, by a clock that may have been set meanwhile; inf if `at` is 0: never."""
    age = max(now - at, 0.0) if at else math.inf
    # What stands in a page that is trusted came after this start of the system.
    return min(age, platform.uptime_s()) if at and reader.is_live else age


def _last_row(reader: LaneReader) -> float:
    """When the newest row came, as far as the clocks of the files that hold it tell; 0 if never."""
    if not reader.head:
        return 0.0
    paths: list[AnyPath] = []
    with contextlib.suppress(OSError, CorruptStoreError):  # it goes with a close
        live = reader.path / ".live"
        names = checked_reads.names(live)
        paths += [live / name for name in names if name == "state" or name.endswith(".tail")]
    paths += [
        chunk_path(reader.path, spec, (reader.head - 1) // spec.chunk_rows)
        for spec in reader.specs.values()
        if spec.is_raw
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


def _roots(lanes: LiveLanes) -> list[AnyPath]:
    """The directories of the stores that the lanes belong to, in order."""
    out: dict[AnyPath, None] = {}
    groups: dict[AnyPath, bool] = {}
    for reader in lanes.readers:
        parent = reader.path.parent
        if parent not in groups:
            groups[parent] = reader.path.name.startswith("lane-") and _is_group(parent)
        out[parent if groups[parent] else reader.path] = None
    return list(out)


def _is_group(path: AnyPath) -> bool:
    try:
        return bool(read_metadata(path)["kind"] == "lanes")
    except MmreplayError:
        return False


def _fields(lanes: LiveLanes, sizes: Mapping[str, int]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path in sorted(lanes.readers[0].specs, key=_order):
        specs = [reader.specs[path] for reader in lanes.readers]
        codecs = {spec.codec_name for spec in specs}
        folders = [str(reader.path / path) for reader in lanes.readers]
        out[path] = {
            "dtype": specs[0].dtype.name,
            "shape": list(specs[0].row_shape),
            "codec": codecs.pop() if len(codecs) == 1 else "mixed",
            "chunk_rows": specs[0].chunk_rows,
            "bytes_on_disk": sum(sizes.get(folder, 0) for folder in folders),
        }
    return out


def _order(path: str) -> tuple[int, str]:
    first = path.partition("/")[0]
    names = ("frames", "actions", "rewards", "non_terminals", "resets", "extras")
    return names.index(first), path


def _usual_stack(lanes: LiveLanes) -> int:
    """Frames an observation that most would train with: several if some of them are images."""
    frames = lanes.readers[0].schema.frames.values()
    return STACK if any(len(field.shape) > 1 for field in frames) else 1


def _stacked_bytes(lanes: LiveLanes, stack: int) -> int:
    """Bytes of one transition with all its frames, as a buffer that stores stacks keeps it."""
    specs = lanes.readers[0].specs
    frames = sum(spec.row_bytes for path, spec in specs.items() if path.startswith("frames"))
    rest = sum(
        spec.row_bytes
        for path, spec in specs.items()
        if path != "resets" and not path.startswith("frames")
    )
    return 2 * stack * frames + rest


def _transitions(lanes: LiveLanes, lane: int) -> int:
    _, first, head = lanes.index.window(lane)
    resets = lanes.index.resets(lane)
    return max(head - 1 - first, 0) - int(np.count_nonzero((resets > first) & (resets < head)))


def _lane_details(
    lanes: LiveLanes, states: Sequence[str], counts: Sequence[int]
) -> list[dict[str, Any]]:
    out = []
    for number, (reader, state) in enumerate(zip(lanes.readers, states, strict=True)):
        base, first, head = lanes.index.window(number)
        out.append(
            {
                "path": str(reader.path),
                "name": reader.metadata.get("name"),
                "state": state,
                "rows": head,
                "first": first,
                "base": base,
                "transitions": counts[number],
                "capacity": reader.metadata["capacity"],
            }
        )
    return out


def _spread(values: npt.NDArray[Any]) -> dict[str, float | int | None] | None:
    if not values.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spread = {"min": values.min(), "mean": values.mean(), "max": values.max()}
    return {name: _finite(value.item()) for name, value in spread.items()}


def _finite(value: float) -> float | int | None:
    return value if math.isfinite(value) else None  # JSON has no NaN


def _ratio(whole: int, part: int) -> float | None:
    return whole / part if part and whole else None
