"""Array libraries, with the replay buffer that one writes oneself around them.

Observations lie in an array of the library, actions, rewards and flags in a numpy.memmap beside it.
A row is an observation and the step from it, as in a `Tape`; of many environments, the next row of
one is `n_envs` rows later. Compressed arrays are written in whole blocks, as a chunk that is
written again for every row would be compressed again each time; what is not written yet is not
sampled.
"""

from __future__ import annotations

import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.peer import Setup
from benchmarks.peers.steps import ACTION, STACK, Plain, Promise, Step

__all__ = ["Arrays"]

Rows = npt.NDArray[np.int64]
_FIRST, _LATER = 1, 2
_FRAMES_A_BLOCK, _TICKS_A_BLOCK = 256, 4
_FRAMES_A_CHUNK, _VECTORS_A_CHUNK = 8, 64
"""56 kB of frames, of which a window of five touches one or two, or 4 kB of vectors."""
_THREADS = 16


class _Column:
    """Rows in an array on disk, to which they are written in blocks.

    Attributes:
        shape: of the array.
        ready: rows that were written.
    """

    block = 1

    def __init__(self, shape: tuple[int, ...], dtype: Any, block: int) -> None:
        self.shape, self.block, self.ready = shape, block, 0
        self._pending, self._n_pending = np.empty((block, *shape[1:]), dtype), 0

    def append(self, rows: Any) -> None:
        """Add rows behind the last one: one of one environment, or one of each of many."""
        self._pending[self._n_pending : self._n_pending + len(rows)] = rows
        self._n_pending += len(rows)
        if self._n_pending == self.block:
            self.write(self.ready, self._pending)
            self.ready += self.block
            self._n_pending = 0

    def write(self, start: int, rows: Any) -> None:
        """Give a block to the library."""
        raise NotImplementedError

    def take(self, rows: Rows) -> Any:
        """Any rows, in any order, once or more often."""
        raise NotImplementedError

    def windows(self, starts: Rows) -> Any:
        """The five rows from each start; slices, which compressed arrays give sooner than rows."""
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing, where a written block is in its file."""


class _Memmap(_Column):
    """Its rows are written one by one: they are not compressed."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, block: int) -> None:
        super().__init__(shape, dtype, block)
        mode = "r+" if path.exists() else "w+"
        self._array = np.lib.format.open_memmap(path, mode, dtype, shape)

    def write(self, start: int, rows: Any) -> None:
        self._array[start : start + len(rows)] = rows

    def take(self, rows: Rows) -> Any:
        return self._array[rows]

    def windows(self, starts: Rows) -> Any:
        return self._array[starts[:, None] + np.arange(STACK + 1)]

    def flush(self) -> None:
        self._array.flush()


class _Preadv(_Memmap):
    """The same file, read by threads: each window is one call, straight into the batch."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, block: int) -> None:
        super().__init__(path, shape, dtype, block)
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._threads = ThreadPoolExecutor(_THREADS)

    def windows(self, starts: Rows) -> Any:
        array = self._array
        out = np.empty((len(starts), STACK + 1, *array.shape[1:]), array.dtype)

        def read(window: Any, start: int) -> int:
            at = array.offset + start * array.strides[0]
            return os.preadv(self._descriptor, [window], at)

        n_read = sum(self._threads.map(read, out, starts.tolist()))
        assert n_read == out.nbytes
        return out


class _H5py(_Column):
    """lzf is the quick compressor that h5py brings along."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, block: int) -> None:
        import h5py

        super().__init__(shape, dtype, block)
        self._file = h5py.File(path, "a")
        self._array = self._file.require_dataset(
            "rows", shape, dtype, chunks=_chunk(shape, block), compression="lzf"
        )

    def write(self, start: int, rows: Any) -> None:
        self._array[start : start + len(rows)] = rows
        self._file.flush()  # a kill would lose a block that HDF5 still holds

    def take(self, rows: Rows) -> Any:
        # It takes only rows that ascend, and each once.
        order, inverse = np.unique(rows, return_inverse=True)
        return self._array[order][inverse]

    def windows(self, starts: Rows) -> Any:
        return np.stack([self._array[row : row + STACK + 1] for row in starts.tolist()])


class _Zarr(_Column):
    """Format 3, with the compressor that zarr-python takes by itself: zstd."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, block: int) -> None:
        import zarr

        super().__init__(shape, dtype, block)
        self._array: Any = (
            zarr.open_array(path, mode="r+")
            if path.exists()
            else zarr.create_array(
                path,
                shape=shape,
                dtype=dtype,
                chunks=_chunk(shape, block),
                shards=_shard(shape, block),
            )
        )

    def write(self, start: int, rows: Any) -> None:
        self._array[start : start + len(rows)] = rows

    def take(self, rows: Rows) -> Any:
        return self._array.oindex[rows]

    def windows(self, starts: Rows) -> Any:
        return np.stack([self._array[row : row + STACK + 1] for row in starts.tolist()])


class _TensorStore(_Column):
    """The same format, chunks and compressor as zarr-python's."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any, block: int) -> None:
        import tensorstore

        super().__init__(shape, dtype, block)
        inner = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 0}}]
        sharding = {"chunk_shape": _chunk(shape, block), "codecs": inner}
        self._array: Any = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}},
            open=True,
            create=True,
            dtype=str(dtype),
            shape=shape,
            chunk_layout=tensorstore.ChunkLayout(write_chunk_shape=_shard(shape, block)),
            codec=tensorstore.CodecSpec(
                {
                    "driver": "zarr3",
                    "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
                }
            ),
        ).result()

    def write(self, start: int, rows: Any) -> None:
        self._array[start : start + len(rows)].write(rows).result()

    def take(self, rows: Rows) -> Any:
        return self._array[rows].read().result()

    def windows(self, starts: Rows) -> Any:
        # All are under way before the first is waited for.
        reads = [self._array[row : row + STACK + 1].read() for row in starts.tolist()]
        return np.stack([one.result() for one in reads])


def _chunk(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """What is compressed together."""
    return (_FRAMES_A_CHUNK if len(shape) > 2 else min(_VECTORS_A_CHUNK, block), *shape[1:])


def _shard(shape: tuple[int, ...], block: int) -> tuple[int, ...]:
    """A file for each block."""
    return (block, *shape[1:])


class Arrays:
    """A replay buffer of `kind`: `memmap`, `preadv`, `h5py`, `zarr` or `tensorstore`."""

    promise = Promise()

    def __init__(self, setup: Setup, kind: str) -> None:
        self._stride = setup.n_envs or 1
        self._is_frames = setup.is_frames
        rows = setup.capacity + max(setup.capacity // 20, self._stride)
        fields = [
            ("action", np.int64) if setup.is_frames else ("action", np.float32, (ACTION,)),
            ("reward", np.float32),
            ("terminated", np.bool_),
            ("kind", np.uint8),
        ]
        path = setup.folder / "steps.npy"
        if path.exists():
            self._steps = np.lib.format.open_memmap(path, "r+")
        else:
            self._steps = np.lib.format.open_memmap(path, "w+", np.dtype(fields), (rows,))
        shape = (rows, *setup.shape)
        dtype = np.dtype(np.uint8 if setup.is_frames else np.float32)
        block = _FRAMES_A_BLOCK if setup.is_frames else _TICKS_A_BLOCK
        block = 1 if kind in {"memmap", "preadv"} else block
        columns = {
            "memmap": _Memmap,
            "preadv": _Preadv,
            "h5py": _H5py,
            "zarr": _Zarr,
            "tensorstore": _TensorStore,
        }
        self._column = columns[kind](setup.folder / "rows", shape, dtype, block * self._stride)
        # Rows of a block that was not written yet are lost with the process.
        kinds = self._steps["kind"]
        whole = self._column.block
        self._column.ready = self._head = int(np.count_nonzero(kinds)) // whole * whole
        kinds[self._head :] = 0
        firsts = int(np.count_nonzero(kinds == _FIRST)) if setup.is_frames else self._stride
        self._n = max(self._head - firsts, 0)
        self._generator = np.random.default_rng(0)

    def append(self, step: Step) -> None:
        if step.is_first or not self._head:
            self._row(step.frame, _FIRST)
        self._steps[self._head - 1] = (
            step.action,
            step.reward,
            step.terminated,
            self._steps["kind"][self._head - 1],
        )
        self._row(step.next_frame, _LATER)
        self._n += 1

    def _row(self, frame: Any, kind: int) -> None:
        self._column.append(frame[None])
        self._steps["kind"][self._head] = kind
        self._head += 1

    def extend(self, tick: tuple[Any, ...]) -> None:
        observations, following, actions, rewards, never = tick
        n = self._stride
        if not self._head:
            self._column.append(observations)
            self._steps["kind"][:n] = _FIRST
            self._head = n
        steps = self._steps[self._head - n : self._head]
        steps["action"], steps["reward"], steps["terminated"] = actions, rewards, never
        self._column.append(following)
        self._steps["kind"][self._head : self._head + n] = _LATER
        self._head += n
        self._n += n

    def sample(self, n: int) -> dict[str, Any]:
        kinds, stride = self._steps["kind"], self._stride
        stop = min(self._column.ready, self._head) - stride
        rows = self._generator.integers(0, stop, n)
        while (wrong := kinds[rows + stride] == _FIRST).any():
            rows[wrong] = self._generator.integers(0, stop, int(wrong.sum()))
        steps = self._steps[rows]
        if not self._is_frames:
            both = self._column.take(np.concatenate([rows, rows + stride]))
            return {"steps": steps, "observation": both[:n], "next_observation": both[n:]}
        # The first stacks of all have rows before row 0: their windows begin there.
        starts = np.maximum(rows - STACK + 1, 0)
        window = starts[:, None] + np.arange(STACK)
        begins = np.where((kinds[window] == _FIRST) & (window <= rows[:, None]), window, 0).max(1)
        wanted = (
            np.maximum(rows[:, None] + np.arange(1 - STACK, 2), begins[:, None]) - starts[:, None]
        )
        frames = self._column.windows(starts)
        if (wanted != np.arange(STACK + 1)).any():
            frames = frames[np.arange(n)[:, None], wanted]
        return {"steps": steps, "observation": frames[:, :-1], "next_observation": frames[:, 1:]}

    def plain(self, batch: dict[str, Any]) -> Plain:
        steps = batch["steps"]
        action = steps["action"] if self._is_frames else steps["action"][:, 0]
        return Plain(
            batch["observation"],
            batch["next_observation"],
            action,
            steps["reward"],
            steps["terminated"],
        )

    def save(self) -> None:
        self._column.flush()
        self._steps.flush()

    def __len__(self) -> int:
        return self._n
