"""New lanes: the directory of an empty one, and the metadata of any."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError
from mmreplay.format import layout
from mmreplay.format.layout import FINALS, ArraySpec
from mmreplay.format.plan import LanePlan, episode_specs
from mmreplay.schema import Schema
from mmreplay.storage import chunk_files
from mmreplay.storage.state_page import CheckpointFile, State
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath


def build_lane(
    path: AnyPath,
    schema: Schema,
    plan: LanePlan,
    environments: int | None,
    attributes: Mapping[str, Any],
) -> None:
    """Make the directory of an empty, live lane; the caller makes it durable and renames it."""
    own = {
        "format": layout.FORMAT,
        "kind": "lane",
        "uuid": uuid.uuid4().hex,
        "environments": environments,
        "schema": schema.to_json(),
        "rows": 0,
        "first": 0,
        "finals": 0,
        "first_final": 0,
        "episodes_before": 0,
        **attributes,
        "closed": False,
    }
    durable_writes.make_directory(path)
    _write_arrays(path, [*plan.rows.values(), *episode_specs(schema.episode).values()])
    _write_arrays(path / FINALS, plan.finals.values())
    durable_writes.write_new(path / FINALS / "zarr.json", layout.group_json())
    durable_writes.write_new(path / "zarr.json", layout.group_json(own))
    for log, specs in ((path, plan.rows), (path / FINALS, plan.finals)):
        # So that the first opening knows that there was none before.
        build_live(log, own["uuid"], specs, head=0, tail_start=0, base=0, before=0).name_files()


def _write_arrays(path: AnyPath, specs: Iterable[ArraySpec]) -> None:
    """The directories of a log's arrays and their checksums, and of the groups that hold them."""
    arrays = [one for spec in specs for one in (spec, layout.checksum_spec(spec.path))]
    for spec in arrays:
        durable_writes.make_directory(path / spec.path)
        durable_writes.write_new(path / spec.path / "zarr.json", layout.array_json(spec, 0))
    for group in layout.group_paths(spec.path for spec in arrays):
        durable_writes.write_new(path / group / "zarr.json", layout.group_json())


def build_live(
    path: AnyPath,
    store: str,
    specs: Mapping[str, ArraySpec],
    *,
    head: int,
    tail_start: int,
    base: int,
    before: int,
) -> State:
    """`.live` with zeros in its tails, an untrusted state and a checkpoint, not yet durable."""
    live = path / ".live"
    durable_writes.make_directory(live)
    for spec in specs.values():
        if not spec.is_raw:
            durable_writes.allocate(chunk_files.tail_path(path, spec), 2 * spec.chunk_bytes)
    CheckpointFile.create(
        live / "checkpoint", store, head=head, tail_start=tail_start, base=base, before=before
    )
    return State.create(live / "state")


def write_metadata(
    path: AnyPath,
    metadata: dict[str, Any],
    documents: layout.Documents | None = None,
    /,
    *,
    durable: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """Replace attributes.mmreplay of a lane; returns them. FormatError: they are too long."""
    new = {**metadata, **changes}
    if not new.get("closed"):
        new.pop("generator", None)  # it stands in .live while the lane is open
    data = layout.group_json(new)
    # What was read may come out longer: written by others, it may be spelled in fewer bytes.
    if len(data) > layout.MAX_METADATA_BYTES:
        raise FormatError(
            f"{path / 'zarr.json'}: expected attributes of at most "
            f"{layout.MAX_METADATA_BYTES:,} bytes, found {len(data):,} after this change; "
            f"the file was not changed: pass a smaller metadata="
        )
    if documents is not None:
        data = layout.closed_json(new, documents)
    durable_writes.write_file(path / "zarr.json", data, durable=durable)
    return new


def generator_path(path: AnyPath) -> AnyPath:
    """Where the random state of a sampler stands while the lane is open."""
    return path / ".live" / "generator"


def read_generator(path: AnyPath) -> str | None:
    """The random state saved with an open lane; None if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, ValueError, CorruptStoreError):
        return checked_reads.read_bytes(generator_path(path), layout.MAX_GENERATOR_BYTES).decode()
    return None
