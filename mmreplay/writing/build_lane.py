"""New lanes: the directory of an empty one, and the metadata of any."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from mmreplay.errors import CorruptStoreError, FailedStoreError, FormatError
from mmreplay.format import consolidated, layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files, tail_file
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.state_page import State
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

__all__ = [
    "build_lane",
    "build_live",
    "build_vector_lane",
    "generator_path",
    "read_generator",
    "unmade",
    "write_documents",
    "write_index",
    "write_metadata",
]


def build_lane(
    path: AnyPath, schema: Schema, specs: Mapping[str, ArraySpec], attributes: Mapping[str, Any]
) -> None:
    """Make the directory of an empty, live lane; the caller makes it durable and renames it.

    Args:
        path: a directory that does not exist yet, beside the final one.
        schema: what a row holds.
        specs: every array by path.
        attributes: capacity, padding, env, versions, name for attributes.mmreplay.
    """
    own = {
        "format": layout.FORMAT,
        "kind": "lane",
        "uuid": uuid.uuid4().hex,
        "schema": schema.to_json(),
        "rows": 0,
        "first": 0,
        **attributes,
        "closed": False,
    }
    _build_log(path, own, specs, layout.index_spec())


def build_vector_lane(
    path: AnyPath,
    schema: Schema,
    logs: Mapping[str, Mapping[str, ArraySpec]],
    width: int,
    attributes: Mapping[str, Any],
) -> None:
    """As `build_lane`, of `width` environments; `logs` are every array by path, by log."""
    own = {
        "format": layout.FORMAT,
        "kind": "vector",
        "uuid": uuid.uuid4().hex,
        "width": width,
        "schema": schema.to_json(),
        **attributes,
    }
    for name, specs in logs.items():
        of_log = {
            "format": layout.FORMAT,
            "kind": "log",
            "uuid": own["uuid"],
            "rows": 0,
            "first": 0,
            "closed": False,
        }
        _build_log(path / name, of_log, specs)
    durable_writes.write_new(path / "zarr.json", layout.group_json(own))


def _build_log(
    path: AnyPath, own: Mapping[str, Any], specs: Mapping[str, ArraySpec], *more: ArraySpec
) -> None:
    """The directory of an empty, live log, with its arrays of rows and more of another length."""
    arrays = (*specs.values(), *(layout.checksum_spec(name) for name in specs), *more)
    write_documents(path, own, [(spec, 0) for spec in arrays])
    # So that whoever opens it first knows that nobody has before.
    build_live(path, own["uuid"], specs, head=0, tail_start=0, base=0).name_files()


def write_documents(
    path: AnyPath, own: Mapping[str, Any], arrays: Sequence[tuple[ArraySpec, int]]
) -> None:
    """The directories of a log that nobody knows yet, with every zarr.json.

    `own` are the attributes of its root, `arrays` each one and its rows.
    """
    for spec, rows in arrays:
        durable_writes.make_directory(path / spec.path)
        durable_writes.write_new(path / spec.path / "zarr.json", layout.array_json(spec, rows))
    for group in layout.group_paths(spec.path for spec, _ in arrays):
        durable_writes.write_new(path / group / "zarr.json", layout.group_json())
    durable_writes.write_new(path / "zarr.json", layout.group_json(own))


def write_index(path: AnyPath, starts: Ids, *, durable: bool = True) -> tuple[ArraySpec, int]:
    """Write the index of a lane that is closed, of its rows with a reset; replaces another.

    `durable=False` in a directory that nobody knows yet. Returns the array that it is, and its
    length.
    """
    spec = layout.index_spec(len(starts))
    for chunk in chunk_files.chunk_files(path, spec):
        durable_writes.unlink(chunk_files.chunk_path(path, spec, chunk))
    for chunk in range(-(-len(starts) // spec.chunk_rows)):
        part = starts[chunk * spec.chunk_rows : (chunk + 1) * spec.chunk_rows]
        data = part.astype("<i8").tobytes().ljust(spec.chunk_bytes, b"\0")
        to = chunk_files.chunk_path(path, spec, chunk)
        durable_writes.write_file(to, data, durable=durable)
    data = layout.array_json(spec, len(starts))
    durable_writes.write_file(path / spec.path / "zarr.json", data, durable=durable)
    return spec, len(starts)


def build_live(
    path: AnyPath,
    store: str,
    specs: Mapping[str, ArraySpec],
    *,
    head: int,
    tail_start: int,
    base: int,
) -> State:
    """`.live` with tails of zeros, a state that nobody trusts yet, and a valid checkpoint.

    The caller makes it durable. Returns the state.
    """
    live = path / ".live"
    durable_writes.make_directory(live)
    for spec in specs.values():
        if not spec.is_raw:
            durable_writes.allocate(tail_file.tail_path(path, spec), 2 * spec.chunk_bytes)
    CheckpointFile.create(live / "checkpoint", store, head=head, tail_start=tail_start, base=base)
    return State.create(live / "state")


def write_metadata(
    path: AnyPath,
    metadata: dict[str, Any],
    documents: consolidated.Documents | None = None,
    /,
    *,
    durable: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """Replace attributes.mmreplay of a lane; returns them. `durable` as of `write_index`.

    `documents` are those of a closed lane, of which a copy comes along if there is room for it;
    else there is none.

    Raises:
        FormatError: they would be longer than anybody reads; nothing was changed.
    """
    new = {**metadata, **changes}
    if not new.get("closed"):
        new.pop("generator", None)  # it stands in .live while the lane is open
    data = layout.group_json(new)
    # What was read may come out longer: written by others, it may be spelled in fewer bytes.
    if len(data) > layout.MAX_METADATA_BYTES and new.pop("generator", None) is not None:
        data = layout.group_json(new)  # a random state of such a length is none of ours
    if len(data) > layout.MAX_METADATA_BYTES:
        raise FormatError(
            f"{path / 'zarr.json'}: expected attributes of at most "
            f"{layout.MAX_METADATA_BYTES:,} bytes, found {len(data):,} as they would be written; "
            f"it stays as it is: give a smaller metadata="
        )
    if documents is not None:
        data = consolidated.root_json(new, documents) or data
    durable_writes.write_file(path / "zarr.json", data, durable=durable)
    return new


def generator_path(path: AnyPath) -> AnyPath:
    """Where the random state of a sampler stands while the lane is open."""
    return path / ".live" / "generator"


def read_generator(path: AnyPath) -> str | None:
    """The random state of a lane that is open; None if there is none, or it is damaged."""
    with contextlib.suppress(FileNotFoundError, ValueError, CorruptStoreError):
        return checked_reads.read_bytes(generator_path(path), layout.MAX_METADATA_BYTES).decode()
    return None


def unmade(path: AnyPath, error: FailedStoreError) -> FailedStoreError:
    """What to say where no row was ever committed, and none can be read."""
    cause = error.__cause__
    reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
    return FailedStoreError(
        f"{path}: could not be made: {reason}; nothing is left of it: check the disk and make it "
        f"again, or choose another path"
    )
