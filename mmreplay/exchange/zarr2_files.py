"""Arrays of zarr v2 whose chunks are whole rows, in a directory or a zip.

Invariant: the only codecs are blosc, zstd and gzip, and a chunk decodes into memory of the size of
its shape, or is refused. zarr's own codecs for version 2 allocate what the compressed bytes claim,
and include pickle.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.exchange.fields import is_numeric
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import (
    AT_ONCE_BYTES,
    check_at_once,
    check_member,
    check_row,
    inside,
    open_file,
    source_files,
)
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


class Zarr2Files:
    """The files of a group by their names; `stack` closes them."""

    def __init__(self, source: Path, stack: ExitStack) -> None:
        self.source = source
        self._zip: zipfile.ZipFile | None = None
        if not source.is_dir():
            file = stack.enter_context(open_file(source))
            self._zip = stack.enter_context(zipfile.ZipFile(file))

    def arrays(self, losses: Losses) -> list[str]:
        """The names of all arrays; attributes and files that belong to none are losses."""
        if self._zip is None:
            names = list(source_files(self.source))
        else:
            names = [name for name in self._zip.namelist() if not name.endswith("/")]
        out = sorted(name[: -len(_META) - 1] for name in names if name.endswith(f"/{_META}"))
        folders = {f"{name}/" for name in out}
        attributes = [one for one in names if one.endswith(_ATTRIBUTES) and self._has_any(one)]
        losses.add_names("attributes", attributes)
        others = [
            name
            for name in names
            if name.rpartition("/")[2] not in (_META, _ATTRIBUTES, ".zgroup", ".zmetadata")
            and not any(name[: at + 1] in folders for at, one in enumerate(name) if one == "/")
        ]
        losses.add_names("files that are not read", others)
        return out

    def _has_any(self, name: str) -> bool:
        return (self.read(name, _META_BYTES) or b"").strip() not in (b"", b"{}")

    def read(self, name: str, most: int = AT_ONCE_BYTES) -> bytes | None:
        """A whole file; None if it does not exist."""
        what = f"{self.source}: {name}"
        try:
            if self._zip is None:
                with open_file(inside(self.source, name)) as file:
                    check_at_once(os.fstat(file.fileno()).st_size, what, most)
                    return file.read()
            about = self._zip.getinfo(name)
        except (FileNotFoundError, KeyError):
            return None
        check_member(about, self.source)
        check_at_once(about.file_size, what, most)
        return self._zip.read(about)


class Zarr2Column:
    """An array as a `Column`; raises FormatError if it cannot be read."""

    def __init__(self, files: Zarr2Files, name: str) -> None:
        self._files, self._name = files, name
        where = self._where = f"{files.source}: {name}"
        text = files.read(f"{name}/{_META}", _META_BYTES)
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
        self._suffix = "".join(f"{separator}0" for _ in inside)
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
        data = self._files.read(f"{self._name}/{number}{self._suffix}")
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
