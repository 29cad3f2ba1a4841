"""Trajectories of imitation, as ``imitation.data.serialize.save`` writes them: Arrow files.

Each has all its observations. Infos are pickles in texts, and never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.arrow_columns import from_arrow, shape_of
from mmreplay.exchange.fields import field, flags, need, reward_dtype
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.steps import Incoming, Steps, block_steps, pieces_of
from mmreplay.schema import FRAME

__all__ = ["read"]


@contextmanager
def read(source: Path, losses: Losses) -> Iterator[Incoming]:
    """A directory with ``data-….arrow``; a file is of an older version, and a pickle."""
    if not source.is_dir():
        raise FormatError(
            f"{source}: older versions of imitation saved trajectories as pickles, which run what "
            f"is in them, so that nothing here opens one. If you trust it, load and save it with "
            f"imitation.data.serialize of version 1.0"
        )
    pa = need("pyarrow")
    paths = sorted(source.glob("data-*.arrow"))
    if not paths:
        raise FormatError(f"{source}: expected data-….arrow, found none")
    with ExitStack() as stack:
        readers = [pa.ipc.open_stream(stack.enter_context(pa.memory_map(str(p)))) for p in paths]
        schema = readers[0].schema
        for name in ("obs", "acts", "terminal"):
            if name not in schema.names:
                raise FormatError(f"{source}: expected a column {name!r}, found {schema.names}")
        if isinstance(schema.field("obs").type, pa.StructType):
            raise FormatError(f"{source}: dict observations; expected arrays")
        with pa.memory_map(str(paths[0])) as file:
            first = pa.ipc.open_stream(file).read_next_batch()
            first.validate(full=True)
            first = first.slice(0, 1)
            shapes = {}
            for name in ("obs", "acts", "rews"):
                if name in schema.names:
                    rows = first.column(name).flatten()
                    shapes[name] = shape_of(pa.field(name, rows.type), rows)
        if "rews" not in schema.names:
            losses.add("rewards: the source has none, so they are 0")
        observation, action = shapes["obs"], shapes["acts"]
        if observation is None or action is None:
            raise FormatError(f"{source}: observations and actions: expected arrays of numbers")
        reward = shapes.get("rews") or ((), np.dtype("float32"))
        frame = field(*observation, "obs")
        yield Incoming(
            frame,
            field(*action, "acts"),
            reward_dtype(reward[1], "rews"),
            {},
            {},
            _steps(readers, observation, action, reward, losses, block_steps(frame.row_bytes)),
        )


def _steps(
    readers: list[Any], observation: Any, action: Any, about_rewards: Any, losses: Losses, size: int
) -> Iterator[Steps]:
    for reader in readers:
        for batch in reader:
            batch.validate(full=True)  # or lists that lie elsewhere end the process
            if "infos" in batch.schema.names:
                losses.add("infos: pickles in texts", len(batch))
            for number in range(len(batch)):
                one = batch.slice(number, 1)

                def rows(name: str, about: Any, one: Any = one) -> Any:
                    shape, dtype = about
                    return from_arrow(one.column(name).flatten(), shape, dtype, name)

                acts = rows("acts", action)
                n = len(acts)
                given = "rews" in one.schema.names
                reward = rows("rews", about_rewards) if given else np.zeros(n, np.float32)
                terminal = np.zeros(n, np.bool_)
                terminal[-1:] = flags(
                    one.column("terminal").to_numpy(zero_copy_only=False), "terminal"
                )
                obs = {FRAME: rows("obs", observation)}
                yield from pieces_of(Steps(obs, acts, reward, terminal, {}, True, True), size)
