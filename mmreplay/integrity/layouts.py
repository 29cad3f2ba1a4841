"""How the arrays of a damaged lane are laid out: what its documents say, and what its files show.

Invariant: the lane is only read. Documents come first, those that the chunk files contradict do
not count.
"""

from __future__ import annotations

import collections
import contextlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay import codecs, columns, format, parsing, planning, reading, shards
from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import ArraySpec
from mmreplay.schema import Field, Schema

__all__ = [
    "Documents",
    "Specs",
    "find_schema",
    "find_specs",
    "fits",
    "kept_files",
    "read_documents",
]

_MOST_INNER = 4096
_ENOUGH = 16  # files to guess a layout from
_FRAMES = "frames"
_BLOSC = (1, 4)  # as in the flags of its header: lz4, zstd
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_ENDS = 18  # bytes, of which the longest header of these codecs is, with the size

Specs = dict[str, ArraySpec]
Documents = dict[str, tuple[ArraySpec, int]]
"""Every array of a lane whose zarr.json can be read, and the rows that it says."""
_Guess = tuple[int, int, str | None]
"""Rows of a chunk file and of its inner chunks, and their codec."""


def read_documents(lane: Path) -> Documents:
    """Every array of the lane whose zarr.json can be read, and its rows."""
    out: Documents = {}
    names = [*format.SCALARS, "frames", *(f"frames/{name}" for name in _folders(lane / "frames"))]
    names += [f"extras/{name}" for name in _folders(lane / "extras")]
    for name in names:
        with contextlib.suppress(MmreplayError, OSError):
            reading.check_directories(lane, name)
            where = lane / name / "zarr.json"
            data = reading.read_bytes(where, format.MAX_METADATA_BYTES)
            out[name] = parsing.parse_array(data, name, str(where))
    return out


def _folders(path: Path) -> list[str]:
    if path.is_symlink():
        return []
    with contextlib.suppress(OSError):
        return sorted(one.name for one in path.iterdir() if one.is_dir() and not one.is_symlink())
    return []


def find_schema(
    given: Sequence[Mapping[str, Any] | None],
    documents: Documents,
    lane: Path,
    *,
    sure: bool,
) -> Schema:
    """The first of the schemas given that the arrays agree with; without any, what they say.

    Args:
        given: attributes.mmreplay, or None.
        documents: what the arrays say.
        lane: the directory.
        sure: whether the first one given is what was written, whatever the arrays say.

    Raises:
        CorruptStoreError: nothing tells what a row holds.
    """
    known = {path: (spec.row_shape, spec.dtype) for path, (spec, _) in documents.items()}
    read: list[Schema] = []
    for one in given:
        with contextlib.suppress(FormatError):
            if one is not None:
                read.append(parsing.schema_from_json(one.get("schema"), str(lane / "zarr.json")))
    for schema in read:
        kinds = {path: (one.shape, one.dtype) for path, one in schema.columns().items()}
        if sure or all(known.get(path, kind) == kind for path, kind in kinds.items()):
            return schema
    if read:
        raise CorruptStoreError(
            f"{lane}: the schema in zarr.json and the zarr.json of an array contradict each other, "
            f"and nothing tells which is right"
        )
    fields = {path: Field(shape, dtype) for path, (shape, dtype) in known.items()}
    frames: Any = {path[7:]: one for path, one in fields.items() if path.startswith("frames/")}
    extras = {path[7:]: one for path, one in fields.items() if path.startswith("extras/")}
    try:
        reward = str(fields["rewards"].dtype)
        return Schema.make(frames or fields[_FRAMES], fields["actions"], extras, reward)
    except (KeyError, MmreplayError) as error:
        raise CorruptStoreError(
            f"{lane}: neither its zarr.json nor those of its arrays say what a row holds: {error}"
        ) from error


def find_specs(
    lane: Path,
    schema: Schema,
    documents: Documents,
    root: Mapping[str, Any] | None,
) -> Specs:
    """How each array is laid out: by its document, by those of others, or by its files.

    Raises:
        CorruptStoreError: nothing tells, or they cannot be arrays of one lane.
    """
    kinds = {path: (one.shape, one.dtype) for path, one in schema.arrays().items()}
    layout: Specs = {}
    if root is not None:
        with contextlib.suppress(FormatError):
            layout = planning.plan_from_layout(schema, root.get("layout"), str(lane))
    out: Specs = {}
    for path, (shape, dtype) in kinds.items():
        known = documents.get(path, (None, 0))[0]
        for one in (layout.get(path), known):
            if one is not None and (one.row_shape, one.dtype) == (shape, dtype) and fits(lane, one):
                out[path] = one
                break
    # Of arrays without a file any length fits.
    for path in [path for path, _ in format.odd_lengths(out) if not kept_files(lane, out[path])]:
        del out[path]
    scalar = next((out[path].chunk_rows for path in format.SCALARS if path in out), None)
    for path, (shape, dtype) in kinds.items():
        if path in out:
            continue
        if path in format.SCALARS and scalar is not None:
            out[path] = ArraySpec(path, shape, dtype, scalar)
        else:
            out[path] = _guess(lane, ArraySpec(path, shape, dtype, 1))
    for path, text in format.odd_lengths(out):
        raise CorruptStoreError(f"{lane / path}: {text}")
    return out


# ---------------------------------------------------------------- what the files say


def kept_files(lane: Path, spec: ArraySpec) -> list[int]:
    """The chunk files of an array that are there, ascending; none behind a link."""
    with contextlib.suppress(OSError, CorruptStoreError):
        reading.check_directories(lane, spec.path)
        return columns.chunk_files(lane, spec)
    return []


def _guess(lane: Path, spec: ArraySpec) -> ArraySpec:
    """The layout of an array, from its files."""
    found: collections.Counter[_Guess] = collections.Counter()
    for chunk in kept_files(lane, spec)[:_ENOUGH]:
        path = columns.chunk_path(lane, spec, chunk)
        with contextlib.suppress(MmreplayError, OSError):
            size = reading.regular_size(path, 2 * format.MAX_CHUNK_BYTES)
            shard = _guess_shard(path, size, spec) if spec.path.startswith(_FRAMES) else None
            if shard is not None:
                found[shard] += 1
            elif size and not size % spec.row_bytes:
                found[size // spec.row_bytes, 0, None] += 1
    if not found:
        raise CorruptStoreError(
            f"{lane / spec.path}: neither its zarr.json nor a chunk file tells how it is laid out"
        )
    rows, inner, name = found.most_common(1)[0][0]
    one = ArraySpec(spec.path, spec.row_shape, spec.dtype, rows)
    if name is None:
        return one
    codec = planning.codec_document({"name": name} if name == "gzip" else name, one)
    return ArraySpec(spec.path, spec.row_shape, spec.dtype, rows, inner, codec)


def _guess_shard(path: Path, size: int, spec: ArraySpec) -> _Guess | None:
    """Rows of a shard and of its inner chunks, and their codec; None if it is no shard."""
    most = min(_MOST_INNER, size // 16)
    length = min(16 * most + 4, size)
    end = reading.read_at(path, size - length, length, size)
    for n_chunks in range(1, most + 1):
        table = end[-(16 * n_chunks + 4) : -4]
        if codecs.crc32c(table).to_bytes(4, "little") != end[-4:]:
            continue
        index = np.frombuffer(table, "<u8").reshape(n_chunks, 2)
        for start, n_stored in index.tolist():
            if start == shards.ABSENT or start + n_stored > size:
                continue
            length = min(n_stored, _ENDS)
            first = reading.read_at(path, start, length, size)
            last = reading.read_at(path, start + n_stored - length, length, size)
            for name, n_bytes in _sizes(first, last):
                inner, odd = divmod(n_bytes, spec.row_bytes)
                if inner and not odd:
                    return n_chunks * inner, inner, name
    return None


def _sizes(first: bytes, last: bytes) -> Iterator[tuple[str, int]]:
    """The codec of a compressed chunk, and its size without it, as its ends say."""
    if first[:4] == _ZSTD_MAGIC and len(first) > 4:  # noqa: PLR2004
        kind = first[4] >> 6
        single, start = first[4] >> 5 & 1, 5 + (0, 1, 2, 4)[first[4] & 3]
        width = (single, 2, 4, 8)[kind]
        start += not single
        if width:
            size = int.from_bytes(first[start : start + width], "little")
            yield "zstd", size + (256 if width == 2 else 0)  # noqa: PLR2004 (as RFC 8878 has it)
    elif first[:2] == _GZIP_MAGIC:
        yield "gzip", int.from_bytes(last[-8:-4], "little")  # its last word, before the crc32c
    elif len(first) >= 16 and first[2] >> 5 in _BLOSC:  # noqa: PLR2004
        yield "lz4", struct.unpack_from("<I", first, 4)[0]


def fits(lane: Path, spec: ArraySpec) -> bool:
    """Whether most chunk files of a raw array have the size that it says; True if it has none."""
    if not spec.is_raw:
        return True
    sizes: collections.Counter[int] = collections.Counter()
    for chunk in kept_files(lane, spec):
        with contextlib.suppress(OSError):
            sizes[columns.chunk_path(lane, spec, chunk).lstat().st_size] += 1
    return not sizes or sizes[spec.chunk_bytes] >= max(sizes.values())
