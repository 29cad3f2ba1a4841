"""What a writer process is to do, and its rows, which follow from a `Plot` alone.

Invariant: whoever knows the script knows what each row of the store must hold.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.schema import Field, Schema
from mmreplay.writing.create import create
from mmreplay.writing.vector_writer import VectorWriter
from tests.support.disks import faults
from tests.support.oracle.frames import Described, Plot
from tests.support.oracle.model import Model

Buffer = TypeVar("Buffer", bound=ReplayBuffer)
IMAGE_AND_JOINTS = {
    "image": [(5, 5, 3), "uint8", "lz4", 2, 8],
    "joints": [(7,), "float32", "raw", 16],
}
"""Fields of dict observations, as `Script.frame` has them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """What an actor is to do; it travels as JSON."""

    path: str  # the store
    report: str  # the file of acknowledgements; see `Chronicle`
    seed: int  # of the plot
    # shape, dtype, codec, chunk and shard by key; one of them is no dict observation
    frame: Mapping[str, Sequence[Any]]
    action_chunk: int | None = None  # rows a chunk of the scalar columns
    action: str = "int64"  # dtype of the actions
    envs: int | None = None  # environments that step together; None for a lane of one
    lane: str | None = None  # name of a lane of its own, in a store of many
    capacity: int | None = None  # transitions
    flush_s: float = 0.0  # seconds between flushes in the background
    session: int = 0  # seed of how long it writes, when it flushes, closes and opens again
    rows: int = 200  # rows of a session at most
    sessions: int = 1_000_000  # how many times it opens the store; the last one is closed
    pause_s: float = 0.0  # longest pause between two rows
    # what it does instead of that, each the name of a method of `player.Player` and its
    # arguments
    acts: Sequence[str] = ()
    die_at: int = 0  # end by SIGKILL before this call that changes the disk; 0 for never
    # a mounted file system that is to be cut off at that moment, too; empty for none
    mount: str = ""
    boot: str = ""  # boot id to go by, in hex; empty for the machine's own
    user: tuple[int, int] | None = None  # uid and gid to be; None for those of the tests
    # the call that fails (name, errno, which of them, whether all after it do, too)
    fails: tuple[str, int, int, bool] | None = None
    watch_from: int = 0  # number of the act from which calls count, and fail
    count: bool = False  # write how often each call was made to `report`.counts

    @property
    def fields(self):
        """The frame fields by key."""
        return {name: Field(tuple(s), *rest) for name, (s, *rest) in self.frame.items()}

    @property
    def plot(self):
        """What happens in which row."""
        frames = {name: Described(one) for name, one in self.fields.items()}
        return Plot(self.seed, frames, self.envs or 1)

    @property
    def syncs_fail(self):
        """Whether an fsync fails: of what was not flushed before, nothing is promised then."""
        return self.fails is not None and self.fails[0] in faults.SYNCING

    def create_arguments(self):
        """Keywords for `create`, of one lane of one environment or of many."""
        fields = self.fields
        return {
            "frame": fields if len(fields) > 1 else next(iter(fields.values())),
            "action": Field((), self.action, chunk=self.action_chunk),
            "extras": {"thought": Field((), "float32", chunk=self.action_chunk)},
            "capacity": self.capacity,
            "lanes": self.envs,
            "flush_s": self.flush_s,
            **({} if self.lane is None else {"lane": self.lane}),  # which a buffer does not take
        }

    def open(self, **changes):
        """Open the store for writing; make it, or complete it, if need be."""
        return create(self.path, **self.create_arguments() | changes, append=True)

    def open_buffer(self, kind, **changes):
        """Open the store as a buffer of that kind; make it, or complete it, if need be."""
        return kind(self.path, **self.create_arguments() | changes)

    @property
    def schema(self):
        arguments = self.create_arguments()
        return Schema.make(arguments["frame"], arguments["action"], arguments["extras"])

    def model(self):
        """A model of the empty store."""
        return Model(self.schema, [self.capacity], self.envs)


def with_session(script, session, **changes):
    """The same script, acted in another way."""
    return dataclasses.replace(script, session=session, **changes)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """What happens in a row, as a plot has it.

    Where an episode has ended the next one may begin some rows later, but in environment 0.
    """

    begins: list[int]  # the environments of which an episode begins before the step
    # the first row of each environment's episode, None for those that are left out
    starts: list[int | None]
    goes_on: list[int | None]  # the same, as it is after the step

    @classmethod
    def at(cls, plot, row, starts):
        """Of a row, after one that has left `starts`."""
        begins = [
            env
            for env, start in enumerate(starts)
            if (start is None and (not env or plot.action(env, row) % 3))
            or (start is not None and start != row and plot.begins(env, row))
        ]
        here = [row if env in begins else start for env, start in enumerate(starts)]
        over = [any(plot.flags(env, row)[:2]) for env in range(len(starts))]
        return cls(begins, here, [None if o else s for o, s in zip(over, here, strict=True)])


def append_rows(writer, plot, starts, report=None):
    """One row, as the plot has it; may be called again after a full disk."""
    if isinstance(writer, PrioritizedReplayBuffer):
        writer = writer.writer
    row = writer.rows
    turn = Turn.at(plot, row, starts)
    _begin(writer, plot, turn)
    starts[:] = turn.starts
    everyone = range(len(starts))
    try:
        frames = _frames(writer, plot, row + 1, turn.starts)
        if isinstance(writer, VectorWriter):
            present = np.array([start is not None for start in turn.starts])
            flags = np.array([plot.flags(env, row) for env in everyone])
            writer.step(
                np.array([plot.action(env, row) for env in everyone]),
                np.array([plot.reward(env, row) for env in everyone]),
                frames,
                flags[:, 0],
                flags[:, 1],
                life_lost=flags[:, 2],
                mask=None if present.all() else present,
                thought=np.array([plot.extra(env, row) for env in everyone]),
            )
        else:
            *ends, life_lost = plot.flags(0, row)
            action = _formed(plot.action(0, row), writer.schema.action)
            extra = plot.extra(0, row)
            writer.step(
                action, plot.reward(0, row), frames, *ends, life_lost=life_lost, thought=extra
            )
    finally:
        if writer.rows > row:
            starts[:] = turn.goes_on
        if report is not None:
            report[0] = writer.rows


def _begin(writer, plot, turn):
    if not turn.begins:
        return
    first = _frames(writer, plot, writer.rows, turn.starts)
    if not isinstance(writer, VectorWriter):
        writer.reset(first)
        return
    mask = np.isin(np.arange(len(writer)), turn.begins)
    writer.reset(first, None if mask.all() else mask)


def _frames(writer, plot, number, starts):
    """The frame of that number of each environment, whose episode has begun with its `starts`."""
    firsts = [start or 0 for start in starts]
    each = [plot.frame(env, number, first) for env, first in enumerate(firsts)]
    if not isinstance(writer, VectorWriter):
        return each[0]
    if len(plot.frames) > 1:
        return {name: np.stack([one[name] for one in each]) for name in plot.frames}
    return np.stack(each)


def _formed(action, one):
    """An action in one of the forms in which a field of floats takes it."""
    given = np.array(action, one.dtype)
    return (
        (action, float(action), given[()], given)[action % 4] if one.dtype.kind == "f" else action
    )
