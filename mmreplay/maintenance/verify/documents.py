"""The zarr.json files of a lane, each read once and compared with the expected one.

Invariant: a document that passes equals the one that this package writes, except for a user's own
attributes; an array whose document is in doubt is not read further.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import layout, parse
from mmreplay.format.columns import Column, final_columns, row_columns
from mmreplay.format.consolidated import EMPTY, find_copy
from mmreplay.format.layout import FINALS, ArraySpec
from mmreplay.maintenance.verify.report import Notes, Tally, reason
from mmreplay.schema import Schema
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

__all__ = [
    "OWN_DIGEST",
    "PRIORITIES",
    "Documents",
    "Log",
    "difference",
    "generator_problem",
    "root_problems",
]

PRIORITIES = layout.priority_spec(1).path
OWN_DIGEST = "attributes.mmreplay: expected crc32c"
"""How a finding about damaged attributes begins."""
_NONE: dict[str, Any] = {"attributes": {}}
_TYPES = {"env": dict, "versions": dict, "name": str}


@dataclass(slots=True)
class Log:
    """One log of a lane; also a `storage.chunk_files.ChunkFiles`.

    Attributes:
        prefix: of the paths of its arrays: empty, or ``finals/``.
        axes: the names of the first axes of its arrays.
        n: entries per row.
        columns: its arrays of rows, by the schema.
        specs: arrays with usable metadata; in the log of steps also the priorities.
        sums: their checksum arrays, by the same paths.
        base, head: the rows to examine; compressed ones below `in_shards` are in shards.
    """

    path: AnyPath
    prefix: str
    axes: tuple[str, ...]
    n: int
    columns: Mapping[str, Column]
    specs: dict[str, ArraySpec] = field(default_factory=dict)
    sums: dict[str, ArraySpec] = field(default_factory=dict)
    base: int = 0
    head: int = 0
    in_shards: int = 0
    closed: bool = True

    def take(self, base: int, head: int, in_shards: int | None = None) -> None:
        """Examine these rows."""
        self.base, self.head = base, head
        self.in_shards = head if in_shards is None else min(in_shards, head)

    def array_paths(self) -> list[str]:
        """Every array that it must have, below the lane."""
        paths = [*self.columns, *(layout.checksum_spec(path).path for path in self.columns)]
        return [self.prefix + path for path in paths]

    def chunks(self, spec: ArraySpec) -> range:
        """The chunk files that hold its rows, and the pending frames of an open lane."""
        stop = self.head if spec.is_raw else self.in_shards
        if (
            stop
            and spec.is_raw
            and spec.path.startswith("frames")
            and not (self.closed or self.prefix)
        ):
            stop += 1
        return range(self.base // spec.chunk_rows, -(-stop // spec.chunk_rows))

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """See `chunk_files.ChunkFiles`."""
        return CorruptStoreError(f"{path}: missing; it holds rows up to {stop:,}")

    def check_in_place(self) -> None:
        """See `chunk_files.ChunkFiles`: a lane that changes hands is examined again."""


class Documents:
    """The zarr.json files of one lane; `metadata` and `logs` are None if unusable."""

    def __init__(self, path: AnyPath, notes: Notes, tally: Tally) -> None:
        self._path, self._notes, self._tally = path, notes, tally
        self.metadata: dict[str, Any] | None = None
        self.logs: tuple[Log, Log] | None = None
        self._found: dict[str, dict[str, Any] | None] = {}  # None of one that is damaged
        self._root: dict[str, Any] = {}
        schema = self._read_root()
        if schema is not None and self.metadata is not None:
            self.logs = self._read_logs(schema, self.metadata)

    def _read_root(self) -> Schema | None:
        """Read the lane's own zarr.json; returns its schema, None if unusable."""
        where, data = f"{self._path}/zarr.json", b""
        schema = None
        try:
            data = self._bytes("")
            self._root = parse.parse_json(data, where)
            own = parse.root_attributes(self._root, where)
            if own["kind"] != "lane":
                raise FormatError("expected a lane, found a store of lanes")
            schema = parse.schema_from_json(own.get("schema"), where)
            self.metadata = own
            if schema.to_json() != own["schema"]:
                self._notes.find("zarr.json", f"schema: expected {json.dumps(schema.to_json())}")
        except FileNotFoundError:
            self._notes.find("zarr.json", self._missing(""))
            return None
        except (MmreplayError, OSError) as error:
            self._notes.find("zarr.json", reason(error, where))
        for text in root_problems(data):
            self._notes.find("zarr.json", text)
        return schema

    def _read_logs(self, schema: Schema, own: Mapping[str, Any]) -> tuple[Log, Log]:
        n, closed = own["environments"], own["closed"]
        axes = ("step",) if n is None else ("step", "env")
        rows = Log(self._path, "", axes, n or 1, row_columns(schema, n), closed=closed)
        where = self._path / FINALS
        finals = Log(where, f"{FINALS}/", ("episode",), 1, final_columns(schema), closed=closed)
        for log, name in ((rows, "rows"), (finals, FINALS)):
            n_rows = own[name] if closed else None
            for path, one in log.columns.items():
                spec = ArraySpec(path, one.row_shape, one.dtype, 1, width=one.width)
                self._read_array(log, path, layout.named_axes(spec, *log.axes), n_rows)
            for path, text in layout.odd_lengths(log.specs):
                self._find(log.prefix + path, text)
        self._read_priorities(rows, own)
        for group in layout.group_paths([*rows.array_paths(), *finals.array_paths()]):
            if (data := self._load(group)) is not None:
                self._compare(group, data, layout.group_json())
        for path in finals.specs.keys() & rows.specs.keys():
            if rows.specs[path].is_raw != finals.specs[path].is_raw:
                text = "expected frames and final frames both raw, or both compressed"
                self._find(finals.prefix + path, text)
        if closed:
            self._check_copy()
        return rows, finals

    def _read_priorities(self, log: Log, own: Mapping[str, Any]) -> None:
        """Read the priorities, if there are any."""
        if (log.path / PRIORITIES).exists():
            expected = layout.priority_spec(1, own["environments"])
            self._read_array(log, PRIORITIES, expected, own["rows"] if own["closed"] else None)
        elif own["closed"] and (log.path / layout.checksum_spec(PRIORITIES).path).exists():
            self._find(PRIORITIES, "expected this array, as it has checksums; found none")

    # ------------------------------------------------------------ one document

    def _read_array(self, log: Log, path: str, expected: ArraySpec, rows: int | None) -> None:
        """Read an array of `rows` rows, None if unknown, and its checksum array."""
        spec = self._read_spec(log, expected, rows)
        if spec is not None:
            log.specs[path] = spec
        n_chunks = None if spec is None or rows is None else -(-rows // spec.chunk_rows)
        sums = layout.checksum_spec(path)
        # The checksums of priorities are written by each close.
        if path in log.columns or (log.closed and (log.path / sums.path).exists()):
            spec = self._read_spec(log, sums, n_chunks)
            if spec is not None and spec.chunk_rows != sums.chunk_rows:
                self._find(log.prefix + sums.path, f"expected chunks of {sums.chunk_rows:,}")
            elif spec is not None:
                log.sums[path] = spec

    def _read_spec(self, log: Log, expected: ArraySpec, rows: int | None) -> ArraySpec | None:
        """The array that a document describes; None if unusable."""
        path = log.prefix + expected.path
        if (data := self._load(path)) is None:
            return None
        try:
            spec, found = parse.parse_array(data, expected.path, "")
        except FormatError as error:
            self._find(path, reason(error, ""))
            return None
        text = layout.width_problem(spec, expected.width)
        if (spec.row_shape, spec.dtype) != (expected.row_shape, expected.dtype):
            text = f"expected rows of {expected.row_shape} {expected.dtype}"
        elif not spec.is_raw and not expected.path.startswith("frames"):
            text = f"expected uncompressed rows, found {spec.codec_name}"
        if text:
            self._find(path, text)
            return None
        wanted = dataclasses.replace(spec, dims=expected.dims)
        self._compare(path, data, layout.array_json(wanted, found if rows is None else rows))
        return spec

    def _load(self, path: str) -> bytes | None:
        """The bytes of a zarr.json; None, and a finding, if unreadable."""
        self._found[path] = None
        try:
            return self._bytes(path)
        except FileNotFoundError:
            self._find(path, self._missing(path))
        except (MmreplayError, OSError) as error:
            self._find(path, reason(error, f"{self._path}/{path}/zarr.json"))
        return None

    def _compare(self, path: str, data: bytes, expected: bytes) -> None:
        """Compare a document with the expected one."""
        try:
            document = parse.parse_json(data, "")
        except FormatError as error:
            self._find(path, reason(error, ""))
            return
        text = difference({**json.loads(expected), "attributes": {}}, {**document, **_NONE})
        if text or "attributes" not in document:
            self._find(path, text or "attributes: missing")
        else:
            self._found[path] = document

    def _check_copy(self) -> None:
        """Compare the consolidated copy, which a zarr library may have written."""
        where, own = f"{self._path}/zarr.json", self._found
        try:
            copy = find_copy(self._root, where)
            copied = copy or {}
        except FormatError as error:
            self._notes.find("zarr.json", reason(error, where))
            return
        optional = {PRIORITIES, layout.checksum_spec(PRIORITIES).path}
        for path in () if copy is None else sorted(own.keys() | copied.keys()):
            if path in own and own[path] is None:
                continue  # a finding of its own
            if path not in own:
                text = "" if path in optional else "expected arrays and groups of the lane only"
            elif path not in copied:
                text = "missing"
            else:
                text = difference(_bare(own[path]), _bare(copied[path]))
                text = text and f"{text}, unlike its own zarr.json"
            if text:
                self._notes.find("zarr.json", f"{layout.COPY}: {path:.200}: {text}")

    def _find(self, array: str, text: str) -> None:
        self._notes.find(f"{array}/zarr.json", text, array)

    def _bytes(self, path: str) -> bytes:
        """The bytes of a zarr.json of the lane."""
        if path:
            checked_reads.check_directories(self._path, path)
        where = self._path / path / "zarr.json"
        data = checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES)
        self._tally.add(len(data))
        return data

    def _missing(self, path: str) -> str:
        return "missing" if (self._path / path).exists() else "missing, with its directory"


def root_problems(data: bytes) -> list[str]:
    """What is wrong with attributes.mmreplay in a zarr.json, and with its other keys."""
    try:
        document = parse.parse_json(data, "")
        own = document["attributes"][layout.ATTRIBUTE]
        found = own.get(layout.DIGEST)
    except (FormatError, KeyError, TypeError, AttributeError):
        return []  # a finding of its own
    out = []
    if found != layout.digest(own):
        out.append(f"{OWN_DIGEST} {found!r:.80}, found {layout.digest(own)}")
    known = {"zarr_format", "node_type", "attributes", layout.COPY}
    out += [f"{key!r:.80} is unknown to format 1" for key in sorted(document.keys() - known)[:1]]
    for name, kind in _TYPES.items():
        if not isinstance(own.get(name, kind()), kind):
            out.append(f"{name}: expected {kind.__name__}, found {own[name]!r:.80}")
    if "generator" in own:
        out.append(generator_problem(own["generator"]))
    return [*filter(None, out)]


def generator_problem(text: Any) -> str:
    """What is wrong with a random state that was saved as text; empty if nothing is."""
    try:
        np.random.default_rng(0).bit_generator.state = json.loads(text)
    except (
        ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        return f"generator: expected a random state as text, found something else: {error!s:.200}"
    return ""


def difference(expected: Any, found: Any, at: str = "") -> str:
    """Describe the first difference of two JSON values; empty if they are equal."""
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() ^ found.keys()):
            what = "missing" if key in expected else "unknown to format 1"
            return f"{at}.{key:.80}: {what}".removeprefix(".")
        names = {key: f"{at}.{key}".removeprefix(".") for key in sorted(expected)}
        pairs = ((name, expected[key], found[key]) for key, name in names.items())
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = ((f"{at}[{n}]", one, found[n]) for n, one in enumerate(expected))
    # 1 == 1.0 == True in Python, but not in a shape.
    elif expected != found or isinstance(expected, bool) != isinstance(found, bool):
        return f"{at}: expected {expected!r:.200}, found {found!r:.80}"
    return next(filter(None, (difference(one, other, name) for name, one, other in pairs)), "")


def _bare(document: Any) -> Any:
    """A document without attributes and the empty values that zarr libraries add."""
    ignored = {"storage_transformers": [], layout.COPY: EMPTY}
    if not isinstance(document, dict):
        return document
    return {k: v for k, v in document.items() if k not in ignored or v != ignored[k]} | _NONE
