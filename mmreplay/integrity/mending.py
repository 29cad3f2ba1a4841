"""A stand-in for a lane whose documents are damaged: its files, beside documents made anew.

Invariant: the lane itself is only read; the stand-in shares its chunk files, and is only read too.
"""

from __future__ import annotations

import collections
import contextlib
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay import codecs, columns, files, format, planning, reading, shards
from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import ArraySpec
from mmreplay.integrity import tree
from mmreplay.reader import read_metadata
from mmreplay.schema import Field, Schema
from mmreplay.state import BASE, COMMITTED, PAGE_BYTES, TAIL_START, CheckpointFile, State
from mmreplay.transplant import copy_priorities

__all__ = ["fits", "refuse_newer", "stand_in"]

_SCALARS = ("actions", "rewards", "non_terminals", "resets")
_MOST_INNER = 4096
_ENOUGH = 16  # files to guess a layout from
_FRAMES = "frames"
_BLOSC = (1, 4)  # as in the flags of its header: lz4, zstd
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"

Specs = dict[str, ArraySpec]
_Guess = tuple[int, int, str | None]
"""Rows of a chunk file and of its inner chunks, and their codec."""


def stand_in(
    lane: Path,
    target: Path,
    root: Mapping[str, Any] | None,
    *,
    trust_first: bool,
    trust_name: bool,
    trust_capacity: bool,
) -> None:
    """Put a lane together that can be read, from what the damaged one leaves no doubt about.

    Args:
        lane: the damaged one.
        target: a directory that does not exist yet.
        root: attributes.mmreplay of the store of many lanes that this one belongs to, if it does.
        trust_first: whether the first row that its zarr.json names may be right.
        trust_name: whether its name may be.
        trust_capacity: whether its capacity is what was written; else it takes no row away.

    Raises:
        CorruptStoreError: something that nothing else tells.
        DiskFullError: no room.
    """
    own = _own(lane)
    documents = _documents(lane)
    schema = _schema((own, root), documents, lane)
    specs = _specs(lane, schema, documents, root)
    closed = own["closed"] if own is not None else not (lane / ".live").exists()
    if not closed:
        reading.check_directories(lane, ".live")
    chunks = {path: _chunk_files(lane, spec) for path, spec in specs.items()}
    rows = _rows(own, documents, specs) if closed else 0
    least = max(
        (found[0] * specs[path].chunk_rows for path, found in chunks.items() if found), default=0
    )
    first = min(least + format.CONTEXT_ROWS, rows) if least else 0
    if own is not None and trust_first and own["first"] <= rows:
        first = own["first"]
    attributes = _attributes(own, root, schema)
    if not trust_name:
        attributes.pop("name", None)
    if first and attributes["capacity"] is None:
        attributes["capacity"] = max(rows - first, 1)
    elif attributes["capacity"] is not None and not trust_capacity:
        attributes["capacity"] = max(attributes["capacity"], rows - first)
    attributes |= {"rows": rows, "first": first, "closed": closed}
    base = max(first - format.CONTEXT_ROWS, 0)
    arrays = [(spec, rows) for spec in specs.values()]
    arrays += [
        (format.checksum_spec(path), -(-rows // spec.chunk_rows)) for path, spec in specs.items()
    ]
    arrays.append((format.index_spec(), 0))  # of the rows again, when they are copied
    for spec, count in arrays:
        files.make_directory(target / spec.path)
        files.write_file(
            target / spec.path / "zarr.json", format.array_json(spec, count), durable=False
        )
    for group in tree.group_paths([spec.path for spec, _ in arrays]):
        files.write_file(target / group / "zarr.json", format.group_json(), durable=False)
    files.write_file(target / "zarr.json", format.group_json(attributes), durable=False)
    # As far as a writer might go back, and write again: there the stand-in has files of its own.
    durable = rows if closed else _durable(lane, attributes["uuid"])
    for path, spec in specs.items():
        sums = format.checksum_spec(path)
        for chunk in chunks[path]:
            start, stop = chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows
            if not closed or (start < rows and stop > base):
                file = columns.chunk_path(lane, spec, chunk)
                own_file = spec.is_raw and not closed and stop >= durable
                _take(file, columns.chunk_path(target, spec, chunk), own=own_file)
        for chunk in _chunk_files(lane, sums):
            _take(columns.chunk_path(lane, sums, chunk), columns.chunk_path(target, sums, chunk))
    with contextlib.suppress(FormatError, CorruptStoreError):  # damaged, they cost no row
        copy_priorities(lane, target, closed=closed)
    if not closed:
        _live(lane, target, attributes["uuid"], specs)


def fits(lane: Path, spec: ArraySpec) -> bool:
    """Whether most chunk files of a raw array have the size that it says; True if it has none."""
    if not spec.is_raw:
        return True
    sizes: collections.Counter[int] = collections.Counter()
    for chunk in _chunk_files(lane, spec):
        with contextlib.suppress(OSError):
            sizes[columns.chunk_path(lane, spec, chunk).lstat().st_size] += 1
    return not sizes or sizes[spec.chunk_bytes] >= max(sizes.values())


def refuse_newer(path: Path) -> None:
    """Make sure that a store or lane is not damaged only because this version does not read it.

    Raises:
        FormatError: its zarr.json is of another format.
    """
    where = path / "zarr.json"
    try:
        document = format.parse(reading.read_bytes(where, format.MAX_METADATA_BYTES), str(where))
        found = document["attributes"][format.ATTRIBUTE]["format"]
    except (MmreplayError, OSError, KeyError, TypeError):
        return
    if found != format.FORMAT:
        raise FormatError(
            f"{where}: expected format {format.FORMAT}, found {found!r}; a newer mmreplay may read "
            f"it; this one does not repair it"
        )


def _own(lane: Path) -> dict[str, Any] | None:
    """attributes.mmreplay, if they can be read."""
    with contextlib.suppress(MmreplayError, OSError):
        own = read_metadata(lane)
        if own["kind"] == "lane":
            return own
    return None


def _attributes(
    own: Mapping[str, Any] | None, root: Mapping[str, Any] | None, schema: Schema
) -> dict[str, Any]:
    given = own or root or {}
    kept = {name: given[name] for name in ("env", "versions", "name", "generator") if name in given}
    return {
        "format": format.FORMAT,
        "kind": "lane",
        "uuid": own["uuid"] if own is not None else uuid.uuid4().hex,
        "schema": schema.to_json(),
        "capacity": given.get("capacity"),
        "padding": given.get("padding", "reset"),
        "env": {},
        "versions": {},
        **kept,
    }


# ---------------------------------------------------------------- what the documents still say


def _documents(lane: Path) -> dict[str, tuple[ArraySpec, int]]:
    """Every array of the lane whose zarr.json can be read, and its rows."""
    out: dict[str, tuple[ArraySpec, int]] = {}
    names = [*_SCALARS, "frames", *(f"frames/{name}" for name in _folders(lane / "frames"))]
    names += [f"extras/{name}" for name in _folders(lane / "extras")]
    for name in names:
        with contextlib.suppress(MmreplayError, OSError):
            reading.check_directories(lane, name)
            where = lane / name / "zarr.json"
            data = reading.read_bytes(where, format.MAX_METADATA_BYTES)
            out[name] = format.parse_array(data, name, str(where))
    return out


def _folders(path: Path) -> list[str]:
    if path.is_symlink():
        return []
    with contextlib.suppress(OSError):
        return sorted(one.name for one in path.iterdir() if one.is_dir() and not one.is_symlink())
    return []


def _schema(
    given: Sequence[Mapping[str, Any] | None],
    documents: Mapping[str, tuple[ArraySpec, int]],
    lane: Path,
) -> Schema:
    """The first of the schemas given that the arrays agree with; without any, what they say."""
    known = {path: (spec.row_shape, spec.dtype) for path, (spec, _) in documents.items()}
    read: list[Schema] = []
    for one in given:
        with contextlib.suppress(FormatError):
            if one is not None:
                read.append(format.schema_from_json(one.get("schema"), str(lane / "zarr.json")))
    for schema in read:
        kinds = {path: (one.shape, one.dtype) for path, one in schema.columns().items()}
        if all(known.get(path, kind) == kind for path, kind in kinds.items()):
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


def _rows(
    own: Mapping[str, Any] | None,
    documents: Mapping[str, tuple[ArraySpec, int]],
    specs: Specs,
) -> int:
    """What most of the documents of a closed lane say."""
    said = collections.Counter(rows for path, (_, rows) in documents.items() if path in specs)
    if own is not None:
        said[own["rows"]] += 1
    return said.most_common(1)[0][0] if said else 0


def _specs(
    lane: Path,
    schema: Schema,
    documents: Mapping[str, tuple[ArraySpec, int]],
    root: Mapping[str, Any] | None,
) -> Specs:
    kinds = {path: (one.shape, one.dtype) for path, one in schema.columns().items()}
    kinds |= dict.fromkeys(("non_terminals", "resets"), ((), np.dtype("uint8")))
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
    scalar = next((out[path].chunk_rows for path in _SCALARS if path in out), None)
    for path, (shape, dtype) in kinds.items():
        if path in out:
            continue
        if path in _SCALARS and scalar is not None:
            out[path] = ArraySpec(path, shape, dtype, scalar)
        else:
            out[path] = _guess(lane, ArraySpec(path, shape, dtype, 1))
    lengths = {spec.chunk_rows for spec in out.values() if not spec.is_raw}
    if len(lengths) > 1:
        raise CorruptStoreError(
            f"{lane}: the shard lengths of its frames differ: {sorted(lengths)}"
        )
    return out


# ---------------------------------------------------------------- what the files say


def _chunk_files(lane: Path, spec: ArraySpec) -> list[int]:
    with contextlib.suppress(OSError, CorruptStoreError):
        reading.check_directories(lane, spec.path)
        return columns.chunk_files(lane, spec)
    return []


def _guess(lane: Path, spec: ArraySpec) -> ArraySpec:
    """The layout of an array, from its files."""
    found: collections.Counter[_Guess] = collections.Counter()
    for chunk in _chunk_files(lane, spec)[:_ENOUGH]:
        path = columns.chunk_path(lane, spec, chunk)
        with contextlib.suppress(MmreplayError, OSError):
            size = path.lstat().st_size
            data = reading.read_bytes(path, size)
            shard = _guess_shard(data, spec) if spec.path.startswith(_FRAMES) else None
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


def _guess_shard(data: bytes, spec: ArraySpec) -> _Guess | None:
    """Rows of a shard and of its inner chunks, and their codec; None if it is no shard."""
    for n_chunks in range(1, min(_MOST_INNER, len(data) // 16) + 1):
        table = data[-(16 * n_chunks + 4) : -4]
        if codecs.crc32c(table).to_bytes(4, "little") != data[-4:]:
            continue
        index = np.frombuffer(table, "<u8").reshape(n_chunks, 2)
        for offset, size in index.tolist():
            if offset == shards.ABSENT or offset + size > len(data):
                continue
            for name, n_bytes in _sizes(data[offset : offset + size]):
                inner, odd = divmod(n_bytes, spec.row_bytes)
                if inner and not odd:
                    return n_chunks * inner, inner, name
    return None


def _sizes(payload: bytes) -> Iterator[tuple[str, int]]:
    """The codec of a compressed chunk, and its size without it, as its header says."""
    if payload[:4] == _ZSTD_MAGIC:
        kind = payload[4] >> 6
        single, start = payload[4] >> 5 & 1, 5 + (0, 1, 2, 4)[payload[4] & 3]
        width = (single, 2, 4, 8)[kind]
        start += not single
        if width:
            size = int.from_bytes(payload[start : start + width], "little")
            yield "zstd", size + (256 if width == 2 else 0)  # noqa: PLR2004 (as RFC 8878 has it)
    elif payload[:2] == _GZIP_MAGIC:
        yield "gzip", int.from_bytes(payload[-8:-4], "little")  # its last word, before the crc32c
    elif len(payload) >= 16 and payload[2] >> 5 in _BLOSC:  # noqa: PLR2004
        yield "lz4", struct.unpack_from("<I", payload, 4)[0]


def _take(source: Path, target: Path, *, own: bool = False) -> None:
    """Share a file, or copy it; what is none, or gone, is missing in the stand-in, and found so."""
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        if own:
            files.copy_file(source, target)
        else:
            files.share_file(source, target)


# ---------------------------------------------------------------- a lane that was not closed


def _durable(lane: Path, store: str) -> int:
    """The head to which a writer of the lane may go back."""
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        return CheckpointFile(lane / ".live" / "checkpoint", store).best.head
    return 0


def _live(lane: Path, target: Path, store: str, specs: Specs) -> None:
    """``.live`` again, from what of state, checkpoint and tails is there.

    Raises:
        CorruptStoreError: nobody knows any more how far the lane was written.
    """
    old, new = lane / ".live", target / ".live"
    files.make_directory(new)
    _take(old / "generator", new / "generator")
    whole = True
    for spec in specs.values():
        if not spec.is_raw:
            tail = shards.tail_path(target, spec)
            try:
                files.share_file(shards.tail_path(lane, spec), tail, 2 * spec.chunk_bytes)
            except (FileNotFoundError, CorruptStoreError):
                whole = False
                files.allocate(tail, 2 * spec.chunk_bytes)
    state: State | None = None
    best = None
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        best = CheckpointFile(old / "checkpoint", store).best
    with contextlib.suppress(FileNotFoundError, CorruptStoreError):
        state = State(old / "state", writable=False)
    if state is not None and not state.is_of_this_boot():
        state = None
    if state is None and best is None:
        raise CorruptStoreError(
            f"{old}: neither the checkpoint nor the state page can be read, so nobody knows how "
            f"far this lane was written"
        )
    if state is not None and (best is None or state.words[COMMITTED] >= best.head):
        words = state.words
        head, tail_start, base = words[COMMITTED], words[TAIL_START], words[BASE]
    else:
        head, tail_start, base = best.head, best.tail_start, best.base  # type: ignore[union-attr]
    if not whole:
        head = min(head, tail_start)
    files.write_file(new / "state", bytes(PAGE_BYTES), durable=False, overwritten=True)
    CheckpointFile.create(new / "checkpoint", store, head=head, tail_start=tail_start, base=base)
