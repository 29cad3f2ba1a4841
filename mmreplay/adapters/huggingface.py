"""Hugging Face datasets: the transitions or episodes of a store as a `Dataset`, or streamed.

Invariant: row i is the transition with the i-th smallest id, or the i-th episode of
`data.episodes`, at the time when the dataset was created.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Unpack

import numpy as np

from mmreplay._version import __version__
from mmreplay.adapters.source import (
    LoadSettings,
    fields_of,
    opened,
    reading_listed,
    uuids_of,
    with_each,
)
from mmreplay.arguments import whole_number
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

_READ_ROWS = 256
_READ_BYTES = 32 << 20
_SHARDS = 64
_ARRAYS = {number: getattr(datasets, f"Array{number}D") for number in (2, 3, 4, 5)}
_FRAMES = {"observation", "next_observation"}
_IMAGE_AXES, _CHANNELS = 2, (3, 4)


def to_dataset(
    data: Any,
    rows: Kind = "transitions",
    *,
    images: bool = False,
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
        images: store observations of (H, W), (H, W, 3) or (H, W, 4) uint8 as PNG images
            (`datasets.Image`) instead of arrays; needs Pillow.
        cache_dir: as for `datasets.Dataset.from_generator`.
        keep_in_memory: as for `datasets.Dataset.from_generator`.
        num_proc: processes that write the file.
        **settings: of a path, `stack`, `n_step`, `gamma`, `padding`, `stack_axis` and
            `clip_reward` of `mmreplay.load`; a dataset has its own. Episodes have single frames
            and rewards as they are.

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of settings beside a dataset, or if `images`
            finds none; EmptyBufferError if there is no transition or episode.
    """
    source = _rows(data, rows, settings, images=images)
    return datasets.Dataset.from_generator(
        _generate,
        features=source.features(),
        gen_kwargs={"rows": source, "shards": source.shards(num_proc or 1)},
        fingerprint=source.fingerprint(),
        cache_dir=cache_dir,
        keep_in_memory=keep_in_memory,
        num_proc=num_proc,
    )


def to_iterable_dataset(
    data: Any,
    rows: Kind = "transitions",
    *,
    images: bool = False,
    num_shards: int = _SHARDS,
    **settings: Unpack[LoadSettings],
) -> datasets.IterableDataset:
    """A store as a `datasets.IterableDataset`, which streams it and copies nothing.

    It can be pickled, also for the workers of a `DataLoader`, each of which takes some shards.

    Args:
        data: as for `to_dataset`, except live buffers, which belong to one process.
        rows: ``transitions`` or ``episodes``.
        images: store images as PNG.
        num_shards: parts of consecutive rows, at most as many as rows. `split_dataset_by_node`
            gives whole ones to each rank if they are a multiple of the ranks.
        **settings: as for `to_dataset`.

    Raises:
        MmreplayError: as `to_dataset`.
    """
    source = _rows(data, rows, settings, images=images)
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
    images: bool

    def read(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Rows [start, stop), one by one."""
        if self.kind == "episodes":
            for one in self.known[start:stop]:
                columns = _columns(self._episode(one))
                if self.images:
                    columns["observation"] = with_each(columns["observation"], _encoded)
                yield columns
            return
        size = max(1, min(_READ_ROWS, _READ_BYTES // self._row_bytes()))
        for first in range(start, stop, size):
            columns = self._transitions(first, min(first + size, stop))
            for number in range(len(columns["id"])):
                yield with_each(columns, operator.itemgetter(number))

    def _transitions(self, start: int, stop: int) -> dict[str, Any]:
        with reading_listed(self.data, self.uuids):
            return _columns(self.data.transitions(self.known[start:stop]))

    def _row_bytes(self) -> int:
        sizes: list[int] = []
        with_each(self._transitions(0, 1), lambda array: sizes.append(array.nbytes))
        return sum(sizes)

    def _episode(self, episode: Any, most: int | None = None) -> Trajectory:
        """One episode, or its first `most` steps."""
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
        n_images = 0

        def feature(array: Any, is_frame: bool) -> Any:
            nonlocal n_images
            array = np.asarray(array)
            has_time = is_episode and array.ndim > 0
            if self.images and is_frame and _is_image(array[0] if has_time else array):
                n_images += 1
                return datasets.List(datasets.Image()) if has_time else datasets.Image()
            shape = (None, *array.shape[1:]) if has_time else array.shape
            return _feature(shape, array.dtype.name)

        features = {
            name: with_each(value, functools.partial(feature, is_frame=name in _FRAMES))
            for name, value in row.items()
        }
        if self.images and not n_images:
            raise SchemaError(
                f"{self.data.store.path}: images: expected observations of (H, W), (H, W, 3) or "
                f"(H, W, 4) uint8, found none; for single frames pass stack=None"
            )
        return datasets.Features(features)

    def shards(self, n: int) -> list[Shard]:
        """All rows in at most `n` parts."""
        size = len(self.known)
        bounds = np.linspace(0, size, min(n, size) + 1).astype(np.int64).tolist()
        return list(itertools.pairwise(bounds))

    def fingerprint(self) -> str:
        """The key in the cache: another store, settings or set of rows has another one."""
        digest = hashlib.sha256(
            repr((__version__, self.kind, self.images, self.data.settings, self.uuids)).encode()
        )
        digest.update(np.ascontiguousarray(self.known).tobytes())
        digest.update(self.data.episodes.tobytes())  # a running one may have ended since
        return digest.hexdigest()[:32]


def _rows(data: Any, kind: Kind, settings: Mapping[str, Any], *, images: bool) -> _Rows:
    source = opened(data, settings)
    if kind not in ("transitions", "episodes"):
        raise SchemaError(f"rows: expected 'transitions' or 'episodes', found {kind!r:.80}")
    if images and not datasets.config.PIL_AVAILABLE:
        raise MissingExtraError('images need Pillow: pip install "mmreplay[huggingface]"')
    uuids = uuids_of(source)
    known = source.ids if kind == "transitions" else source.episodes
    if not len(known):
        raise EmptyBufferError(f"{source.store.path}: there are no {kind} yet")
    return _Rows(source, kind, uuids, known, images)


def _columns(batch: Any) -> dict[str, Any]:
    """The arrays of a batch or trajectory by name, without the weight and empty extras."""
    values = fields_of(batch)
    values.pop("weight", None)
    return {name: value for name, value in values.items() if not isinstance(value, dict) or value}


def _encoded(frames: Array) -> Any:
    """Images one by one: from an array of several, `datasets` makes lists of int64."""
    if not _is_image(frames[0]):
        return frames
    return [datasets.Image().encode_example(frame) for frame in frames]


def _is_image(array: Array) -> bool:
    shape = array.shape
    return array.dtype == np.uint8 and (
        len(shape) == _IMAGE_AXES or (len(shape) == _IMAGE_AXES + 1 and shape[-1] in _CHANNELS)
    )


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
