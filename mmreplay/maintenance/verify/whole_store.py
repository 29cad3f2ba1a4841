"""`verify`: examines all lanes of a store, and compares them."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError, StoreNotFoundError
from mmreplay.format import layout, parse, plan
from mmreplay.maintenance.verify.documents import difference, root_problems
from mmreplay.maintenance.verify.lane import CUT_OFF, Examination, examine, foreign
from mmreplay.maintenance.verify.report import ByteCount, Finding, Notes, Report, reason
from mmreplay.reading.lane_reader import store_state
from mmreplay.storage.lane_metadata import hold_store, read_document
from mmreplay.system import checked_reads, platform, user_paths
from mmreplay.system.held_directories import AnyPath, check_there

_SIGNS = ("resets/zarr.json", "rewards/zarr.json", ".live", "lane-00000", layout.FINALS)


def verify(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Report:
    """Read a whole store; check every checksum and rule of format.md and semantics.md.

    The store may be closed, live or crashed; its writer is not disturbed. Of a live lane it checks
    the rows of the last flush that are not evicted. `progress` is called after each file with bytes
    read and the approximate total.

    Raises:
        StoreNotFoundError, FormatError: there is no store, or a part of it may not be read.
        LockedError: a writer keeps opening and closing it.
        FailedStoreError: it was removed meanwhile.
    """
    named = user_paths.as_path(path)
    checked_reads.check_rights(named)
    # Held open: another store may get the path meanwhile.
    store: AnyPath = named
    if platform.OPENS_FROM_DIRECTORIES:
        store = hold_store(named).root
    report = _verify(store, progress)
    if report.findings:
        check_there(store, StoreNotFoundError(str(named)))
    return report


def _verify(store: AnyPath, progress: Callable[[int, int], None] | None) -> Report:
    """What is in a directory."""
    own, where = Notes(""), store / "zarr.json"
    root: dict[str, Any] | None = None
    data = b""
    try:
        data = read_document(store)
        root = parse.parse_root(data, str(where))
    except (FormatError, CorruptStoreError) as error:
        if not any((store / sign).exists() for sign in _SIGNS):
            raise
        lost = isinstance(error.__cause__, FileNotFoundError)
        own.find("zarr.json", "missing" if lost else reason(error, where, store))
    tally = ByteCount(progress, store)
    if root is not None and root["kind"] == "lane":
        lanes = [store]
    else:
        found = [store / name for name in layout.lane_names(checked_reads.names(store))]
        lanes = [lane for lane in found if not lane.is_symlink()]  # a link has a finding already
        for text in [*root_problems(data), *_layout_problems(root or {}, str(where))]:
            own.find("zarr.json", text)
        if root is not None or lanes:  # else it was a lane
            _check_names(store, lanes, own)
    examinations = [examine(store, path, tally) for path in lanes]
    for lane in examinations:
        schema = lane.documents.metadata.get("schema")
        if root is not None and schema is not None and _rows(schema) != _rows(root.get("schema")):
            text = "schema: expected that of the store"
            if _is_ahead(schema, root.get("schema"), str(where)):
                lane.notes.warn("zarr.json", f"{text}, found columns that it has not: {CUT_OFF}")
            else:
                lane.notes.find("zarr.json", f"{text}, found {schema}")
    _find_duplicates(examinations)
    tally.finish()
    not_empty = [lane for lane in examinations if lane.n_rows]
    return Report(
        path=str(store),
        state=store_state(lane.state for lane in examinations),
        lanes=len(examinations),
        rows=sum(lane.n_rows for lane in examinations),
        environments=sum(lane.environments for lane in examinations),
        unflushed=sum(lane.unflushed for lane in examinations),
        untrusted=sum(lane.untrusted for lane in examinations),
        files=tally.files,
        bytes=tally.bytes,
        from_start=bool(not_empty) and all(lane.from_start for lane in not_empty),
        findings=list(itertools.chain(own.findings, *(one.findings for one in examinations))),
        warnings=list(itertools.chain(own.warnings, *(one.warnings for one in examinations))),
    )


def _rows(schema: Any) -> Any:
    """What a schema says of rows: lanes may have other fields of episodes."""
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if key != "episode"}


def _is_ahead(of_lane: Any, of_store: Any, where: str) -> bool:
    """Whether a lane only has derived columns more: it gets them first, and loses them last."""
    with contextlib.suppress(FormatError):
        own, store = (parse.schema_from_json(one, where) for one in (of_lane, of_store))
        kept = own.only({*own.extras, *store.derived})
        return bool(_rows(kept.to_json()) == _rows(store.to_json()))
    return False


def _layout_problems(root: Mapping[str, Any], where: str) -> Iterator[str]:
    """What is wrong with the schema and the layout of a store of lanes; `root` may be empty."""
    if not root:
        return
    try:
        schema = parse.schema_from_json(root.get("schema"), where)
        specs = plan.plan_from_layout(schema, root.get("layout"), where)
    except FormatError as error:
        yield reason(error, where)
        return
    for name, one in (("schema", schema.to_json()), ("layout", layout.layout_json(specs))):
        if text := difference(one, root[name], name):
            yield text


def _check_names(store: AnyPath, lanes: Sequence[AnyPath], notes: Notes) -> None:
    numbers = [int(path.name[5:]) for path in lanes]
    for before, number in itertools.pairwise([-1, *numbers]):
        name, n_missing = layout.lane_name(before + 1), number - before - 1
        if n_missing:
            text = "expected a lane of this number, as there are later ones; it is missing"
            if n_missing > 1:
                text += f", and so are the {n_missing - 1:,} after it"
            notes.findings.append(Finding(name, "", name, None, text))
    if not lanes:
        notes.warn("", "a store of lanes with no lane in it yet")
    known = {path.name for path in lanes}
    for path, text in foreign(store, known, "expected lanes only"):
        notes.find(path, text)


def _find_duplicates(lanes: Sequence[Examination]) -> None:
    """Find lanes with the same name, or copies of each other."""
    for key in ("name", "uuid"):
        seen: dict[str, str] = {}
        for lane in lanes:
            value = lane.documents.metadata.get(key)
            if not isinstance(value, str):
                continue
            if value in seen:
                text = f"{key}: expected one of its own, found {value!r} as in {seen[value]}"
                lane.notes.find("zarr.json", text)
            seen[value] = lane.lane
