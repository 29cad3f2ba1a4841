"""All zarr.json files of one lane, read and checked: what its arrays are.

Invariant: an array whose document is in doubt is not among those that are read further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmreplay.errors import MmreplayError
from mmreplay.format import layout, parse
from mmreplay.format.columns import Column
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.verify import documents
from mmreplay.maintenance.verify.report import Finding, reason
from mmreplay.maintenance.verify.second_look import Watch
from mmreplay.schema import Schema
from mmreplay.system import checked_reads


@dataclass(slots=True)
class Arrays:
    """The arrays of a lane whose metadata can be used.

    Attributes:
        specs: arrays of rows, by path.
        sums: their checksum arrays, by the same paths; of a closed lane also of its priorities.
        starts: ``episodes/starts`` and the number of its entries; None if it cannot be used.
        priorities: those of a prioritized buffer; None if there are none, or if they cannot be
            used.
        complete: whether every array of the schema is in `specs`.
    """

    specs: dict[str, ArraySpec] = field(default_factory=dict)
    sums: dict[str, ArraySpec] = field(default_factory=dict)
    starts: tuple[ArraySpec, int] | None = None
    priorities: ArraySpec | None = None
    complete: bool = False


def array_paths(columns: Mapping[str, Column]) -> list[str]:
    """Every array of a lane or log."""
    paths = [*columns, *(layout.checksum_spec(path).path for path in columns)]
    return [*paths, layout.index_spec().path] if has_index(columns) else paths


def has_index(columns: Mapping[str, Column]) -> bool:
    """Whether a log with these columns, once it is closed, has an index of its episodes."""
    return "resets" in columns


def read_root(watch: Watch, kinds: tuple[str, ...] = ("lane", "vector")) -> bool:
    """A lane's own zarr.json, or a log's, into `watch.metadata`; False if it cannot be used."""
    path = watch.path / "zarr.json"

    def check() -> tuple[list[Finding], bool]:
        watch.metadata, watch.document = None, b""
        try:
            watch.document = data = read(watch, "zarr.json")
            own = parse.parse_root(data, str(path))
            watch.metadata = own
            if own["kind"] not in kinds:
                text = f"expected a {kinds[0]}, found {_KINDS[own['kind']]}"
                return [watch.finding("zarr.json", text)], False
            texts = list(documents.root_problems(data, own, str(path)))
        except FileNotFoundError:
            return [watch.finding("zarr.json", _missing(watch.path))], False
        except (MmreplayError, OSError) as error:
            texts = [reason(error, path), *documents.digest_problems(watch.document)]
            return [watch.finding("zarr.json", text) for text in texts], False
        return [watch.finding("zarr.json", text) for text in texts], True

    return watch.confirm(check)


def read_schema(watch: Watch) -> Schema | None:
    """What the lane's zarr.json says that a row holds."""
    path = str(watch.path / "zarr.json")
    document: Any = (watch.metadata or {}).get("schema")
    try:
        schema = parse.schema_from_json(document, path)
    except MmreplayError as error:
        watch.note([watch.finding("zarr.json", reason(error, path))])
        return None
    texts = documents.schema_problems(schema, document)
    watch.note([watch.finding("zarr.json", text) for text in texts])
    return schema


def read_arrays(watch: Watch, columns: Mapping[str, Column], width: int | None = None) -> Arrays:
    """The zarr.json of every array and group of a log; `width` is that of one of ticks."""
    out = Arrays()
    rows = watch.metadata["rows"] if watch.metadata is not None and watch.closed else None
    wanted = _wanted(columns)
    for path, expected in wanted.items():
        array = _array(watch, expected, rows)
        if array is not None:
            out.specs[path] = array[0]
    out.complete = len(out.specs) == len(wanted)
    odd = layout.odd_lengths(out.specs)
    watch.note([watch.finding(f"{path}/zarr.json", text, path) for path, text in odd])
    for path in wanted:
        spec = out.specs.get(path)
        n_chunks = None if spec is None or rows is None else -(-rows // spec.chunk_rows)
        array = _array(watch, layout.checksum_spec(path), n_chunks)
        if array is not None:
            out.sums[path] = array[0]
    if has_index(columns):
        out.starts = _array(watch, layout.index_spec(), None)
    priorities = layout.priority_spec(1, width)
    if (watch.path / priorities.path).exists():
        array = _array(watch, priorities, rows)
        out.priorities = None if array is None else array[0]
    sums = layout.checksum_spec(priorities.path)
    if (
        watch.closed and (watch.path / sums.path).exists()
    ):  # of an open lane, those of its last close
        if not (watch.path / priorities.path).exists():
            text = "expected this array, as it has checksums; found none"
            watch.note([watch.finding(priorities.path, text, priorities.path)])
        n_chunks = None
        if out.priorities is not None and rows is not None:
            n_chunks = -(-rows // out.priorities.chunk_rows)
        array = _array(watch, sums, n_chunks)
        if array is not None:
            out.sums[priorities.path] = array[0]
    for path in layout.group_paths(array_paths(columns)):
        _check(watch, path, "", documents.group_problems)
    return out


def _array(watch: Watch, expected: ArraySpec, rows: int | None) -> tuple[ArraySpec, int] | None:
    """An array, and how many rows its document says."""
    arrays: list[tuple[ArraySpec, int]] = []

    def problems(data: bytes, path: str) -> list[str]:
        arrays.clear()
        spec, n_rows, texts = documents.array_problems(data, expected, rows, path)
        if spec is not None:
            arrays.append((spec, n_rows))
        return texts

    _check(watch, expected.path, expected.path, problems)
    return arrays[0] if arrays else None


def _check(
    watch: Watch, path: str, array: str, problems: Callable[[bytes, str], list[str]]
) -> None:
    """Run `problems` over the zarr.json of an array or group."""
    file = f"{path}/zarr.json"

    def check() -> tuple[list[Finding], None]:
        watch.documents[path] = None
        try:
            data = read(watch, file)
            texts = problems(data, str(watch.path / file))
            watch.documents[path] = None if texts else data
        except FileNotFoundError:
            texts = [_missing(watch.path / path)]
        except (MmreplayError, OSError) as error:
            texts = [reason(error, watch.path / file)]
        return [watch.finding(file, text, array) for text in texts], None

    watch.confirm(check)


def _missing(folder: Path) -> str:
    """That a zarr.json is missing, or all that was beside it, too."""
    return "missing" if folder.exists() else "missing, with its directory"


def read(watch: Watch, file: str) -> bytes:
    """The bytes of a zarr.json of the lane."""
    checked_reads.check_directories(watch.path, str(Path(file).parent))
    data = checked_reads.read_bytes(watch.path / file, layout.MAX_METADATA_BYTES)
    watch.tally.add(len(data))
    return data


def _wanted(columns: Mapping[str, Column]) -> dict[str, ArraySpec]:
    """Path, row shape and dtype of every array of rows; the chunk lengths are each lane's own."""
    return {
        path: ArraySpec(path, one.row_shape, one.dtype, 1, width=one.width)
        for path, one in columns.items()
    }


_KINDS = {
    "lane": "a lane of one environment",
    "lanes": "a store of lanes",
    "vector": "a lane of many environments",
    "log": "a log of a lane of many environments",
}
