"""Whether the files of a store are what docs/format.md says, read with zarr alone and numpy alone.

Invariant: nothing of the package is used here but the names of the columns that a schema declares.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import numpy.typing as npt
import zarr

from tests.support.oracle.checks import check_same
from tests.support.oracle.model import CONTEXT_ROWS

Array = npt.NDArray[Any]
_ABSENT = (1 << 64) - 1
_BASE, _TAIL_START, _COMMITTED, _EPISODES_BEFORE = 2, 3, 4, 12  # words of a state page
_ZARR_KEYS = {
    "group": {"zarr_format", "node_type", "attributes"},
    "array": {
        "zarr_format",
        "node_type",
        "shape",
        "data_type",
        "chunk_grid",
        "chunk_key_encoding",
        "fill_value",
        "codecs",
        "attributes",
        "dimension_names",
    },
}
_CODECS = {"bytes", "transpose", "sharding_indexed", "blosc", "zstd", "gzip", "crc32c"}


def lane_paths(path):
    """The directories of a store's lanes."""
    return sorted(path.glob("lane-*")) or [path]


def document_of(folder):
    """The zarr.json in a directory."""
    return json.loads((folder / "zarr.json").read_bytes())


def attributes_of(folder):
    return document_of(folder)["attributes"]["mmreplay"]


def chunk_files(lane, path):
    """The chunk files of an array by number."""
    return {
        int(file.name.split(".")[1]): file
        for file in (lane / path).iterdir()
        if file.name.startswith("c.") and not file.name.endswith(".tmp")
    }


def chunk_rows(lane, path):
    grid = document_of(lane / path)["chunk_grid"]["configuration"]
    return int(grid["chunk_shape"][0])


# ---------------------------------------------------------------- a closed store, by zarr


def check_plain_zarr(path, *, copied=True):
    """A closed store is plain zarr v3: standard keys and codecs, and no file of any other kind.

    Each lane has a copy of all documents below it in its own, word for word, if it must have one
    (`copied`).
    """
    if copied:
        for lane in lane_paths(path):
            check_copy(lane)
    for folder, _, names in os.walk(path):
        where = Path(folder)
        if "zarr.json" not in names:
            raise AssertionError(f"{where}: no zarr.json")
        document = document_of(where)
        kind = document["node_type"]
        if document.get("attributes", {}).get("mmreplay", {}).get("kind") == "lane":
            document.pop("consolidated_metadata", None)
        if {*document, *_ZARR_KEYS[kind]} != {*_ZARR_KEYS[kind]} or document["zarr_format"] != 3:
            raise AssertionError(f"{where}: keys {sorted(document)} are not those of zarr v3")
        strangers = set(names) - {"zarr.json"}
        if kind == "array":
            shape = document["shape"]
            chunk = document["chunk_grid"]["configuration"]["chunk_shape"]
            count = -(-shape[0] // chunk[0])
            strangers -= {".".join(["c", str(n), *"0" * (len(shape) - 1)]) for n in range(count)}
            if not _codec_names(document["codecs"]) <= _CODECS:
                raise AssertionError(f"{where}: codecs {document['codecs']}")
        if strangers:
            raise AssertionError(f"{where}: {sorted(strangers)} belong to no zarr v3 {kind}")


def check_copy(lane):
    """What a closed lane's zarr.json says of all others is what these say, in zarr's order."""
    files = {one.parent.relative_to(lane).as_posix(): one for one in lane.rglob("zarr.json")}
    del files["."]
    order = sorted(files, key=lambda name: (name.count("/"), name))
    expected = {name: json.loads(files[name].read_bytes()) for name in order}
    copy = document_of(lane).get("consolidated_metadata", {})
    found = copy.get("metadata", {})
    if list(found) != order or found != expected:
        wrong = [name for name in order if found.get(name) != expected[name]]
        raise AssertionError(f"{lane}: expected a copy of {order}, found {list(found)}: {wrong}")
    if (copy["kind"], copy["must_understand"]) != ("inline", False):
        raise AssertionError(f"{lane}: {copy}")


def _codec_names(codecs):
    names = {one["name"] for one in codecs}
    for one in codecs:
        for inner in ("codecs", "index_codecs"):
            names |= _codec_names(one.get("configuration", {}).get(inner, ()))
    return names


def check_closed(path, model):
    """Every array of a closed store, as zarr and as numpy read it, is the model's.

    Below `base` either the rows that share a chunk file with newer ones, or zeros.
    """
    check_plain_zarr(path)
    for folder, lane in zip(lane_paths(path), model.lanes, strict=True):
        _check_closed_lane(folder, lane)
        check_disk(folder, lane)


def _check_closed_lane(folder, model):
    own, expected = attributes_of(folder), model.arrays()
    base = max(own["first"] - CONTEXT_ROWS, 0)
    counts = {
        "format": 1,
        "kind": "lane",
        "environments": model.environments,
        "rows": len(model.rows),
        "finals": len(model.finals),
        "episodes_before": model.began_before(base),
        "closed": True,
    }
    wrong = {name: (own.get(name), one) for name, one in counts.items() if own.get(name) != one}
    if wrong or model.running:
        raise AssertionError(f"{folder}: found and expected: {wrong}; run: {sorted(model.running)}")
    if not model.base <= base <= model.next_base:
        raise AssertionError(f"{folder}: first: found {own['first']}, base {model.next_base}")
    if not own["first_final"] <= model.ended_before(base):
        raise AssertionError(f"{folder}: first_final: {own['first_final']}: later ones are needed")
    group = zarr.open_group(folder, mode="r", zarr_format=3)
    found = dict(group.members(max_depth=None))
    arrays = {name for name, node in found.items() if isinstance(node, zarr.Array)}
    named = {*expected, *map(_checksums, expected)}
    if arrays - {"priorities", "checksums/priorities"} != named:
        raise AssertionError(f"{folder}: expected arrays {sorted(named)}, found {sorted(arrays)}")
    if not model.knows_started:
        expected["episodes/started"] = found["episodes/started"][:]
    for name, wanted in expected.items():
        start = own["first_final"] if name.startswith("finals/") else base
        if name.startswith("episodes/"):
            start = model.began_before(base)
        array: Any = found[name]
        whole, rows = array[:], array.shards[0] if array.shards else array.chunks[0]
        check_same(whole[start:], wanted[start:], f"{folder}/{name} by zarr, from row {start}")
        gone = start // rows * rows
        check_same(whole[:gone], np.zeros_like(wanted[:gone]), f"{folder}/{name}, evicted")
        size = -(-len(wanted) // rows)
        sums: Any = found[_checksums(name)]
        known = {chunk: file.read_bytes() for chunk, file in chunk_files(folder, name).items()}
        right = {chunk: google_crc32c.value(data) or 1 for chunk, data in known.items()}
        if (
            sums.shape != (size,)
            or sums.dtype != np.uint32
            or any(right[n] != sums[n] for n in right)
        ):
            raise AssertionError(f"{folder}: checksums of {name}: {sums[:]}, and not {right}")
        if not array.shards and size - 1 in known:
            beyond = read_rows(folder, name, len(wanted), size * rows)
            check_same(beyond, np.zeros_like(beyond), f"{folder}/{name}, past the last row")
    _check_dimensions(folder, found)


def _checksums(path):
    """Where the checksums of an array are."""
    name = path.removeprefix("finals/")
    return f"checksums/{name}" if name == path else f"finals/checksums/{name}"


def _check_dimensions(folder, nodes):
    """The first axes of all arrays have the same names, and no name is of two lengths."""
    lengths = {}
    for name, node in nodes.items():
        if not isinstance(node, zarr.Array) or "checksums/" in name:
            continue
        dims = node.metadata.dimension_names
        first = ("episode",) if name.startswith(("finals/", "episodes/")) else ("step", "env")
        own = attributes_of(folder)["environments"]
        first = first if len(first) == 1 or own is not None else first[:1]
        if dims is None or dims[: len(first)] != first or len({*dims}) != node.ndim:
            raise AssertionError(f"{folder}/{name}: dimension_names: expected {first}, …: {dims}")
        where = name.partition("/")[0] if first == ("episode",) else ""
        for dim, size in zip(dims, node.shape, strict=True):
            if lengths.setdefault((where, dim), size) != size:
                raise AssertionError(f"{folder}/{name}: {dim} is of two lengths")


# ---------------------------------------------------------------- any store, by numpy


def check_disk(folder, model):
    """The files of a lane, closed or open, hold what the model has; nothing may be going on.

    Of the pending row, the frames that running episodes go on with.
    """
    expected, is_open = model.arrays(), (folder / ".live").exists()
    own = attributes_of(folder)
    rows, finals = len(model.rows), len(model.finals)
    base, final_base = max(own["first"] - CONTEXT_ROWS, 0), own.get("first_final", 0)
    if is_open:
        words, final_words = (_state(folder / sub) for sub in ("", "finals"))
        base, final_base = words[_BASE], final_words[_BASE]
        found = (words[_COMMITTED], final_words[_COMMITTED], words[_EPISODES_BEFORE])
        if found != (rows, finals, model.began_before(base)):
            raise AssertionError(
                f"{folder}: state pages: expected {rows} rows, {finals} finals, "
                f"{model.began_before(base)} episodes before {base}; found {found}"
            )
    if not model.base <= base <= model.next_base:
        raise AssertionError(f"{folder}: base: expected up to {model.next_base}, found {base}")
    if final_base > model.ended_before(base):
        raise AssertionError(f"{folder}/finals: base: {final_base}, but row {base} is kept")
    frames = set(model.schema.frame_paths.values())
    for name, wanted in expected.items():
        is_final = name.startswith("finals/")
        log, path = (folder / "finals", name[7:]) if is_final else (folder, name)
        start, head = (final_base, finals) if is_final else (base, rows)
        if name.startswith("episodes/"):
            start, head = model.began_before(base), len(model.episodes)
            if name == "episodes/started" and not model.knows_started:
                wanted = read_rows(log, path, 0, head)  # noqa: PLW2901 (nobody knows it)
        _check_files(log, path, start, head + (is_open and name in frames), is_open=is_open)
        found_rows = read_rows(log, path, start, head)
        check_same(found_rows, wanted[start:], f"{log}/{path} by numpy, from row {start}")
        if is_open and name in frames and model.running:
            (pending,) = read_rows(log, path, rows, rows + 1).reshape(
                1, model.n, *_row(wanted, model)
            )
            key = next(key for key, one in model.schema.frame_paths.items() if one == name)
            for env, one in model.running.items():
                check_same(pending[env], one.frames[-1][key], f"{log}/{path}: pending, {env}")


def _row(column, model):
    return column.shape[1 if model.environments is None else 2 :]


def _state(log):
    page = np.fromfile(log / ".live" / "state", "<u8")
    if page[0].tobytes() != b"MMRSTATE":
        raise AssertionError(f"{log}: no state page: {page[:4]}")
    return [int(word) for word in page[:13]]


def _check_files(log, path, base, head, *, is_open):
    """All chunk files of kept rows are there, and none of older ones."""
    n, there = chunk_rows(log, path), chunk_files(log, path)
    late = [number for number in there if (number + 1) * n <= base]
    needed = set(range(base // n, -(-head // n)))
    if is_open and "sharding_indexed" in _codec_names(document_of(log / path)["codecs"]):
        needed = set(range(base // n, _state(log)[_TAIL_START] // n))
    if path.startswith("derived/"):  # a power cut may take one, which stands for zeros then
        needed = set()
    if late or needed - there.keys():
        raise AssertionError(
            f"{log}/{path}: chunk files {late} lie below {base}, "
            f"{sorted(needed - there.keys())} are missing"
        )
    strangers = [number for number in there if not is_open and number * n >= head]
    if strangers:
        raise AssertionError(f"{log}/{path}: chunk files {strangers} lie past the head, {head}")


def read_rows(log, path, start, stop):
    """Rows of an array from its files, without zarr; those of missing files are zeros."""
    document = document_of(log / path)
    codecs = {one["name"]: one.get("configuration", {}) for one in document["codecs"]}
    shape, dtype = document["shape"][1:], np.dtype(document["data_type"])
    n = document["chunk_grid"]["configuration"]["chunk_shape"][0]
    out = np.zeros((stop - start, *shape), dtype)
    tail = log / ".live" / f"{path.replace('/', '~')}.tail"
    in_tail = _state(log)[_TAIL_START] if tail.exists() else stop
    files = chunk_files(log, path)
    for number in range(start // n, -(-min(stop, in_tail) // n)):
        if number not in files:
            continue
        if "sharding_indexed" in codecs:
            block = _read_shard(files[number], codecs["sharding_indexed"], (n, *shape), dtype)
        elif "transpose" in codecs:
            block = np.fromfile(files[number], dtype).reshape(shape[0], n, *shape[1:])
            block = block.swapaxes(0, 1)
        else:
            block = np.fromfile(files[number], dtype).reshape(n, *shape)
        low, high = max(start, number * n), min(stop, in_tail, (number + 1) * n)
        out[low - start : high - start] = block[low - number * n : high - number * n]
    if tail.exists():
        ring = np.fromfile(tail, dtype).reshape(-1, *shape)
        low = max(start, in_tail)
        out[low - start :] = ring[np.arange(low, stop) % len(ring)]
    return out


def _read_shard(file, configuration, shape, dtype):
    inner, data = configuration["chunk_shape"], file.read_bytes()
    counts = [whole // part for whole, part in zip(shape, inner, strict=True)]
    size = 16 * math.prod(counts)
    table, stored = data[-size - 4 : -4], int.from_bytes(data[-4:], "little")
    if google_crc32c.value(table) != stored:
        raise AssertionError(f"{file}: index: another crc32c")
    decode = _decoder(configuration["codecs"])
    out = np.zeros(shape, dtype)
    for place, (offset, length) in zip(
        np.ndindex(*counts), np.frombuffer(table, "<u8").reshape(-1, 2).tolist(), strict=True
    ):
        if offset == _ABSENT == length:
            continue
        part = data[offset : offset + length]
        if google_crc32c.value(part[:-4]) != int.from_bytes(part[-4:], "little"):
            raise AssertionError(f"{file}: inner chunk {place}: another crc32c")
        values = np.frombuffer(bytes(decode(part[:-4])), dtype).reshape(inner)
        out[tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, inner, strict=True))] = values
    return out


def _decoder(codecs):
    names = [one["name"] for one in codecs]
    if "blosc" in names:
        return numcodecs.Blosc().decode
    return (numcodecs.Zstd() if "zstd" in names else numcodecs.GZip()).decode
