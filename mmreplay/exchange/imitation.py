"""Trajectories of imitation, as ``imitation.data.serialize.save`` writes them: Arrow files.

Each has all its observations. Infos are pickles in texts, which are never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_columns import arrow_batches, from_arrow, shape_of
from mmreplay.exchange.fields import field, flags, need, reward_dtype
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming, Steps
from mmreplay.schema import FRAME

__all__ = ["read"]

_Shapes = dict[str, tuple[Any, Any]]


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A directory with ``data-….arrow``; a file is a pickle of an older version."""
    if not source.is_dir():
        raise FormatError(
            f"{source}: older versions of imitation saved trajectories as pickles, which can run "
            f"code, so an import does not open them. If you trust it, load and save it with "
            f"imitation.data.serialize of version 1.0"
        )
    pa = need("pyarrow")
    paths = sorted(source.glob("data-*.arrow"))
    if not paths:
        raise FormatError(f"{source}: expected data-….arrow, found none")
    first = next(_trajectories(paths))
    for name in ("obs", "acts", "terminal"):
        if name not in first.schema.names:
            raise FormatError(f"{source}: expected a column {name!r}, found {first.schema.names}")
    if isinstance(first.schema.field("obs").type, pa.StructType):
        raise FormatError(f"{source}: dict observations; expected arrays")
    shapes: _Shapes = {"rews": ((), np.dtype("float32"))}
    for name in {"obs", "acts", "rews"} & {*first.schema.names}:
        rows = first.column(name).flatten()
        found = shape_of(pa.field(name, rows.type), rows)
        if found is None:
            raise FormatError(f"{source}: {name}: expected arrays of numbers")
        shapes[name] = found
    if "rews" not in first.schema.names:
        losses.add("rewards: the source has none, so they are 0")
    yield Incoming(
        {FRAME: field(*shapes["obs"], "obs")},
        field(*shapes["acts"], "acts"),
        reward_dtype(shapes["rews"][1], "rews"),
        {},
        _steps(paths, shapes, losses),
    )


def _trajectories(paths: list[Path]) -> Iterator[Any]:
    """A batch of one row for each."""
    for path in paths:
        for batch in arrow_batches(path, is_stream=True):
            for number in range(len(batch)):
                yield batch.slice(number, 1)


def _steps(
    paths: list[Path], shapes: dict[str, tuple[Any, Any]], losses: Losses
) -> Iterator[Steps]:
    for one in _trajectories(paths):
        rows = {
            name: from_arrow(one.column(name).flatten(), *about, name)
            for name, about in shapes.items()
            if name in one.schema.names
        }
        losses.add("infos: pickles in texts", int("infos" in one.schema.names))
        n = len(rows["acts"])
        terminal = np.zeros(n, np.bool_)
        terminal[-1:] = flags(one.column("terminal").to_numpy(zero_copy_only=False), "terminal")
        reward = rows.get("rews", np.zeros(n, np.float32))
        yield Steps({FRAME: rows["obs"]}, rows["acts"], reward, terminal, {}, True, True)
