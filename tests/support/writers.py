"""What tests ask of a writer, and of the store that it has written so far."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmreplay
from mmreplay import Field
from mmreplay.storage import chunk_files
from mmreplay.storage.checkpoint import Checkpoint, CheckpointFile

if TYPE_CHECKING:
    from mmreplay import Writer

__all__ = [
    "ACTION",
    "FRAME",
    "assert_store_matches",
    "attributes",
    "check",
    "checkpoint",
    "chunks",
    "drain",
]

FRAME, ACTION = Field((3,), "uint8", "raw", chunk=8), Field((), "int64", chunk=8)


def attributes(path: Path) -> dict[str, Any]:
    """attributes.mmreplay of a store or lane, unchecked."""
    own: dict[str, Any] = json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]
    return own


def check(story: Any, writer: Any) -> None:
    """What can be read is the story."""
    with mmreplay.open(writer.path) as store:
        story.check(store)


def assert_store_matches(story: Any, writer: Writer, start: int = 0) -> None:
    """Every row from `start` on, and the ids of all transitions, are those of the story."""
    with mmreplay.open(writer.path) as store:
        story.check(store, start=start)
        first = store.lanes[0].first
        expected = [row for row in story.transitions(writer.path) if row >= first]
        assert store.ids.tolist() == expected


def checkpoint(writer: Writer) -> Checkpoint:
    """The best slot."""
    return CheckpointFile(writer.path / ".live" / "checkpoint", writer.metadata["uuid"]).best


def chunks(writer: Writer, path: str = "rewards") -> list[int]:
    """The chunk files of a column that are there."""
    return chunk_files.chunk_files(writer.path, writer.specs[path])


def drain(writer: Writer) -> None:
    """Wait for what the sealing thread has to do."""
    writer._background.submit(lambda: None).result(30)
