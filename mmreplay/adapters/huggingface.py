"""Hugging Face datasets: the transitions or episodes of a store as a `Dataset`, or streamed.

Invariant: row i is the transition with the i-th smallest id, or the i-th episode of
`data.episodes`, at the time when the dataset was created.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Unpack

import numpy as np

from mmreplay._version import __version__
from mmreplay.adapters.source import LoadSettings, opened, reading_listed, uuids_of
from mmreplay.arguments import whole_number
from mmreplay.batches.batch import fields_of, with_each
from mmreplay.datasets.dataset import Dataset
from mmreplay.errors import EmptyBufferError, MissingExtraError, SchemaError
from mmreplay.ids import Array
from mmreplay.reading.trajectories import Trajectory

try:
    import datasets
except ImportError as error:
    raise MissingExtraError(
        'mmreplay.adapters.huggingface needs datasets: pip install "mmreplay[huggingface]"'
    ) from error

__all__ = ["to_dataset", "to_iterable_dataset"]

Kind = Literal["transitions", "episodes"]

_READ_ROWS = 64
_SHARDS = 64
_ARRAYS = {number: getattr(datasets, f"Array{number}D") for number in (2, 3, 4, 5)}


def to_dataset(
    data: Any,
    rows: Kind = "transitions",
    *,
    cache_dir: str | None = None,
    keep_in_memory: bool = False,
    num_proc: int | None = None,
    **settings: Unpack[LoadSettings],
) -> datasets.Dataset:
    """A store as a `datasets.Dataset`: an Arrow file in the cache of Hugging Face, uncompressed.

    Until something is added to the store, another call finds the file in the cache.

    Args:
        data: the path of a store, a list of paths or a pattern; or a dataset or live buffer.
        rows: ``transitions``, with the fields of `Batch` except the weight; or ``episodes``, with
            those of `Trajectory`: T + 1 observations, T actions and rewards.
        cache_dir: as for `datasets.Dataset.from_generator`.
        keep_in_memory: as for `datasets.Dataset.from_generator`.
        num_proc: processes that write the file.
        **settings: of a path, `stack`, `n_step`, `gamma`, `padding`, `stack_axis` and
            `clip_reward` of `mmreplay.load`; a dataset has its own. Episodes have single frames
            and rewards as they are.

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of settings beside a dataset;
            EmptyBufferError if there is no transition or episode.
    """
    source = _rows(data, rows, settings)
    return datasets.Dataset.from_generator(
        _generate,
        features=source.features(),
        gen_kwargs={"rows": source, "shards": source.shards(num_proc or 1)},
        # Of a wrapper the library makes one of its functions.
        fingerprint=source.fingerprint() if isinstance(source.data, Dataset) else None,
        cache_dir=cache_dir,
        keep_in_memory=keep_in_memory,
        num_proc=num_proc,
    )


def to_iterable_dataset(
    data: Any,
    rows: Kind = "transitions",
    *,
    num_shards: int = _SHARDS,
    **settings: Unpack[LoadSettings],
) -> datasets.IterableDataset:
    """A store as a `datasets.IterableDataset`, which streams it and copies nothing.

    It can be pickled, also for the workers of a `DataLoader`, each of which takes some shards.

    Args:
        data: as for `to_dataset`, except live buffers, which belong to one process.
        rows: ``transitions`` or ``episodes``.
        num_shards: parts of consecutive rows, at most as many as rows. `split_dataset_by_node`
            gives whole ones to each rank if they are a multiple of the ranks.
        **settings: as for `to_dataset`.

    Raises:
        MmreplayError: as `to_dataset`.
    """
    source = _rows(data, rows, settings)
    shards = source.shards(whole_number("num_shards", num_shards))
    return datasets.IterableDataset.from_generator(
        _generate, features=source.features(), gen_kwargs={"rows": source, "shards": shards}
    )


Shard = tuple[int, int]


def _generate(rows: _Rows, shards: list[Shard]) -> Iterator[dict[str, Any]]:
    for start, stop in shards:
        yield from rows.read(start, stop)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows by number; `known` are their ids, or a table of episodes, of the lanes `uuids`."""

    data: Any
    kind: Kind
    uuids: tuple[str, ...]
    known: Array

    def read(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Rows [start, stop), one by one."""
        if self.kind == "episodes":
            for one in self.known[start:stop]:
                yield _columns(self._episode(one))
            return
        for first in range(start, stop, _READ_ROWS):
            with reading_listed(self.data, self.uuids):
                batch = self.data.transitions(self.known[first : min(first + _READ_ROWS, stop)])
            columns = _columns(batch)
            for number in range(len(columns["id"])):
                yield with_each(columns, operator.itemgetter(number))

    def _episode(self, episode: Any, most: int | None = None) -> Trajectory:
        live, first, length = self.data.store.live, int(episode["id"]), int(episode["length"])
        with reading_listed(self.data, self.uuids):
            return live.lazy_trajectory(
                live.uuids,
                first,
                min(length, most or length),
                terminated=bool(episode["terminated"]),
                truncated=bool(episode["truncated"]),
            ).read()

    def features(self) -> datasets.Features:
        """The features of all rows, from those of the first one."""
        is_episode = self.kind == "episodes"
        row = _columns(self._episode(self.known[0], 1)) if is_episode else next(self.read(0, 1))

        def feature(array: Any) -> Any:
            array = np.asarray(array)
            has_time = is_episode and array.ndim > 0
            shape = (None, *array.shape[1:]) if has_time else array.shape
            return _feature(shape, "string" if array.dtype.kind == "U" else array.dtype.name)

        return datasets.Features(with_each(row, feature))

    def shards(self, n: int) -> list[Shard]:
        """All rows in at most `n` parts."""
        size = len(self.known)
        bounds = np.linspace(0, size, min(n, size) + 1).astype(np.int64).tolist()
        return list(itertools.pairwise(bounds))

    def fingerprint(self) -> str:
        """The key in the cache: another store, settings or set of rows has another one."""
        digest = hashlib.sha256(
            repr((__version__, self.kind, self.data.settings, self.uuids)).encode()
        )
        digest.update(np.ascontiguousarray(self.known).tobytes())
        digest.update(self.data.episodes.tobytes())  # a running one may have ended since
        return digest.hexdigest()[:32]


def _rows(data: Any, kind: Kind, settings: Mapping[str, Any]) -> _Rows:
    if kind not in ("transitions", "episodes"):
        raise SchemaError(f"rows: expected 'transitions' or 'episodes', found {kind!r:.80}")
    needed = "trajectory" if kind == "episodes" else "transitions"
    source = opened(data, settings, needs=("ids", needed))
    uuids = uuids_of(source)
    known = source.ids if kind == "transitions" else source.episodes
    if not len(known):
        raise EmptyBufferError(f"{source.store.path}: there are no {kind} yet")
    return _Rows(source, kind, uuids, known)


def _columns(batch: Any) -> dict[str, Any]:
    """The arrays of a batch or trajectory by name, without the weight and empty extras."""
    values = fields_of(batch)
    values.pop("weight", None)
    return {name: value for name, value in values.items() if not isinstance(value, dict) or value}


def _feature(shape: tuple[int | None, ...], dtype: str) -> Any:
    """The feature of arrays of this shape; None is any length."""
    if not shape:
        return datasets.Value(dtype)
    if len(shape) == 1:
        return datasets.List(datasets.Value(dtype), -1 if shape[0] is None else shape[0])
    if len(shape) not in _ARRAYS:
        raise SchemaError(
            f"Hugging Face datasets hold arrays of at most {max(_ARRAYS)} axes, found shape "
            f"{shape}; pass stack=None"
        )
    return _ARRAYS[len(shape)](shape, dtype)
