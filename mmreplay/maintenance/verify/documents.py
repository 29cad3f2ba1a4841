"""The zarr.json files of a lane, each read once and compared with the expected one.

Invariant: a document that passes equals the one that this package writes, except for a user's own
attributes; a lane with an array that cannot be opened is not read further.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import layout, parse
from mmreplay.format.layout import FINALS, PRIORITIES, ArraySpec
from mmreplay.maintenance.verify.report import ByteCount, Notes, reason
from mmreplay.storage import priority_column
from mmreplay.storage.lane_metadata import LaneDocument, read_array, read_document, read_lane
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

OWN_DIGEST = "attributes.mmreplay: expected crc32c"  # how a finding about damaged attributes begins
_NONE: dict[str, Any] = {"attributes": {}}
_TYPES = {"env": dict, "versions": dict, "name": str}


@dataclass(slots=True)
class Log:
    """One log of a lane; also a `storage.chunk_files.ChunkFiles`.

    Paths of its arrays begin with `prefix`, which is empty or ``finals/``; a row has `n` entries.
    `specs` are its arrays, in the log of steps also the priorities, and `sums` their checksum
    arrays. The rows [base, head) are examined; compressed ones below `in_shards` are in shards.
    `is_all`: there may not be final observations of later steps.
    """

    path: AnyPath
    prefix: str
    axes: tuple[str, ...]
    n: int
    specs: dict[str, ArraySpec]
    closed: bool
    sums: dict[str, ArraySpec] = field(init=False)
    base: int = 0
    head: int = 0
    in_shards: int = 0
    is_all: bool = False

    def __post_init__(self) -> None:
        self.sums = {path: layout.checksum_spec(path) for path in self.specs}

    def take(self, base: int, head: int, in_shards: int | None = None) -> None:
        """Examine these rows."""
        self.base, self.head = base, head
        self.in_shards = head if in_shards is None else min(in_shards, head)

    def chunks(self, spec: ArraySpec) -> range:
        """The chunk files that hold its rows, and the pending frames of an open lane."""
        stop = self.head if spec.is_raw else self.in_shards
        if stop and spec.is_raw and spec.path.startswith("frames"):
            stop += not (self.closed or self.prefix)
        return range(self.base // spec.chunk_rows, -(-stop // spec.chunk_rows))

    def missing(self, path: AnyPath, stop: int) -> Exception:
        """See `chunk_files.ChunkFiles`."""
        return CorruptStoreError(f"{path}: missing; it holds rows up to {stop:,}")

    def check_in_place(self) -> None:
        """See `chunk_files.ChunkFiles`: a lane that changes hands is examined again."""


class Documents:
    """The zarr.json files of one lane; `logs` is None, `metadata` empty if it cannot be opened.

    In the log `episodes`, of their fields, rows are numbers. With `copy_first` the copies in the
    lane's own document count, where they differ from the others.
    """

    def __init__(self, path: AnyPath, notes: Notes, tally: ByteCount, *, copy_first: bool) -> None:
        self._path, self._notes, self._tally, self._copy_first = path, notes, tally, copy_first
        self._found: dict[str, Any] = {}  # None of one that is damaged
        self.metadata: dict[str, Any] = {}
        self.lane: LaneDocument | None = None
        self.logs: tuple[Log, Log] | None = None
        self.episodes = Log(path, "", ("episode",), 1, {}, closed=True)
        try:
            lane = self.lane = read_lane(path, own_documents=not copy_first)
        except (MmreplayError, OSError) as error:
            self._find_unreadable(error)
        else:
            self.metadata, self.logs = lane.metadata, self._compare_all(lane)

    def _find_unreadable(self, error: Exception) -> None:
        file, text = "zarr.json", reason(error, self._path)
        if str(error).startswith(f"{self._path}/"):
            file, _, text = reason(error).removeprefix(f"{self._path}/").partition(": ")
        if isinstance(error.__cause__, FileNotFoundError):
            text = "missing"
        self._notes.find(file, text, file.removesuffix("zarr.json").rstrip("/"))
        with contextlib.suppress(MmreplayError, OSError):  # what named that file may be the damage
            for text in root_problems(read_document(self._path)):
                self._find("", text)

    def _compare_all(self, lane: LaneDocument) -> tuple[Log, Log]:
        """Compare all documents; returns the logs that they describe."""
        own, path = lane.metadata, self._path
        self._tally.add(len(lane.data))
        if lane.schema.to_json() != own["schema"]:
            self._find("", f"schema: expected {json.dumps(lane.schema.to_json())}")
        for text in root_problems(lane.data):
            self._find("", text)
        axes = ("step",) if lane.environments is None else ("step", "env")
        rows = Log(path, "", axes, lane.n, dict(lane.rows), own["closed"])
        finals = Log(path / FINALS, f"{FINALS}/", ("episode",), 1, lane.finals, own["closed"])
        for log, n_rows in ((rows, own["rows"]), (finals, own["finals"])):
            for spec in log.specs.values():
                self._compare(log, layout.named_axes(spec, *log.axes), n_rows)
                self._compare_sums(log, spec, n_rows)
        self.episodes = Log(path, "", ("episode",), 1, lane.episodes, own["closed"])
        head = self.episodes.head = self._n_episodes(lane)
        for spec in self.episodes.specs.values():
            self._compare(self.episodes, spec, head)
            self._compare_sums(self.episodes, spec, head)
        for group in layout.group_paths(self._found):
            self._compare(rows, None, 0, group)
        self._take_priorities(rows, own)
        if own["closed"]:
            self._check_copy(lane)
        return rows, finals

    def _n_episodes(self, lane: LaneDocument) -> int:
        """How many episodes the arrays of their fields have, by the first document that says so."""
        where, copy = f"{self._path}/zarr.json", dict[str, Any]()
        with contextlib.suppress(FormatError):
            copy = parse.find_copy(parse.parse_json(lane.data, where), where) or copy
        for one in (copy, {}) if self._copy_first else ({}, copy):
            for path in lane.episodes:
                with contextlib.suppress(MmreplayError, OSError):
                    return read_array(self._path, path, path, one)[0][1]
        return 0

    def _take_priorities(self, log: Log, own: Mapping[str, Any]) -> None:
        """Add the priorities to the log of steps, if there are any."""
        has_sums = own["closed"] and (log.path / layout.checksum_spec(PRIORITIES).path).exists()
        try:
            spec = priority_column.find_spec(log.path, own["environments"])
        except (MmreplayError, OSError) as error:
            where = f"{log.path}/{PRIORITIES}/zarr.json"
            self._find(PRIORITIES, reason(error, where, f"{log.path}/{PRIORITIES}"))
            return
        if spec is not None:
            log.specs[PRIORITIES] = spec
            self._compare(log, layout.named_axes(spec, *log.axes), own["rows"])
            if has_sums:
                log.sums[PRIORITIES] = layout.checksum_spec(PRIORITIES)
                self._compare_sums(log, spec, own["rows"])
        elif has_sums:
            self._find(PRIORITIES, "expected this array, as it has checksums; found none")

    def _compare_sums(self, log: Log, spec: ArraySpec, n_rows: int) -> None:
        self._compare(log, layout.checksum_spec(spec.path), -(-n_rows // spec.chunk_rows))

    def _compare(self, log: Log, spec: ArraySpec | None, n_rows: int, group: str = "") -> None:
        """Compare the document of an array, or of a group, with the expected one."""
        path = group if spec is None else log.prefix + spec.path
        self._found[path] = None
        where = self._path / path / "zarr.json"
        try:
            checked_reads.check_directories(self._path, path)
            data = checked_reads.read_bytes(where, layout.MAX_METADATA_BYTES)
            self._tally.add(len(data))
            document, expected = parse.parse_json(data, str(where)), layout.group_json()
            if spec is not None:
                if not log.closed:  # what it says counts once the lane is closed
                    n_rows = parse.array_spec(document, spec.path, str(where))[1]
                expected = layout.array_json(spec, n_rows)
        except FileNotFoundError:
            self._find(path, "missing")
            return
        except (MmreplayError, OSError) as error:
            self._find(path, reason(error, where, self._path / path))
            return
        text = difference({**json.loads(expected), **_NONE}, {**document, **_NONE})
        if text or "attributes" not in document:
            self._find(path, text or "attributes: missing")
        else:
            self._found[path] = document

    def _check_copy(self, lane: LaneDocument) -> None:
        """Compare the consolidated copy, which a zarr library may have written."""
        where, own = f"{self._path}/zarr.json", self._found
        try:
            copied = parse.find_copy(parse.parse_json(lane.data, where), where)
        except FormatError as error:
            self._find("", reason(error, where))
            return
        if copied is None:
            return
        optional = {PRIORITIES, layout.checksum_spec(PRIORITIES).path} - own.keys()
        damaged = {path for path, document in own.items() if document is None}
        expected, found = (
            {path: _bare(one) for path, one in some.items() if path not in optional | damaged}
            for some in (own, copied)
        )
        if text := difference(expected, found, layout.COPY):
            self._find("", text)

    def _find(self, path: str, text: str) -> None:
        self._notes.find(f"{path}/zarr.json".lstrip("/"), text, path)


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
    ignored = {"storage_transformers": [], layout.COPY: {**layout.COPY_KIND, "metadata": {}}}
    if not isinstance(document, dict):
        return document
    return {k: v for k, v in document.items() if k not in ignored or v != ignored[k]} | _NONE
