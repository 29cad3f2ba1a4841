"""Read-only view of a lane of many environments: its log of ticks, and that of starts.

Invariant: the ticks' head is taken before the starts', so that every episode of a tick that is
known has a start that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError, StoreNotFoundError
from mmreplay.format import parse
from mmreplay.format.columns import Column, start_columns, tick_columns
from mmreplay.format.consolidated import Copy
from mmreplay.format.layout import STARTS, TICKS, ArraySpec, context_rows
from mmreplay.ids import LANE_SHIFT, Array
from mmreplay.reading.log_reader import LogReader
from mmreplay.schema import Schema
from mmreplay.storage.lane_metadata import Root, read_document, read_metadata, read_root
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

_ATTEMPTS = 50


class VectorReader:
    """A lane of `width` environments, read-only; `number` is its place in the store.

    `ticks` and `starts` are its logs, `cells` the ticks with one row for each environment of each.
    `base` and `head` are ticks. `own_documents`: without the copy of the documents of its arrays.
    """

    def __init__(self, path: AnyPath, number: int = 0, *, own_documents: bool = False) -> None:
        self.path = path
        self.number = number
        self._own_documents = own_documents
        self.load()

    def load(self) -> None:
        """Open again, from zarr.json; which errors it raises is in docs/format.md."""
        for _ in range(_ATTEMPTS):
            root = read_root(self.path)
            self.metadata: dict[str, Any] = root.metadata
            copy = None if self._own_documents else root.copy
            if self.metadata["kind"] != "vector":
                raise FormatError(
                    f"{self.path}: expected a lane of many environments, found another kind"
                )
            where = str(self.path / "zarr.json")
            self.schema: Schema = parse.schema_from_json(self.metadata.get("schema"), where)
            self.width: int = self.metadata["width"]
            checked_reads.check_directories(self.path, TICKS, STARTS)
            self.ticks = _Log(self, TICKS, tick_columns(self.schema, self.width), copy)
            self.starts = _Log(self, STARTS, start_columns(self.schema), copy)
            self._check_codecs()
            if self.ticks.is_live and not (self.starts.is_live or self.starts.is_closed):
                self.ticks.load(trust=False)  # the newest ones may name starts that are lost
            if self.poll() and read_document(self.path) == root.data:
                break
        else:
            raise CorruptStoreError(
                f"{self.path}: it changed {_ATTEMPTS} times while it was opened"
            )
        self.cells = Cells(self.ticks, self.width)
        self._check_room()

    def _check_codecs(self) -> None:
        for path, spec in self.starts.specs.items():
            other = self.ticks.specs.get(path)
            if other is not None and other.is_raw != spec.is_raw:
                raise FormatError(
                    f"{self.path}: {path}: expected ticks and starts both raw, or both compressed; "
                    f"found {other.codec_name} and {spec.codec_name}"
                )

    def _check_room(self) -> None:
        if self.head * self.width >= 1 << LANE_SHIFT:
            raise CorruptStoreError(
                f"{self.ticks.path}: expected fewer than 2**{LANE_SHIFT} steps of its "
                f"{self.width:,} environments, found {self.head:,} ticks"
            )

    @property
    def log(self) -> LogReader:
        """The one with its steps."""
        return self.ticks

    @property
    def logs(self) -> tuple[LogReader, ...]:
        """What is followed."""
        return self.ticks, self.starts

    @property
    def base(self) -> int:
        """The oldest tick kept."""
        return self.ticks.base

    @property
    def head(self) -> int:
        """Ticks committed."""
        return self.ticks.head

    @property
    def is_live(self) -> bool:
        """Whether ticks may still be appended."""
        return self.ticks.is_live

    @property
    def is_closed(self) -> bool:
        """Whether both logs are."""
        return self.ticks.is_closed and self.starts.is_closed

    @property
    def untrusted(self) -> int:
        """As of a log, of the ticks."""
        return self.ticks.untrusted

    def poll(self) -> bool:
        """Take the newest heads of a live lane; False if a session is over: it must be loaded."""
        return self.ticks.poll() and self.starts.poll()

    def in_session(self) -> bool:
        """Whether the sessions that were loaded go on."""
        return self.ticks.in_session() and self.starts.in_session()

    def leave_session(self) -> None:
        """Let `poll` say of a lane that is not closed that it must be loaded again."""
        self.ticks.leave_session()

    def is_in_place(self) -> bool:
        """Whether what stands at the path is still what was loaded."""
        return self.ticks.is_in_place() and self.starts.is_in_place()

    def replaced(self) -> bool:
        """Whether a zarr.json or a state is another than the one that was loaded."""
        try:
            changed = read_metadata(self.path) != self.metadata
        except MmreplayError:
            return True
        return changed or self.ticks.replaced() or self.starts.replaced()


class _Log(LogReader):
    """One of the two logs."""

    def __init__(
        self, lane: VectorReader, name: str, columns: Mapping[str, Column], copy: Copy | None
    ) -> None:
        self._lane, self._own_columns = lane.path, columns
        self._name, self._copy = name, copy
        self._kept: int | None = lane.metadata["capacity"]
        self._uuid: str = lane.metadata["uuid"]
        self._below = context_rows(lane.metadata["width"] if name == TICKS else None)
        try:
            super().__init__(lane.path / name)
        except StoreNotFoundError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise  # it is there, and may not be read
            raise FormatError(
                f"{lane.path / name}: missing; a lane of many environments has its logs {TICKS} "
                f"and {STARTS}: run `mmreplay verify`, or copy it again"
            ) from error
        self._copy = None  # if it is loaded again, it is of another session

    def _find_copy(self, root: Root) -> Copy | None:
        return None if self._copy is None else self._copy.of_log(self._name, root.metadata)

    def _columns(self) -> Mapping[str, Column]:
        if self.metadata["kind"] != "log":
            raise FormatError(f"{self.path}: expected a log of {self._lane}, found another kind")
        if self.metadata["uuid"] != self._uuid:
            raise FormatError(
                f"{self.path}: expected a log of {self._lane}, uuid {self._uuid}; found one of "
                f"another lane, uuid {self.metadata['uuid']}"
            )
        return self._own_columns

    @property
    def _capacity(self) -> int | None:
        return self._kept

    @property
    def _context(self) -> int:
        return self._below

    @property
    def _locked(self) -> AnyPath:
        return self._lane


class Cells:
    """The log of ticks as columns read it: row t * width + e is what tick t gave environment e."""

    def __init__(self, ticks: LogReader, width: int) -> None:
        self._ticks, self._width = ticks, width
        self.path = ticks.path
        self.specs: dict[str, ArraySpec] = {
            path: spec.cells(width) for path, spec in ticks.specs.items() if spec.row_shape
        }
        self.tails: dict[str, Array] = {
            path: rows.reshape(-1, *rows.shape[2:]) for path, rows in ticks.tails.items()
        }

    @property
    def base(self) -> int:
        """The oldest cell kept."""
        return self._ticks.base * self._width

    @property
    def head(self) -> int:
        """Cells committed."""
        return self._ticks.head * self._width

    @property
    def is_live(self) -> bool:
        """Whether cells may still be appended."""
        return self._ticks.is_live

    def tail_start(self) -> int:
        """The first cell that is in the tail now."""
        return self._ticks.tail_start() * self._width

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """The error for a chunk file that is not there and holds cells below `stop`."""
        return self._ticks.missing(path, -(-stop // self._width))

    def check_in_place(self) -> None:
        """See `chunk_files.LaneFiles`."""
        self._ticks.check_in_place()
