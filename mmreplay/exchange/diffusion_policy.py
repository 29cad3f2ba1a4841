"""diffusion_policy's replay buffers: a zarr v2 group with ``data/...`` and ``meta/episode_ends``.

All columns are observations, except ``action``, ``reward``, ``terminal`` and ``extra.…``.

Invariant: the only codecs are blosc, zstd and gzip, and a chunk of whole rows decodes into memory
of the size of its shape, or is refused. zarr's own codecs for version 2 allocate what the
compressed bytes claim, and include pickle.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError, SchemaError
from mmreplay.exchange.columns import Column, PerEpisode, Unreadable, blocks
from mmreplay.exchange.fields import is_numeric
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import (
    AT_ONCE_BYTES,
    check_at_once,
    check_row,
    open_file,
    source_files,
)
from mmreplay.exchange.tables import Incoming, Tables
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.format.compression import ChunkCodec, make_codec
from mmreplay.ids import Array

_META, _ATTRIBUTES = ".zarray", ".zattrs"
_META_BYTES = 1 << 20
_CODECS = ("blosc", "zstd", "gzip")
_OPTIONS = {
    "shuffle": "noshuffle",  # for decoding, each chunk has its own
    "cname": "lz4",
    "clevel": 1,
    "blocksize": 0,
    "typesize": 1,
    "level": 1,
    "checksum": False,
}


def _read_file(path: Path, most: int = AT_ONCE_BYTES) -> bytes | None:
    """A whole file; None if it does not exist."""
    try:
        with open_file(path) as file:
            check_at_once(os.fstat(file.fileno()).st_size, str(path), most)
            return file.read()
    except FileNotFoundError:
        return None


class _ZarrColumn:
    """An array as a `Column`; raises FormatError if it cannot be read."""

    def __init__(self, where: Path) -> None:
        self._where = where
        text = _read_file(where / _META, _META_BYTES)
        if text is None:
            raise FormatError(f"{where}: expected an array of zarr v2, found no {_META}")
        about = json.loads(text)
        stored = np.dtype(about["dtype"])
        if not is_numeric(stored):
            raise FormatError(
                f"{where}: {stored}: Python objects and texts, which nothing here opens"
            )
        self._stored, self.dtype = stored, stored.newbyteorder("=")
        self.shape: tuple[int, ...] = tuple(map(int, about["shape"]))
        self._n, *inside = map(int, about["chunks"])
        if min(self.shape, default=0) < 0 or self._n < 1 or tuple(inside) != self.shape[1:]:
            raise FormatError(
                f"{where}: expected chunks of whole rows of {self.shape}, found {about['chunks']}; "
                f"write it again with such chunks"
            )
        check_row(math.prod(inside) * stored.itemsize, where)
        self.chunk_bytes = self._n * math.prod(inside) * stored.itemsize
        check_at_once(self.chunk_bytes, f"{where}: a chunk")
        self._fill = np.full((), float(about["fill_value"] or 0)).astype(self.dtype)
        self._codec = self._codec_of(about)
        separator = about.get("dimension_separator", ".")
        if separator not in {".", "/"}:  # any other may lead out of the folder
            raise FormatError(
                f"{where}: dimension_separator: expected '.' or '/', found {separator!r:.80}"
            )
        self._suffix = f"{separator}0" * len(inside)
        self._number, self._rows = -1, np.empty(0)

    def _codec_of(self, about: dict[str, Any]) -> ChunkCodec | None:
        codec = about["compressor"]
        if about.get("filters") or about.get("order", "C") != "C":
            raise FormatError(f"{self._where}: expected rows in order C without filters")
        if codec is None:
            return None
        if codec.get("id") not in _CODECS:
            raise FormatError(
                f"{self._where}: expected one of {', '.join(_CODECS)} as its compressor, found "
                f"{codec.get('id')!r:.80}; write it again with zarr's default"
            )
        return make_codec({"name": codec["id"], "configuration": _OPTIONS})

    def read(self, start: int, stop: int) -> Array:
        """See `Column`."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        at = start
        while at < stop:
            number, low = divmod(at, self._n)
            high = min(self._n, low + stop - at)
            if number != self._number:
                self._rows, self._number = self._chunk(number), number
            out[at - start : at - start + high - low] = self._rows[low:high]
            at += high - low
        return out

    def _chunk(self, number: int) -> Array:
        shape = (self._n, *self.shape[1:])
        data = _read_file(self._where / f"{number}{self._suffix}")
        if data is None:
            return np.broadcast_to(self._fill, shape)
        if self._codec is None:
            return np.frombuffer(data, self._stored).reshape(shape)
        payload, out = np.frombuffer(data, np.uint8), np.empty(self.chunk_bytes, np.uint8)
        try:
            self._codec.check(payload, self.chunk_bytes)
            self._codec.decompress(payload, out)
        except (CorruptStoreError, RuntimeError, ValueError, zlib.error) as error:
            raise FormatError(f"{self._where}: chunk {number}: {error!s:.300}") from error
        rows: Array = out.view(self._stored).reshape(shape)
        return rows


_EXTRA = "extra."
_ROLES = {"action": "actions", "reward": "rewards", "terminal": "terminations"}
_DATA, _ENDS = "data/", "meta/episode_ends"
_END_BYTES = 64  # about the memory that an end takes while all of them are read and checked


@contextmanager
def read(
    source: Path,
    losses: Losses,
    *,
    final_observation: FinalObservation = "repeat",
    observations: str | Sequence[str] | None = None,
) -> Iterator[Incoming]:
    """A directory; `observations` names the columns that are, None for all; others are extras."""
    if not source.is_dir():
        raise FormatError(f"{source}: expected a directory; unzip it first")
    arrays = _arrays(source, losses)
    names = [one.removeprefix(_DATA) for one in arrays if one.startswith(_DATA)]
    others = [one for one in arrays if not one.startswith(_DATA) and one != _ENDS]
    losses.add_names("arrays outside of data", others)
    ends = _episode_ends(source / _ENDS, losses)
    if "action" not in names or not len(ends):
        raise FormatError(f"{source}: expected data/action and an episode, found {names}")
    seen = [one for one in names if one not in _ROLES and not one.startswith(_EXTRA)]
    if observations is not None:
        if isinstance(observations, str):
            observations = [name.strip() for name in observations.split(",")]
        wanted = [*dict.fromkeys(observations)]
        if not wanted or not {*wanted} <= {*seen}:
            raise SchemaError(f"observations: expected some of {seen}, found {wanted}")
        seen = wanted
    n_rows, n_after = int(ends[-1]), 0
    columns: dict[str, Column] = {}
    called: dict[str, str] = {}
    for name in names:
        role = _ROLES.get(name, f"extras/{name.removeprefix(_EXTRA)}")
        if name in seen:
            role = "observations" if len(seen) == 1 else f"observations/{name}"
        columns[role] = column = _column(source / _DATA / name)
        called[role] = _DATA + name
        if isinstance(column, _ZarrColumn):
            if column.shape[0] < n_rows:
                raise FormatError(f"{source}: {name}: {column.shape[0]:,} rows, of {n_rows:,}")
            n_after = max(n_after, column.shape[0] - n_rows)
            column.shape = (n_rows, *column.shape[1:])
    losses.add("rows after the last end: they belong to no episode, left out", n_after)
    columns["episode"] = PerEpisode(np.arange(len(ends)), ends)
    tables = Tables(columns, source, losses, final_observation, needs_rewards=False, called=called)
    used = {name: columns[name] for name in tables.used}
    n_bytes = sum(getattr(one, "chunk_bytes", 0) for one in used.values())
    check_at_once(n_bytes, f"{source}: the chunks of all columns")
    yield tables.incoming(blocks(used, n_rows))


def _arrays(source: Path, losses: Losses) -> list[str]:
    """The names of all arrays; attributes and files that belong to none are losses."""
    names = list(source_files(source))
    out = sorted(name[: -len(_META) - 1] for name in names if name.endswith(f"/{_META}"))
    folders = {*out}
    attributes = [
        name
        for name in names
        if name.endswith(_ATTRIBUTES)
        and (_read_file(source / name, _META_BYTES) or b"").strip() not in (b"", b"{}")
    ]
    losses.add_names("attributes", attributes)
    others = [
        name
        for name in names
        if name.rpartition("/")[2] not in (_META, _ATTRIBUTES, ".zgroup", ".zmetadata")
        and folders.isdisjoint(name[:at] for at, one in enumerate(name) if one == "/")
    ]
    losses.add_names("files that are not read", others)
    return out


def _column(path: Path) -> Column:
    try:
        return _ZarrColumn(path)
    except (FormatError, LookupError, TypeError, ValueError) as error:
        return Unreadable(f"cannot be read: {error!s:.300}")


def _episode_ends(where: Path, losses: Losses) -> Array:
    column = _ZarrColumn(where)
    check_at_once(column.shape[0] * _END_BYTES, str(where))
    ends = column.read(0, column.shape[0])
    lengths = np.diff(ends.astype(np.int64), prepend=0)
    if ends.dtype.kind not in "iu" or (lengths < 0).any():
        raise FormatError(
            f"{where}: expected the rows at which episodes end, ascending, found {ends!r:.80}"
        )
    losses.add("episodes without a step: left out", int((lengths == 0).sum()))
    return ends[lengths > 0]
