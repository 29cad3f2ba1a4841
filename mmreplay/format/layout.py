"""The store format, version 1: names, limits and zarr metadata as written; `parse` reads it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np

FORMAT = 1
KINDS = ("lane", "lanes")
"""What one process writes; a group of these."""
ATTRIBUTE = "mmreplay"
DIGEST = "crc32c"
"""The key under which attributes.mmreplay have a checksum of themselves."""
COPY = "consolidated_metadata"
"""The key under which a closed lane's own zarr.json has a copy of those of its arrays: zarr's
consolidated metadata. Where a copy and an array's own document differ, the own one is right."""
COPY_KIND = {"kind": "inline", "must_understand": False}
CONTEXT_ROWS = 64
"""Rows kept below the oldest transition, so that its stack is whole."""
MAX_STACK = CONTEXT_ROWS + 1

MAX_METADATA_BYTES, MAX_GENERATOR_BYTES = 1 << 20, 1 << 16
SCALARS = ("actions", "rewards", "non_terminals", "resets", "ends", "step")
"""What each step writes beside frames."""
FINALS = "finals"
"""The directory, below a lane, of the log of final observations."""
EPISODES = "episodes"
"""The directory, below a lane, of the fields of episodes, by number."""
PRIORITIES = "priorities"
CHECKSUM_ROWS = 1024
"""Checksums a chunk file of them."""
MAX_CHUNK_BYTES, MAX_DERIVED_BYTES = 4 << 30, 32 << 20
MAX_INNER_BYTES = 64 << 20
"""Reading one row decodes a whole inner chunk, whose length is read from the store."""

_LANE = re.compile(r"lane-[0-9]{5}\Z")
CODECS: dict[str, dict[str, Any]] = {
    "lz4": {
        "name": "blosc",
        "configuration": {
            "typesize": 1,
            "cname": "lz4hc",
            "clevel": 5,
            "shuffle": "noshuffle",
            "blocksize": 0,
        },
    },
    "zstd": {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
}
"""What the short names of codecs stand for."""
INDEX_CODECS = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a lane; `path` is below the lane, such as ``frames`` or ``extras/log_prob``.

    `chunk_rows` is per chunk file (a shard, if compressed), `inner_rows` per inner chunk, 0 for raw
    chunks; `codec` is the compressor as in zarr.json, None for raw. `row_bytes` are uncompressed,
    `chunk_bytes` the size of a raw chunk file, `inner_bytes` those of each of the `n_inner` inner
    chunks of a shard. `width` is N where each of N environments has parts of its own in a chunk
    file, else 1. With `of_entries` a row is one environment's part of a step; see `entries`.
    """

    path: str
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    inner_rows: int = 0
    codec: dict[str, Any] | None = None
    width: int = 1
    of_entries: bool = False
    dims: tuple[str, ...] | None = None

    # Worked out once: they are asked for with every chunk that is read.
    row_bytes: int = field(init=False, repr=False, compare=False)
    chunk_bytes: int = field(init=False, repr=False, compare=False)
    n_inner: int = field(init=False, repr=False, compare=False)
    inner_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        row_bytes = math.prod(self.row_shape) * self.dtype.itemsize
        blocks = self.chunk_rows // self.inner_rows if self.inner_rows else 0
        inner_bytes = self.inner_rows * row_bytes
        for name, value in (
            ("row_bytes", row_bytes),
            ("chunk_bytes", self.chunk_rows * row_bytes),
            ("n_inner", blocks if self.of_entries else blocks * self.width),
            ("inner_bytes", inner_bytes if self.of_entries else inner_bytes // self.width),
        ):
            object.__setattr__(self, name, value)

    @property
    def is_raw(self) -> bool:
        """Whether a chunk file holds the rows as they are."""
        return self.codec is None

    @property
    def may_change(self) -> bool:
        """Whether values change after their row is committed, and damage to them costs no row."""
        return self.path == PRIORITIES or self.path.startswith("derived/")

    def entries(self, n: int) -> ArraySpec:
        """An array with an axis of n environments, with entries as rows: (t, e) is t * n + e."""
        return dataclasses.replace(
            self, row_shape=self.row_shape[1:], chunk_rows=self.chunk_rows * n, of_entries=True
        )

    @property
    def codec_name(self) -> str:
        """As the user writes it: raw, lz4, zstd, or the zarr codec's own name."""
        if self.codec is None:
            return "raw"
        for name, known in CODECS.items():
            if self.codec["name"] == known["name"] and _cname(self.codec) == _cname(known):
                return name
        return str(self.codec["name"])

    def key(self, chunk: int) -> str:
        """Name of a chunk file in the array's directory."""
        return f"c.{chunk}" + ".0" * (len(self.row_shape) + self.of_entries)

    def chunk_of(self, name: str) -> int | None:
        """The chunk that a file name stands for; None if it is not such a name."""
        parts = name.split(".")
        if len(parts) < 2 or not parts[1].isdecimal() or self.key(int(parts[1])) != name:  # noqa: PLR2004
            return None
        return int(parts[1])


def _cname(codec: Mapping[str, Any]) -> object:
    return codec.get("configuration", {}).get("cname")


def odd_lengths(specs: Mapping[str, ArraySpec]) -> list[tuple[str, str]]:
    """(path, what is wrong) of arrays whose chunk files have a wrong length."""
    out: list[tuple[str, str]] = []
    shards = [path for path, spec in specs.items() if not spec.is_raw]
    is_of_one = "resets" in specs and not specs["resets"].row_shape
    scalars = [path for path in SCALARS if is_of_one and path in specs]
    for what, paths in (("all shards", shards), (", ".join(SCALARS), scalars)):
        lengths = collections.Counter(specs[path].chunk_rows for path in paths)
        usual = max(lengths, key=lambda rows: lengths[rows], default=0)
        out += [
            (path, f"{what}: expected one length, {usual:,} rows, found {found:,}")
            for path in paths
            if (found := specs[path].chunk_rows) != usual
        ]
    return out


def episode_path(name: str) -> str:
    """The path, below its lane, of a field of episodes."""
    return f"{EPISODES}/{name}"


def checksum_spec(path: str) -> ArraySpec:
    """The array of checksums, one a chunk file, of the array at `path`."""
    return ArraySpec(f"checksums/{path}", (), np.dtype("uint32"), CHECKSUM_ROWS)


def priority_spec(chunk_rows: int, environments: int | None = None) -> ArraySpec:
    """The array of priorities beside the steps of a lane; `environments` as of `row_columns`."""
    shape, axes = ((), ("step",)) if environments is None else ((environments,), ("step", "env"))
    return ArraySpec(PRIORITIES, shape, np.dtype("float64"), chunk_rows, dims=axes)


def named_axes(spec: ArraySpec, *first: str) -> ArraySpec:
    """The same array with names for its axes: the `first` ones, then one for each other axis."""
    stem, known = spec.path.replace("/", "."), len(first) - 1
    others = (f"{stem}.{number}" for number in range(1, 1 + len(spec.row_shape) - known))
    return dataclasses.replace(spec, dims=(*first, *others))


def lane_name(number: int) -> str:
    """Directory of a lane in a store of many."""
    return f"lane-{number:05d}"


def lane_names(names: Iterable[str]) -> list[str]:
    """Those of some names that lanes have, ascending: five digits, as `lane_name` gives them."""
    return sorted(name for name in names if _LANE.match(name))


def group_paths(arrays: Iterable[str]) -> list[str]:
    """The groups inside a lane that hold the arrays at these paths."""
    parts = [path.split("/") for path in arrays]
    return sorted({"/".join(names[:n]) for names in parts for n in range(1, len(names))})


def dump(document: Mapping[str, Any]) -> bytes:
    """JSON as it is written to zarr.json."""
    return json.dumps(document, indent=2, allow_nan=False).encode()


def array_json(spec: ArraySpec, rows: int) -> bytes:
    """zarr.json of an array with that many rows."""
    # Those of the checksums are all the same, and so are the arrays of many lanes.
    codec = None if spec.codec is None else json.dumps(spec.codec)
    return _array_json(dataclasses.replace(spec, path="", codec=None), codec, rows)


@functools.lru_cache(maxsize=256)
def _array_json(spec: ArraySpec, codec: str | None, rows: int) -> bytes:
    whole = [spec.chunk_rows, *spec.row_shape]
    if codec is None:
        codecs = [_bytes_codec(spec.dtype)]
        if spec.width > 1:
            # The bytes of a chunk lie environment by environment.
            order = [1, 0, *range(2, len(whole))]
            codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    else:
        of_one = 1, *spec.row_shape[1:]  # environment
        inner = [_bytes_codec(spec.dtype), json.loads(codec), {"name": "crc32c"}]
        sharding = {
            "chunk_shape": [spec.inner_rows, *(spec.row_shape if spec.width == 1 else of_one)],
            "codecs": inner,
            "index_codecs": INDEX_CODECS,
            "index_location": "end",
        }
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    fill: object = {"b": False, "f": 0.0}.get(spec.dtype.kind, 0)
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, *spec.row_shape],
        "data_type": spec.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": whole}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": {},
    }
    if spec.dims is not None:
        document["dimension_names"] = list(spec.dims)
    return dump(document)


def _bytes_codec(dtype: np.dtype[Any]) -> dict[str, Any]:
    if dtype.itemsize == 1:
        return {"name": "bytes"}
    return {"name": "bytes", "configuration": {"endian": "little"}}


def group_json(attributes: Mapping[str, Any] | None = None) -> bytes:
    """zarr.json of a group; `attributes` are those of the root of a lane or store."""
    own = {}
    if attributes is not None:
        own = {ATTRIBUTE: {**attributes, DIGEST: digest(attributes)}}
    return dump({"zarr_format": 3, "node_type": "group", "attributes": own})


def layout_json(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
    """How the arrays of a lane are laid out, as a store of lanes keeps it for those to come."""
    return {
        path: {"chunk": spec.chunk_rows, "inner": spec.inner_rows, "codec": spec.codec}
        for path, spec in specs.items()
    }


Documents = dict[str, dict[str, Any]]
"""What stands in each zarr.json below a lane, by the path of its directory."""


def documents_of(arrays: Mapping[str, tuple[ArraySpec, int]]) -> Documents:
    """The documents of arrays, (spec, rows) by path, and of the groups that hold them."""
    out = {path: json.loads(array_json(*one)) for path, one in arrays.items()}
    return out | {path: json.loads(group_json()) for path in group_paths(out)}


def closed_json(attributes: Mapping[str, Any], documents: Documents) -> bytes:
    """zarr.json of a closed lane, with a copy of the others unless it would be too long."""
    paths = sorted(documents, key=lambda path: (path.count("/"), path))  # as zarr-python does
    copy = {**COPY_KIND, "metadata": {path: documents[path] for path in paths}}
    own = group_json(attributes)
    data = dump({**json.loads(own), COPY: copy})
    return data if len(data) <= MAX_METADATA_BYTES else own


def digest(attributes: Mapping[str, Any]) -> str:
    """The crc32c of attributes.mmreplay, of what they say and not of how it is written."""
    own = {key: value for key, value in attributes.items() if key != DIGEST}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    return f"{google_crc32c.value(text.encode()):08x}"


LARGE_FRAME_BYTES = 4096
"""Raw frames of many environments from this size on lie environment by environment in a chunk file,
so that a stack is read as one piece; smaller ones lie step by step."""

MAX_ENVIRONMENTS = 65_536
"""Environments that step together in one lane; simulators on a GPU step some thousands."""
