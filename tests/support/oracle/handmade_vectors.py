"""Lanes of many environments written by hand, from docs/format.md: closed, live, or left so.

What happens is a list: ``Reset`` begins episodes, ``Tick`` is a step of some environments. Numpy
arrays of the whole lane follow from it, and what is on the disk is a part of those.
"""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mmreplay.format import layout, plan
from mmreplay.format.layout import CONTEXT_ROWS, ArraySpec
from mmreplay.schema import Schema
from mmreplay.storage import shard_file, tail_file
from mmreplay.storage.state_page import BASE, COMMITTED, TAIL_START, State
from mmreplay.writing.build_lane import build_live
from tests.support.oracle.handmade_lanes import inner_chunk

__all__ = ["HandmadeVector", "Reset", "Step", "Tick", "episodes_of", "play"]


@dataclasses.dataclass
class Step:
    """What one step gave to one environment."""

    action: Any
    reward: float
    frame: Any
    terminated: bool = False
    truncated: bool = False
    life_lost: bool = False
    extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Reset:
    """First observations by environment."""

    frames: Mapping[int, Any]


@dataclasses.dataclass
class Tick:
    """Steps by environment; those that are not there are left out."""

    steps: Mapping[int, Step]


Event = Reset | Tick

_PIECE_ROWS = 8


def play(schema: Schema, width: int, n_ticks: int, seed: int = 0) -> list[Event]:
    """Random episodes: they begin when they can or a little later, and end in every way.

    The first ones begin at once, so that this may go on from where any others ended.
    """
    random = np.random.default_rng(seed)
    fields = schema.columns()

    def value(path: str) -> Any:
        one = fields[path]
        return random.integers(1, 100, one.shape).astype(one.dtype)

    def frame() -> Any:
        found = {key: value(path) for key, path in schema.frame_paths.items()}
        return found if schema.is_dict else found["frame"]

    out: list[Event] = []
    running: set[int] = set()
    for tick in range(n_ticks):
        begin = {e for e in range(width) if e not in running and random.random() < 0.6}
        if not tick:
            begin = set(range(width))
        if not running and not begin:
            begin = {int(random.integers(width))}
        begin |= {e for e in running if random.random() < 0.03}
        if begin:
            out.append(Reset({e: frame() for e in sorted(begin)}))
        running |= begin
        steps = {}
        for env in sorted(running):
            how = random.random()
            steps[env] = Step(
                value("actions"),
                float(value("rewards")),
                frame(),
                terminated=how < 0.06,
                truncated=0.03 < how < 0.1,
                life_lost=0.1 < how < 0.14,
                extras={name: value(path) for name, path in schema.extra_paths.items()},
            )
            if how < 0.1:
                running.discard(env)
        out.append(Tick(steps))
    return out


class HandmadeVector:
    """A lane of `width` environments, live until `close`; shards are of whole pieces of 8 rows.

    `ticks` and `starts` are its arrays as they are by now, from the first row on, by path.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        width: int,
        *,
        capacity: int | None = None,
        specs: Mapping[str, Mapping[str, ArraySpec]] | None = None,
        name: str | None = None,
    ) -> None:
        self.path, self.schema, self.width, self.capacity = path, schema, width, capacity
        self.uuid = uuid.uuid4().hex
        given = specs or {}
        self.specs = {
            "ticks": dict(given.get("ticks") or plan.plan_ticks(schema, width, capacity)),
            "starts": dict(given.get("starts") or plan.plan_starts(schema)),
        }
        own = {
            "format": layout.FORMAT,
            "kind": "vector",
            "uuid": self.uuid,
            "width": width,
            "schema": schema.to_json(),
            "capacity": capacity,
            "padding": "reset",
            "env": {},
            "versions": {},
            **({"name": name} if name else {}),
        }
        path.mkdir(parents=True)
        (path / "zarr.json").write_bytes(layout.group_json(own))
        self._known: dict[str, dict[str, Any]] = {}
        self._running: dict[int, int] = {}
        self._rows: dict[str, list[dict[str, Any]]] = {"ticks": [], "starts": []}
        self.base, self.tail_start = {"ticks": 0, "starts": 0}, {"ticks": 0, "starts": 0}
        self._written = {"ticks": 0, "starts": 0}
        self.states: dict[str, State] = {}
        for log, arrays in self.specs.items():
            for spec in [*arrays.values(), *(layout.checksum_spec(path) for path in arrays)]:
                folder = path / log / spec.path
                folder.mkdir(parents=True)
                (folder / "zarr.json").write_bytes(layout.array_json(spec, 0))
                for group in PurePosixPath(spec.path).parents:
                    (path / log / group / "zarr.json").write_bytes(layout.group_json())
            self._attributes(log, closed=False)
            build_live(path / log, self.uuid, arrays, head=0, tail_start=0, base=0)
            self.states[log] = State(path / log / ".live" / "state", writable=True)
            self.states[log].start(base=0, tail_start=0, committed=0)

    def _attributes(self, log: str, *, closed: bool) -> None:
        rows = len(self._rows[log]) if closed else 0
        base = self.base[log] if closed else 0
        own = {
            "format": layout.FORMAT,
            "kind": "log",
            "uuid": self.uuid,
            "rows": rows,
            "first": base + CONTEXT_ROWS + (log == "ticks") if base else 0,
            "closed": closed,
        }
        (self.path / log / "zarr.json").write_bytes(layout.group_json(own))

    # ------------------------------------------------------------ what the arrays are

    @property
    def ticks(self) -> dict[str, Any]:
        """Arrays of ticks by path, (T, width, ...)."""
        return self._arrays("ticks")

    @property
    def starts(self) -> dict[str, Any]:
        """Arrays of starts by path, (S, ...)."""
        return self._arrays("starts")

    def _arrays(self, log: str) -> dict[str, Any]:
        if log not in self._known:
            rows = self._rows[log]
            self._known[log] = {
                path: np.array([row[path] for row in rows], spec.dtype).reshape(-1, *spec.row_shape)
                for path, spec in self.specs[log].items()
            }
        return self._known[log]

    def _frames(self, frame: Any) -> dict[str, Any]:
        paths = self.schema.frame_paths
        return {path: frame[key] if self.schema.is_dict else frame for key, path in paths.items()}

    def add(self, events: Iterable[Event]) -> None:
        """Rows of what happens, which `commit` writes."""
        self._known.clear()
        for event in events:
            if isinstance(event, Reset):
                self._reset(event.frames)
            else:
                self._step(event.steps)

    def _reset(self, frames: Mapping[int, Any]) -> None:
        tick = len(self._rows["ticks"])
        for env, frame in frames.items():
            if env in self._running and tick and self._rows["ticks"][-1]["episode"][env] >= 0:
                self._rows["ticks"][-1]["ends"][env] = 1
            self._running[env] = len(self._rows["starts"])
            self._rows["starts"].append({**self._frames(frame), "env": env, "tick": tick})

    def _step(self, steps: Mapping[int, Step]) -> None:
        rows = self._rows["ticks"]
        row: dict[str, Any] = {
            path: np.zeros(spec.row_shape, spec.dtype) for path, spec in self.specs["ticks"].items()
        }
        row["episode"][:] = -1
        for env, step in steps.items():
            values = {"actions": step.action, "rewards": step.reward, **self._frames(step.frame)}
            values |= {f"extras/{name}": value for name, value in step.extras.items()}
            values["non_terminals"] = not (step.terminated or step.life_lost)
            values["ends"] = step.terminated or step.truncated
            values["episode"] = self._running[env]
            for path, value in values.items():
                row[path][env] = value
            if values["ends"]:
                del self._running[env]
        n = len(steps)
        absent = [env for env in range(n) if env not in steps]
        beyond = [env for env in range(n, self.width) if env in steps]
        for env, other in zip(absent, beyond, strict=True):
            row["episode"][env] = -1 - other
        row["count"] = np.int64(n + (int(rows[-1]["count"]) if rows else 0))
        rows.append(row)

    # ------------------------------------------------------------ what is on the disk

    def commit(self, *, starts: bool = True, ticks: bool = True) -> None:
        """Write the rows that came since: of starts, then of ticks."""
        for log in ["starts"] * starts + ["ticks"] * ticks:
            self._write(log)

    def _write(self, log: str) -> None:
        # A reset may have changed the newest of those before.
        start = max(self._written[log] - 1, self.base[log])
        head = len(self._rows[log])
        while start < head:
            stop = min((start // _PIECE_ROWS + 1) * _PIECE_ROWS, head)
            for path, spec in self.specs[log].items():
                values = np.array([row[path] for row in self._rows[log][start:stop]], spec.dtype)
                if spec.is_raw:
                    self._write_raw(log, path, start, values)
                else:
                    if stop > self.tail_start[log] + 2 * spec.chunk_rows:
                        self._seal(log)
                    tail = tail_file.map_tail(self.path / log, spec, writable=True)
                    tail[np.arange(start, stop) % len(tail)] = values
            self.states[log].words[COMMITTED] = start = stop
        self._written[log] = head

    def _write_raw(self, log: str, path: str, start: int, values: Any) -> None:
        n = self.specs[log][path].chunk_rows
        for chunk in range(start // n, -(-(start + len(values)) // n)):
            first, last = max(chunk * n, start), min((chunk + 1) * n, start + len(values))
            rows = values[first - start : last - start]
            self.chunk(log, path, chunk)[first - chunk * n : last - chunk * n] = rows

    def chunk(self, log: str, path: str, chunk: int) -> Any:
        """A raw chunk file, mapped for writing."""
        spec = self.specs[log][path]
        file = self.path / log / path / spec.key(chunk)
        if not file.exists():
            file.write_bytes(bytes(spec.chunk_bytes))
        if spec.width == 1:
            return np.memmap(file, spec.dtype, "r+", shape=(spec.chunk_rows, *spec.row_shape))
        parts = (spec.width, spec.chunk_rows, *spec.row_shape[1:])
        return np.memmap(file, spec.dtype, "r+", shape=parts).swapaxes(0, 1)

    def _seal(self, log: str) -> None:
        """Write the older half of the tails into shards."""
        start = self.tail_start[log]
        for path, spec in self.specs[log].items():
            if not spec.is_raw:
                self._write_shard(log, path, start // spec.chunk_rows, start + spec.chunk_rows)
                self.tail_start[log] = start + spec.chunk_rows
        self.states[log].words[TAIL_START] = self.tail_start[log]

    def _write_shard(self, log: str, path: str, shard: int, head: int) -> None:
        spec = self.specs[log][path]
        rows = [self._rows[log][row][path] for row in range(shard * spec.chunk_rows, head)]
        rows = rows[: spec.chunk_rows]
        whole = np.zeros((spec.chunk_rows, *spec.row_shape), spec.dtype)
        whole[: len(rows)] = rows
        chunks = []
        for begin in range(0, len(rows), spec.inner_rows):
            block = whole[begin : begin + spec.inner_rows]
            if spec.width == 1:
                chunks.append(inner_chunk(block, spec.codec))
            else:
                chunks += [inner_chunk(block[:, env], spec.codec) for env in range(spec.width)]
        (self.path / log / path / spec.key(shard)).write_bytes(shard_file.assemble(spec, chunks))

    def evict(self, tick: int) -> None:
        """Let go of the ticks below, and of the starts that nobody needs then."""
        episodes = np.array([row["episode"] for row in self._rows["ticks"][tick:]])
        self._evict("ticks", tick)
        self._evict("starts", max(int(episodes[episodes >= 0].min()) - CONTEXT_ROWS, 0))

    def _evict(self, log: str, base: int) -> None:
        self.base[log] = base
        self.states[log].words[BASE] = base
        for path, spec in self.specs[log].items():
            for chunk in range(base // spec.chunk_rows):
                (self.path / log / path / spec.key(chunk)).unlink(missing_ok=True)

    def close(self, logs: Sequence[str] = ("starts", "ticks")) -> None:
        """Leave plain zarr arrays of what was committed."""
        for log in logs:
            self._write(log)
            head = len(self._rows[log])
            for path, spec in self.specs[log].items():
                if not spec.is_raw:
                    for shard in range(
                        self.tail_start[log] // spec.chunk_rows, -(-head // spec.chunk_rows)
                    ):
                        self._write_shard(log, path, shard, head)
                (self.path / log / path / "zarr.json").write_bytes(layout.array_json(spec, head))
            self._attributes(log, closed=True)
            self.states[log].end()
            shutil.rmtree(self.path / log / ".live")


def episodes_of(lane: HandmadeVector, *, live: bool = False) -> list[tuple[Any, ...]]:
    """(id, length, return, terminated, truncated) of every episode, in the order of starts."""
    ticks, out = lane.ticks, []
    n_starts = len(lane.starts["env"])
    for number in range(n_starts):
        cells = np.argwhere(ticks["episode"] == number)
        if not len(cells):
            continue
        (first, env), last = cells[0].tolist(), int(cells[-1][0])
        rewards = ticks["rewards"][cells[:, 0], env].astype(np.float64)
        runs = live and not ticks["ends"][last, env]
        down = not ticks["non_terminals"][last, env]
        one = first * lane.width + env
        out.append((one, len(cells), rewards.sum(), down and not runs, not down and not runs))
    return out
