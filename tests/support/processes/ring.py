"""A process that steps a small replay buffer for long: ``python -m tests.support.processes.ring ORDER``.

Invariant: what row r holds follows from r alone, so that whoever goes on after a kill can check
every row that is there; nothing but the steps themselves, and the batches between them, is timed.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np

from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.format.layout import CONTEXT_ROWS
from mmreplay.schema import Field
from mmreplay.storage.chunk_files import chunk_files
from mmreplay.writing.writer import Writer
from tests.support.processes.usage import usage
from tests.support.quiet import quiet

_EPISODE_ROWS = 701
_BATCH = 32
_BATCH_EVERY = 100  # rows
_POOL = 4_099
FRAMES = np.random.default_rng(0).integers(0, 4, (_POOL, 8, 8), "uint8")
"""Row r holds frame r % len(FRAMES)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What to do; it travels as JSON."""

    path: str  # the store, made if it is not there
    capacity: int  # transitions
    rows: int  # go on until there are as many
    codec: str  # of the frames
    chunk: int | None = None  # rows a chunk of every column; None for what the package takes
    shard: int | None = None  # rows a shard of compressed frames
    window: int = 100_000  # rows between two looks
    plain_rows: int = 50_000  # of the ring in memory that each look compares with

    def field(self):
        if self.codec == "raw":
            return Field((8, 8), "uint8", "raw", chunk=self.chunk)
        return Field((8, 8), "uint8", self.codec, chunk=self.shard and 16, shard=self.shard)


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """What was found after a window of rows; printed as a line of JSON."""

    rows: int  # committed
    opened_at: int  # rows there were when this process opened the store
    seconds: float  # that the window's rows and batches took
    cpu_s: float  # of the processor, in all threads of this process
    # that a ring in memory took for some rows, right after: what the machine can do at this
    # moment
    plain_s: float
    batches: int  # drawn and checked in the window
    sampled: int  # transitions that can be sampled
    files: int  # data files that there should be
    found: int  # data files that there are
    taken: dict[str, int]  # the fields of `Usage`


def step_on(order):
    """Open the store, check what is there, and step it, looking at itself every window."""
    buffer = ReplayBuffer(
        order.path,
        order.capacity,
        stack=2,
        frame=order.field(),
        action=Field((), "int64", chunk=order.chunk),
    )
    writer = _writer_of(buffer)
    if writer.rows:
        check_rows(buffer.store)
    opened_at = writer.rows
    kept = None
    while writer.rows < order.rows:
        stop = min(writer.rows // order.window * order.window + order.window, order.rows)
        n_batches, seconds, cpu_s = 0, 0.0, 0.0
        while writer.rows < stop:
            middle = min(writer.rows + _BATCH_EVERY, stop)
            began, used = time.perf_counter(), time.process_time()
            _append(buffer, writer.rows, middle, must_reset=writer.rows == opened_at)
            kept = buffer.sample(_BATCH, out=kept)
            seconds += time.perf_counter() - began
            cpu_s += time.process_time() - used
            n_batches += 1
            _check(kept.id, kept.observation, kept.next_observation, kept.action, kept.reward)
        _look(buffer, order, opened_at, (seconds, cpu_s), n_batches)
    buffer.close()


def _writer_of(buffer):
    if not isinstance(buffer.writer, Writer):
        raise TypeError(f"{buffer.store.path}: expected a store of one lane")
    return buffer.writer


def _append(buffer, start, stop, *, must_reset):
    step, frames = buffer.step, FRAMES
    for row in range(start, stop):
        place = row % _EPISODE_ROWS
        if not place or (must_reset and row == start):
            buffer.reset(frames[row % _POOL])
        step(row, row % 1024, frames[(row + 1) % _POOL], place == _EPISODE_ROWS - 1)


def _check(ids, frames, following, actions, rewards):
    """A batch of this store, whose stacks have two frames."""
    same = (
        np.array_equal(frames[:, -1], FRAMES[ids % _POOL])
        and np.array_equal(following[:, -1], FRAMES[(ids + 1) % _POOL])
        and np.array_equal(following[:, -2], frames[:, -1])
        and np.array_equal(actions, ids)
        and np.array_equal(rewards, ids % 1024)
    )
    if not same:
        raise AssertionError(f"a batch does not hold what its ids say: {ids.tolist()}")


def check_rows(store):
    """Every row that a store keeps."""
    (lane,) = store.lanes
    ids = store.ids
    rows = np.arange(lane.base, lane.rows)
    frames = store.live.read_rows(0, "frames", rows)
    actions, rewards = (
        store.live.read_rows(0, "actions", ids),
        store.live.read_rows(0, "rewards", ids),
    )
    # A writer that has just recovered flushes, and evicts: what is below base reads as zeros.
    kept, ids_kept = rows >= lane.base, ids >= lane.base
    if not (
        np.array_equal(frames[kept], FRAMES[rows[kept] % _POOL])
        and np.array_equal(actions[ids_kept], ids[ids_kept])
        and np.array_equal(rewards[ids_kept], ids[ids_kept] % 1024)
    ):
        raise AssertionError(f"{store.path}: rows {rows[0]} to {rows[-1]} are not all right")


def _plain(n_rows):
    """Seconds for some rows in a ring of numpy arrays, with a batch every hundred rows."""
    frames = np.zeros((_POOL, 8, 8), "uint8")
    actions, rewards = np.zeros(_POOL, "int64"), np.zeros(_POOL, "float32")
    luck = np.random.default_rng(0)
    began = time.perf_counter()
    for row in range(n_rows):
        place = row % _POOL
        frames[place], actions[place], rewards[place] = FRAMES[place], row, row % 1024
        if not row % 100:
            ids = luck.integers(0, _POOL - 1, _BATCH)
            _ = frames[ids], frames[ids + 1], actions[ids], rewards[ids]
    return time.perf_counter() - began


def _look(buffer, order, opened_at, times, batches):
    buffer.flush()
    buffer.sample(1)  # lets go of what the flush has evicted
    sampled = len(buffer)
    writer = _writer_of(buffer)
    with quiet(buffer):
        plain_s = _plain(order.plain_rows)
        found = sum(
            len(chunk_files(writer.path, spec)) for spec in writer.files.rows.specs.values()
        )
        taken = usage(Path(order.path))
        look = Look(
            writer.rows,
            opened_at,
            *times,
            plain_s,
            batches,
            sampled,
            expected_files(buffer),
            found,
            dataclasses.asdict(taken),
        )
    print(json.dumps(dataclasses.asdict(look)), flush=True)


def expected_files(buffer):
    """Chunk files of rows that there are after a flush, but for those allocated ahead."""
    (lane,) = buffer.store.live.readers
    first = buffer.store.index.window(0)[1]
    base = max(first - CONTEXT_ROWS, 0)
    count = 0
    for spec in lane.rows.specs.values():
        head = lane.head if spec.is_raw else lane.rows.tail_start()
        stop = -(-head // spec.chunk_rows)
        count += stop - min(base // spec.chunk_rows, stop)
    return count


if __name__ == "__main__":
    step_on(Order(**json.loads(sys.argv[1])))
