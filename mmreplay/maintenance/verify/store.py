"""`verify`: all lanes of a store, and what they have in common."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError, LockedError, StoreNotFoundError
from mmreplay.format import layout, parse, plan
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.verify import directory_names, documents
from mmreplay.maintenance.verify.lane import Examination, examine
from mmreplay.maintenance.verify.report import Finding, Report, Tally, reason
from mmreplay.reading.lane_state import store_state
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, user_paths

DIFFERS = ("schema: expected that of the store", "expected the layout in")
"""How the findings about a lane begin that differs from what its store says of all lanes."""

DUPLICATE = "uuid: expected one of its own"
"""How the finding about a lane begins that has the uuid of another."""

_ATTEMPTS = 3
_SIGNS = ("resets/zarr.json", "rewards/zarr.json", ".live", "lane-00000", "ticks", "starts")


def verify(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> Report:
    """Read a store whole; check every checksum and rule of docs/format.md and docs/semantics.md.

    Works on closed, live and crashed stores, and disturbs no writer: of a live lane it checks the
    rows that were committed when it was opened, as long as they are not evicted. A few
    MiB of a file are in memory at a time.

    Args:
        path: the store's directory.
        progress: called after each file with bytes read and bytes in all, about.

    Raises:
        StoreNotFoundError: nothing there, or something in it that may not be read.
        FormatError: something there that is no store.
        LockedError: a writer opens and closes it all the time.
        SchemaError: what was given is no path.
    """
    store = user_paths.as_path(path)
    for _ in range(_ATTEMPTS):
        checked_reads.check_rights(store)
        directory = _directory(store)
        try:
            report = _verify(store, progress)
        except (FormatError, CorruptStoreError, LockedError):
            if _directory(store) == directory:
                raise
            continue
        if not report.findings or _directory(store) == directory:
            return report
    raise StoreNotFoundError(
        f"{store}: others were put in its place {_ATTEMPTS} times while it was read; try again"
    )


def _directory(store: Path) -> tuple[int, int] | None:
    """Which directory has the path: another one, if a store was moved or exchanged."""
    with contextlib.suppress(OSError, ValueError):  # as no path can be
        about = store.stat()
        return about.st_dev, about.st_ino
    return None


def _verify(store: Path, progress: Callable[[int, int], None] | None) -> Report:
    """One look at all of what is at the path."""
    findings: list[Finding] = []
    warnings: list[Finding] = []
    root: dict[str, Any] | None = None
    try:
        root = read_metadata(store)
    except (FormatError, CorruptStoreError) as error:
        if not any((store / sign).exists() for sign in _SIGNS):
            raise
        lost = isinstance(error.__cause__, FileNotFoundError)
        texts = ["missing" if lost else reason(error, store / "zarr.json", store)]
        with contextlib.suppress(CorruptStoreError, OSError):
            data = checked_reads.read_bytes(store / "zarr.json", layout.MAX_METADATA_BYTES)
            texts += documents.digest_problems(data)
        findings += [Finding("", "", "zarr.json", None, text) for text in texts]
    if root is not None and root["kind"] == "log":
        raise FormatError(
            f"{store}: expected a store or a lane, found a log of a lane of many environments; "
            f"verify that lane, the directory above"
        )
    tally = Tally(store, progress)  # not before: nothing may be able to have that name
    common: Mapping[str, ArraySpec] | None = None
    if root is not None and root["kind"] in ("lane", "vector"):
        lanes = [store]
    else:
        lanes = _lanes(store)
        if root is not None:
            common = _layout(store, root, findings)
        if root is not None or lanes:  # else it was a lane
            _check_group(store, lanes, findings, warnings)
    examinations = [examine(store, path, tally) for path in lanes]
    for lane in examinations:
        findings += lane.watch.findings
        warnings += lane.watch.warnings
        if root is not None and root["kind"] == "lanes":
            findings += _differences(store, root, common, lane)
    findings += _duplicates(examinations)
    tally.finish()
    vectors = [lane for lane in examinations if lane.is_vector]
    not_empty = [lane for lane in examinations if lane.n_rows]
    return Report(
        path=str(store),
        state=store_state(lane.state for lane in examinations),
        lanes=len(examinations),
        rows=sum(lane.n_rows for lane in examinations),
        files=tally.files,
        bytes=tally.bytes,
        environments=sum(lane.environments for lane in examinations),
        ticks=sum(lane.n_rows for lane in vectors),
        vector_lanes=len(vectors),
        from_start=bool(not_empty) and all(lane.from_start for lane in not_empty),
        findings=findings,
        warnings=warnings,
        untrusted=sum(lane.untrusted for lane in examinations),
    )


def _lanes(root: Path) -> list[Path]:
    """The directories of lanes that are no links."""
    lanes = [root / name for name in layout.lane_names(checked_reads.names(root))]
    return [lane for lane in lanes if not lane.is_symlink()]  # each is a finding already


def _layout(
    store: Path, root: Mapping[str, Any], findings: list[Finding]
) -> dict[str, ArraySpec] | None:
    """The arrays that each lane must have; what is wrong with the store's zarr.json is noted."""
    file = store / "zarr.json"

    def note(text: str) -> None:
        findings.append(Finding("", "", "zarr.json", None, text))

    data = checked_reads.read_bytes(file, layout.MAX_METADATA_BYTES)
    for text in documents.root_problems(data, root, str(file)):
        note(text)
    try:
        schema = parse.schema_from_json(root.get("schema"), str(file))
        for text in documents.schema_problems(schema, root["schema"]):
            note(text)
        specs = plan.plan_from_layout(schema, root.get("layout"), str(file))
    except FormatError as error:
        note(reason(error, file))
        return None
    for text in documents.layout_problems(specs, root["layout"]):
        note(text)
    return specs


def _check_group(
    store: Path, lanes: Sequence[Path], findings: list[Finding], warnings: list[Finding]
) -> None:
    """The names in the directory of a store of many lanes."""
    numbers = [int(path.name[5:]) for path in lanes]
    for before, number in itertools.pairwise([-1, *numbers]):
        name, n_missing = layout.lane_name(before + 1), number - before - 1
        if n_missing:
            text = "expected a lane of this number, as there are later ones; it is missing"
            if n_missing > 1:
                text += f", and so are the {n_missing - 1:,} after it"
            findings.append(Finding(name, "", name, None, text))
    if not lanes:
        warnings.append(Finding("", "", "", None, "a store of lanes with no lane in it yet"))
    for path, text, is_litter in directory_names.foreign_in_group(store, lanes):
        (warnings if is_litter else findings).append(Finding("", "", path, None, text))


def _differences(
    store: Path,
    root: Mapping[str, Any],
    common: Mapping[str, ArraySpec] | None,
    lane: Examination,
) -> list[Finding]:
    """Where a lane differs from what its store says of all lanes."""
    own, watch = lane.watch.metadata, lane.watch
    if own is None:
        return []
    out: list[Finding] = []
    if own.get("schema") != root.get("schema"):
        text = f"{DIFFERS[0]}, found {own.get('schema')}"
        out.append(watch.finding("zarr.json", text))
    for path, spec in lane.arrays.specs.items():
        if common is not None and path in common and common[path] != spec:
            text = f"{DIFFERS[1]} {store.name}/zarr.json, {common[path]}, found {spec}"
            out.append(watch.finding(f"{path}/zarr.json", text, path))
    return out


def _duplicates(lanes: Sequence[Examination]) -> list[Finding]:
    """Lanes that have the same name, or are a copy of another."""
    out: list[Finding] = []
    for key in ("name", "uuid"):
        seen: dict[str, str] = {}
        for lane in lanes:
            value = (lane.watch.metadata or {}).get(key)
            if not isinstance(value, str):
                continue
            if value in seen:
                text = f"{key}: expected one of its own, found {value!r} as in {seen[value]}"
                out.append(lane.watch.finding("zarr.json", text))
            seen[value] = lane.watch.lane
    return out
