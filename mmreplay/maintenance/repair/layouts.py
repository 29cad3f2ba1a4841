"""How the arrays of a damaged lane are laid out: from its documents and the sizes of its files.

Invariant: the lane is only read. Documents come first, those that the chunk files contradict do
not count.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import compression, layout, parse, plan
from mmreplay.format.consolidated import find_copy
from mmreplay.format.layout import ArraySpec
from mmreplay.schema import Field, Schema
from mmreplay.storage import chunk_files
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

_MOST_INNER = 4096
_ENOUGH = 16  # files whose size tells the layout of an uncompressed array
_FRAMES = "frames"

Specs = dict[str, ArraySpec]
Documents = dict[str, tuple[ArraySpec, int]]
"""Every array of a lane whose zarr.json can be read, and the rows that it says."""


def read_documents(lane: AnyPath, paths: Iterable[str] | None = None) -> Documents:
    """Every array whose zarr.json can be read, and its rows; `paths`: of these."""
    documents: Documents = {}
    for name in _column_paths(lane) if paths is None else paths:
        with contextlib.suppress(MmreplayError, OSError):
            checked_reads.check_directories(lane, name)
            path = lane / name / "zarr.json"
            data = checked_reads.read_bytes(path, layout.MAX_METADATA_BYTES)
            documents[name] = parse.parse_array(data, name, str(path))
    return documents


def copied_documents(lane: AnyPath, log: str = "") -> Documents:
    """The same of the copies in the lane's own zarr.json; `log`: of a vector lane, of that log."""
    documents: Documents = {}
    path = lane / "zarr.json"
    with contextlib.suppress(MmreplayError, OSError):
        data = checked_reads.read_bytes(path, layout.MAX_METADATA_BYTES)
        copy = find_copy(parse.parse_json(data, str(path)), str(path))
        if copy is None:
            return documents
        copy = dataclasses.replace(copy, log=log)
        for full in copy.documents():
            name = full.removeprefix(f"{log}/")
            with contextlib.suppress(FormatError):
                found = copy.array(name)
                documents |= {} if found is None else {name: found}
    return documents


def _column_paths(lane: AnyPath) -> list[str]:
    """Every column that a lane may have, by the names of its directories."""
    names = [*layout.SCALARS, "frames", *(f"frames/{name}" for name in _folders(lane / "frames"))]
    return names + [f"extras/{name}" for name in _folders(lane / "extras")]


def _folders(path: AnyPath) -> list[str]:
    """The names of the directories in a directory."""
    if path.is_symlink():
        return []
    with contextlib.suppress(OSError, CorruptStoreError):
        subs = [path / name for name in checked_reads.names(path)]
        return [sub.name for sub in subs if sub.is_dir() and not sub.is_symlink()]
    return []


def find_schema(
    given: Sequence[Mapping[str, Any] | None],
    documents: Documents,
    lane: AnyPath,
    *,
    sure: bool,
    log: str = "",
) -> Schema:
    """The first of the schemas given that the arrays agree with; without any, what they say.

    `given` are attributes.mmreplay; if `sure`, the first is what was written, whatever the arrays
    say. `log` is where these are in a lane of many environments. Raises CorruptStoreError if
    nothing tells what a row holds.
    """
    known = {path: (spec.row_shape, spec.dtype) for path, (spec, _) in documents.items()}
    read: list[Schema] = []
    for attributes in given:
        with contextlib.suppress(FormatError):
            if attributes is not None:
                document = attributes.get("schema")
                read.append(parse.schema_from_json(document, str(lane / "zarr.json")))
    for schema in read:
        kinds = {path: (field.shape, field.dtype) for path, field in schema.columns().items()}
        if sure or all(known.get(path, kind) == kind for path, kind in kinds.items()):
            return schema
    if read:
        raise CorruptStoreError(
            f"{lane}: the schema in zarr.json and the zarr.json of an array contradict each other, "
            f"and nothing tells which is right; put back the damaged one from a backup or a "
            f"snapshot, and repair again"
        )
    fields = {path: Field(shape, dtype) for path, (shape, dtype) in known.items()}
    frames: Any = {path[7:]: field for path, field in fields.items() if path.startswith("frames/")}
    extras = {path[7:]: field for path, field in fields.items() if path.startswith("extras/")}
    try:
        reward = str(fields["rewards"].dtype)
        schema = Schema.make(frames or fields[_FRAMES], fields["actions"], extras, reward)
    except (KeyError, MmreplayError) as error:
        raise CorruptStoreError(
            f"{lane}: neither its zarr.json nor those of its arrays say what a row holds: {error}"
        ) from error
    for path in _column_paths(lane / log if log else lane):
        if path not in known and "/" in path:  # a column that would be gone without a word
            raise CorruptStoreError(
                f"{lane / log / path / 'zarr.json'}: lost, and so is the zarr.json of the lane: "
                f"nothing tells what this column holds; put one of them back from a backup, a "
                f"snapshot or another store that was created with the same fields, and repair again"
            )
    return schema


def find_specs(
    lane: AnyPath,
    schema: Schema,
    documents: Documents,
    copied: Documents,
    root: Mapping[str, Any] | None,
) -> Specs:
    """How each array is laid out: by its document, by the copy of it, by others, or by its files.

    Raises CorruptStoreError if nothing tells, or they cannot be arrays of one lane.
    """
    kinds = {path: (field.shape, field.dtype) for path, field in schema.arrays().items()}
    common: Specs = {}
    if root is not None:
        with contextlib.suppress(FormatError):
            common = plan.plan_from_layout(schema, root.get("layout"), str(lane))
    specs: Specs = {}
    for path, (shape, dtype) in kinds.items():
        known = (one.get(path, (None, 0))[0] for one in (documents, copied))
        for spec in (common.get(path), *known):
            if spec is None or (spec.row_shape, spec.dtype) != (shape, dtype):
                continue
            if fits(lane, spec):
                specs[path] = spec
                break
    # Of arrays without a file any length fits.
    for path, _ in layout.odd_lengths(specs):
        if not kept_files(lane, specs[path]):
            del specs[path]
    scalar = next((specs[path].chunk_rows for path in layout.SCALARS if path in specs), None)
    for path, (shape, dtype) in kinds.items():
        if path in specs:
            continue
        if path in layout.SCALARS and scalar is not None:
            specs[path] = ArraySpec(path, shape, dtype, scalar)
        else:
            specs[path] = from_file_sizes(lane, ArraySpec(path, shape, dtype, 1))
    for path, text in layout.odd_lengths(specs):
        raise CorruptStoreError(f"{lane / path}: {text}")
    return specs


def kept_files(lane: AnyPath, spec: ArraySpec) -> list[int]:
    """The chunk files of an array that are there, ascending; none behind a link."""
    with contextlib.suppress(OSError, CorruptStoreError):
        checked_reads.check_directories(lane, spec.path)
        return chunk_files.chunk_files(lane, spec)
    return []


def from_file_sizes(lane: AnyPath, spec: ArraySpec) -> ArraySpec:
    """The layout of an uncompressed array, whose chunk files have one size.

    Raises CorruptStoreError if it may be a compressed one, or has no file.
    """
    sizes: collections.Counter[int] = collections.Counter()
    for chunk in kept_files(lane, spec)[:_ENOUGH]:
        path = chunk_files.chunk_path(lane, spec, chunk)
        with contextlib.suppress(MmreplayError, OSError):
            size = checked_reads.regular_size(path, 2 * layout.MAX_CHUNK_BYTES)
            if spec.path.startswith(_FRAMES) and _is_shard(path, size):
                sizes.clear()
                break
            if size and not size % spec.row_bytes:
                sizes[size] += 1
    if not sizes:
        raise lost_layout(lane, spec.path, "the rows of a chunk file, and their compression")
    rows = sizes.most_common(1)[0][0] // spec.row_bytes
    return ArraySpec(spec.path, spec.row_shape, spec.dtype, rows)


def lost_layout(lane: AnyPath, path: str, what: str) -> CorruptStoreError:
    """The error for an array of which nothing tells any more how it is laid out."""
    return CorruptStoreError(
        f"{lane / path / 'zarr.json'}: lost, and it was the only copy of how this array is laid "
        f"out: {what}; put this file back from a backup, a snapshot or another store that was "
        f"created with the same fields, and repair again"
    )


def _is_shard(path: AnyPath, size: int) -> bool:
    """Whether a file ends in an index that matches its crc32c, as a shard of compressed rows."""
    most = min(_MOST_INNER, size // 16)
    length = min(16 * most + 4, size)
    end = checked_reads.read_at(path, size - length, length, size)
    return any(
        compression.crc32c(end[-(16 * n_inner + 4) : -4]).to_bytes(4, "little") == end[-4:]
        for n_inner in range(1, most + 1)
    )


def fits(lane: AnyPath, spec: ArraySpec) -> bool:
    """Whether most chunk files of a raw array have the size that it says; True if it has none."""
    if not spec.is_raw:
        return True
    sizes: collections.Counter[int] = collections.Counter()
    for chunk in kept_files(lane, spec):
        with contextlib.suppress(OSError):
            sizes[chunk_files.chunk_path(lane, spec, chunk).lstat().st_size] += 1
    return not sizes or sizes[spec.chunk_bytes] >= max(sizes.values())
