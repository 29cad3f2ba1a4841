"""Lanes of many environments written by hand, from docs/format.md: closed, live, or left so.

What happened is told to a model; its arrays are those of the lane, and a part of them is on disk.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
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
from tests.support.oracle.vector_pair import Numbers, VectorPair
from tests.support.oracle.vectors import VectorModel

__all__ = ["HandmadeVector", "episodes_of"]


_PIECE_ROWS = 8


class HandmadeVector:
    """A lane of `width` environments, live until `close`; shards are of whole pieces of 8 rows.

    `model` has what happened, and `pair` lets more happen; `ticks` and `starts` are its arrays as
    they are by now, from the first row on, by path.
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
        seed: int = 0,
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
        self.model = VectorModel(schema, width, capacity)
        self.pair = VectorPair([], self.model, np.random.default_rng(seed), Numbers())
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
        rows = self._n_rows(log) if closed else 0
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
        return self.model.columns("ticks")

    @property
    def starts(self) -> dict[str, Any]:
        """Arrays of starts by path, (S, ...)."""
        return self.model.columns("starts")

    def play(self, n_ticks: int) -> None:
        """Random episodes, which `commit` writes; those that run end before."""
        if n_ticks:
            self.pair.reset()
        self.pair.play(n_ticks)

    def _n_rows(self, log: str) -> int:
        return len(self.model.ticks if log == "ticks" else self.model.episodes)

    # ------------------------------------------------------------ what is on the disk

    def commit(self, *, starts: bool = True, ticks: bool = True) -> None:
        """Write the rows that came since: of starts, then of ticks."""
        for log in ["starts"] * starts + ["ticks"] * ticks:
            self._write(log)

    def _write(self, log: str) -> None:
        # A reset may have changed the newest of those before.
        start = max(self._written[log] - 1, self.base[log])
        head = self._n_rows(log)
        while start < head:
            stop = min((start // _PIECE_ROWS + 1) * _PIECE_ROWS, head)
            for path, spec in self.specs[log].items():
                values = self.model.columns(log)[path][start:stop]
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
        rows = self.model.columns(log)[path][:head][shard * spec.chunk_rows :][: spec.chunk_rows]
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
        named = [one.number for later in self.model.ticks[tick:] for one in later.values()]
        self._evict("ticks", tick)
        self._evict("starts", max(min(named) - CONTEXT_ROWS, 0))

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
            head = self._n_rows(log)
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
