"""Changes of a store that are made every time: whatever is no file, giants, bombs, limits."""

import json
import os
import struct
import uuid
from functools import partial

from mmreplay.format.compression import crc32c
from mmreplay.system.platform import boot_id
from tests.support.tampering.hostile import KINDS, Change, make_kind
from tests.support.tampering.steps import broken_steps

_GIANT_ROWS = 1 << 30
_GIANT_BYTES = 1 << 32
_DEEP = 100_000

_PLACES = {
    "raw": ("zarr.json", "frames", "frames/c.1.0.0", "rewards/zarr.json", "resets/c.0", "extras",
            "finals", "finals/id/c.0", "checksums/resets", "checksums/frames/c.0"),
    "zstd": ("frames/c.0.0.0", "checksums/non_terminals"),
    "crashed buffer": (".live", ".live/state", ".live/checkpoint", ".live/frames~image.tail",
                       ".live/writer", ".live/generator", "priorities", "priorities/c.0"),
    "lanes": ("zarr.json", "lane-00000", "lane-00001/zarr.json"),
    "vector": ("finals/zarr.json", "step", "finals/first/c.0"),
    "crashed vector": ("finals", "finals/.live", "finals/.live/state", ".live/frames.tail"),
}  # fmt: skip


def special_cases(stores):
    """Every one of them, in the same order each time."""
    names = {one.name for one in stores}
    return [case for case in _cases() if case[0] in names]


def _cases():
    for store, places in _PLACES.items():
        for place in places:
            for kind in KINDS:
                yield store, partial(make_kind, name=place, kind=kind)
    for store in ("raw", "zstd", "crashed buffer"):
        yield store, _links_beside
        yield store, _deep
        yield store, _texts
    for store in ("raw", "larger lz4", "zstd", "crashed", "power cut"):
        yield store, partial(_giant, rows=_GIANT_ROWS, files=False)
        yield store, partial(_giant, rows=(1 << 40) - 1, files=False)
        yield store, partial(_giant, rows=_GIANT_ROWS, files=True)
    yield "raw", _giant_finals
    yield "raw", _giant_rows
    for store in ("larger lz4", "zstd"):
        yield store, _giant_inner_chunk
        yield store, _giant_shard
    yield "lanes", _lane_numbers
    yield "priorities", _giant_priorities
    yield from broken_steps()


def _links_beside(victim):
    """Links with the names of litter, which whoever writes next removes."""
    out = victim.path.parent.parent / "out"
    for name in ("priorities.tmp", ".lane-00000.tmp", "x.tmp", ".live/x.tmp", "frames/c.0.tmp"):
        where = victim.spoil(name)
        if where.parent.is_dir():
            where.symlink_to(out)
    return Change("links called *.tmp", links=True)


def _deep(victim):
    text = b'{"zarr_format": 3, "node_type": "group", "attributes": ' + b"[" * _DEEP + b"]" * _DEEP
    victim.put("zarr.json", text + b"}")
    return Change("zarr.json of many brackets")


def _attributes(victim):
    return victim.pristine.document("zarr.json")


def _put(victim, name, document):
    victim.put(name, json.dumps(document).encode())


def _texts(victim):
    """What a terminal would obey, and what is no text at all, wherever there may be a text."""
    document = _attributes(victim)
    own = document["attributes"]["mmreplay"]
    odd = "\x1b[2J\x1b]0;x\x07\ud800\u202e\x00\r"
    own["env"] = {"id": odd, "policy": odd, odd: odd, "runs": [{"policy": odd}]}
    own["versions"] = {odd: odd}
    own["name"] = odd
    if own.get("closed"):
        own["generator"] = odd
    _put(victim, "zarr.json", document)
    return Change("texts that no terminal should see")


def _sparse(victim, name, size, data=b""):
    """A file that seems to have so many bytes, `data` at its beginning."""
    with victim.spoil(name).open("wb") as file:
        file.write(data)
        file.truncate(size)


def _row_arrays(victim):
    arrays = victim.pristine.arrays()
    return [one for one in arrays if one.partition("/")[0] not in {"finals", "checksums"}]


def _giant(victim, *, rows, files):
    """A store of very many rows, in chunk files of up to 4 GiB that take no room."""
    root = _attributes(victim)
    own = root["attributes"]["mmreplay"]
    own["rows"], own["capacity"] = rows, None
    own["first"] = 0
    _put(victim, "zarr.json", root)
    for path in _row_arrays(victim):
        document = victim.pristine.document(f"{path}/zarr.json")
        document["shape"][0] = rows
        grid = document["chunk_grid"]["configuration"]["chunk_shape"]
        if files and document["codecs"][0]["name"] == "bytes":
            width = _width(document)
            grid[0] = _GIANT_BYTES // width
            for chunk in range(-(-rows // grid[0])):
                name = f"{path}/c.{chunk}" + ".0" * (len(grid) - 1)
                first = f"{path}/c.0" + ".0" * (len(grid) - 1)
                data = victim.pristine.files.get(first, b"") if not chunk else b""
                _sparse(victim, name, grid[0] * width, data)
        _put(victim, f"{path}/zarr.json", document)
    if not victim.pristine.closed:
        _checkpoint(victim, own["uuid"], rows)
    words = f"{rows:,} rows, {'sparse files' if files else 'no more files'}"
    return Change(words, sealed=True, giant=files)


def _width(document):
    sizes = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "float32": 4, "int64": 8, "float64": 8}
    out = sizes[document["data_type"]]
    for n in document["shape"][1:]:
        out *= n
    return out


def _checkpoint(victim, store, head):
    about = (b"MMRCKPT1", uuid.UUID(store).bytes, boot_id(), 1 << 20, head, 0, 0, 0)
    record = struct.pack("<8s16s16sQQQQQ", *about)
    slot = (record + crc32c(record).to_bytes(4, "little")).ljust(4096, b"\0")
    victim.put(".live/checkpoint", slot + bytes(4096))


def _giant_finals(victim):
    """As many final observations as rows, all of them in holes."""
    _giant(victim, rows=_GIANT_ROWS, files=True)
    root = json.loads(victim.get("zarr.json"))
    root["attributes"]["mmreplay"]["finals"] = _GIANT_ROWS
    _put(victim, "zarr.json", root)
    for path in ("finals/id", "finals/first", "finals/frames"):
        document = victim.pristine.document(f"{path}/zarr.json")
        document["shape"][0] = _GIANT_ROWS
        grid = document["chunk_grid"]["configuration"]["chunk_shape"]
        grid[0] = _GIANT_ROWS // 4
        _put(victim, f"{path}/zarr.json", document)
        for chunk in range(4):
            name = f"{path}/c.{chunk}" + ".0" * (len(grid) - 1)
            _sparse(victim, name, grid[0] * _width(document))
    return Change("a billion final observations", sealed=True, giant=True)


def _giant_rows(victim):
    """Rows of 1 GiB each."""
    root = _attributes(victim)
    root["attributes"]["mmreplay"]["schema"]["frame"]["shape"] = [1 << 15, 1 << 15]
    _put(victim, "zarr.json", root)
    document = victim.pristine.document("frames/zarr.json")
    document["shape"][1:] = [1 << 15, 1 << 15]
    document["chunk_grid"]["configuration"]["chunk_shape"] = [1, 1 << 15, 1 << 15]
    _put(victim, "frames/zarr.json", document)
    for chunk in range(40):
        _sparse(victim, f"frames/c.{chunk}.0.0", 1 << 30)
    return Change("rows of 1 GiB", sealed=True, giant=True)


def _zstd_frame(size):
    """A frame that decodes to so many equal bytes (RFC 8878)."""
    block = 128 << 10
    counts = [block] * (size // block) + ([size % block] if size % block else [])
    blocks = b"".join(
        (int(place == len(counts) - 1) | 1 << 1 | n << 3).to_bytes(3, "little") + b"\0"
        for place, n in enumerate(counts)
    )
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + blocks


def _giant_inner_chunk(victim):
    """Inner chunks of 3 GiB, which a file of some hundred kilobytes decodes to."""
    document = victim.pristine.document("frames/zarr.json")
    rows = (3 << 30) // _width(document)
    document["chunk_grid"]["configuration"]["chunk_shape"][0] = rows
    sharding = document["codecs"][0]["configuration"]
    sharding["chunk_shape"][0] = rows
    sharding["codecs"][1] = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    _put(victim, "frames/zarr.json", document)
    payload = _zstd_frame(rows * _width(document))
    inner = crc32c(payload).to_bytes(4, "little")
    table = struct.pack("<QQ", 0, len(payload) + 4)
    digest = crc32c(inner).to_bytes(4, "little")
    shard = payload + inner + digest + table + crc32c(table).to_bytes(4, "little")
    victim.put("frames/c.0.0.0", shard)
    sums = bytearray(victim.get("checksums/frames/c.0"))
    sums[:8] = crc32c(shard).to_bytes(4, "little") + bytes(4)
    victim.put("checksums/frames/c.0", bytes(sums))
    return Change("a bomb: inner chunks of 3 GiB", sealed=True)


def _giant_shard(victim):
    """A shard of a terabyte that is one hole, with the index at its end."""
    name = "frames/c.1.0.0"
    data = victim.get(name)
    with victim.spoil(name).open("wb") as file:
        file.write(data[:-36])
        file.seek((1 << 40) - 36)
        file.write(data[-36:])
    return Change("a shard of a terabyte", sealed=True)


def _giant_priorities(victim):
    document = victim.pristine.document("priorities/zarr.json")
    document["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 29]
    _put(victim, "priorities/zarr.json", document)
    _sparse(victim, "priorities/c.0", _GIANT_BYTES, victim.get("priorities/c.0")[:4096])
    return Change("priorities in chunks of 4 GiB", sealed=True)


def _lane_numbers(victim):
    """Lanes with numbers as large as names can have them."""
    for number in ("9" * 5, "9" * 20, "9" * 200, "\u0663"):
        where = victim.spoil(f"lane-{number}")
        where.mkdir()
        (where / "zarr.json").write_bytes(victim.get("lane-00000/zarr.json"))
    os.utime(victim.path)
    return Change("lanes with large numbers")
