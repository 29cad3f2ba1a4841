"""Changes that somebody could make to a store who wants whoever opens it to come to harm.

Seeded: the same random numbers make the same change of the same store.

Invariant: a `Change` says of itself whether it is damage, which `verify` must see or which must not
matter, or whether it makes another store, checksums and all, which nobody can tell from an honest
one.
"""

import errno
import json
import math
import os
import re
import socket
import stat
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmreplay.format.compression import crc32c
from tests.support.tampering.fixtures import any_of, chance
from tests.support.tampering.payloads import Parts, spoil_index, spoil_payload
from tests.support.tampering.texts import deep, spoil_json, spoil_node

_PAGE = 4096
_CHECKPOINT = struct.Struct("<8s16s16sQQQQQ")
_STATE = struct.Struct("<13Q")


@dataclass(frozen=True, slots=True)
class Change:
    """What was done to a store."""

    text: str  # in words
    # whether the rows may differ although `verify` finds nothing: checksums were made to fit,
    # or the bytes have none
    sealed: bool = False
    links: bool = False  # whether it made a link
    # whether there are gigabytes in holes of files now. Whoever copies them, or gives them
    # blocks to write there, needs the time for it
    giant: bool = False
    wrong: bool = False  # whether `verify` must find it, whatever else may be read of the store


def change(victim, random_):
    """Make one change, or a few."""
    n_changes = random_.choices((1, 2, 4), (8, 3, 1))[0]
    done = []
    while len(done) < n_changes:
        maker = random_.choices(_MAKERS, _WEIGHTS)[0]
        try:
            made = maker(victim, random_)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            continue  # the change before this one has put a link above its place
        if made is not None:
            done.append(made)
    return Change(
        "; ".join(one.text for one in done),
        any(one.sealed for one in done),
        any(one.links for one in done),
        any(one.giant for one in done),
    )


def spoil_document(victim, random_):
    name = any_of(random_, victim.pristine.documents())
    if chance(random_, 0.3):  # the root matters most
        name = random_.choice(["zarr.json", *(f"{one}/zarr.json" for one in _lanes(victim) if one)])
    made = spoil_json(victim.get(name), random_)
    if made is None:
        return None
    victim.put(name, made[0])
    return Change(f"{name}: {made[1]}")


def _lanes(victim):
    return victim.pristine.lanes


def _data_files(victim):
    return [name for name in victim.pristine.files if not name.endswith("zarr.json")]


def spoil_bytes(victim, random_):
    """Flip, cut, lengthen or exchange the bytes of a file; sometimes with a checksum that fits."""
    name = any_of(random_, victim.pristine.files)
    data = victim.get(name)
    place = random_.randrange(len(data) + 1)
    how = random_.randrange(8)
    if how < 3 and data:
        new = bytearray(data)
        for _ in range(random_.choice((1, 1, 2, 8))):
            new[_place(new, random_)] ^= 1 << random_.randrange(8)
        words, out = "bits flipped", bytes(new)
    elif how == 3:
        words, out = "cut", data[:place]
    elif how == 4:
        words, out = "longer", data + random_.randbytes(random_.choice((1, 4, 20, 4096)))
    elif how == 5:
        other = any_of(random_, victim.pristine.files)
        words, out = f"the bytes of {other}", victim.get(other)
    elif how == 6:
        length = random_.choice((1, 8, 64, len(data)))
        fill = random_.choice((b"\0", b"\xff", random_.randbytes(1))) * length
        words, out = "a stretch filled", data[:place] + fill + data[place + length :]
        out = out[: len(data)]
    else:
        words, out = "bytes at random", random_.randbytes(len(data))
    victim.put(name, out)
    sealed = _has_no_checksum(victim, name)
    if chance(random_, 0.3) and seal(victim, name):
        words, sealed = f"{words}, with its checksum", True
    return Change(f"{name}: {words}", sealed)


def _place(data, random_):
    """A place in a file, at its ends and beginnings as a rule, where headers and indices are."""
    ends = (len(data), min(len(data), 40), min(len(data), 120))
    place = random_.randrange(random_.choice(ends))
    return place if chance(random_, 0.6) else len(data) - 1 - place


def _has_no_checksum(victim, name):
    """Whether nothing protects a file: all of a lane that is open but its shards, and priorities.

    A document has no checksum either, but what it says must agree with the others and the files.
    """
    if "priorities/" in name:
        return True
    if name.endswith("zarr.json"):
        return False
    return not victim.pristine.closed


def seal(victim, name):
    """Make the checksum of a chunk file fit; False if it has none."""
    found = re.fullmatch(r"((?:lane-\d+/)?(?:finals/)?)(.+)/c\.(\d+)((?:\.0)*)", name)
    if not found or found[2].startswith("checksums/"):
        return False
    sums = f"{found[1]}checksums/{found[2]}/c.0"
    table = bytearray(victim.get(sums))
    place = 4 * int(found[3])
    if place + 4 > len(table):
        return False
    table[place : place + 4] = (crc32c(victim.get(name)) or 1).to_bytes(4, "little")
    victim.put(sums, bytes(table))
    return True


def spoil_shard(victim, random_):
    """Change an index or a compressed chunk, with all crc32c's made to fit."""
    names = [name for name in _data_files(victim) if re.search(r"frames(/\w+)?/c\.", name)]
    names = [name for name in names if "checksums" not in name and _shards(victim, name)]
    name = any_of(random_, names)
    if name is None:
        return None
    n_chunks, codec = _shards(victim, name) or (1, "")
    try:
        parts = Parts.of(victim.get(name), n_chunks)
    except (ValueError, struct.error):
        return None
    if not parts.chunks:
        return None
    moved = chance(random_, 0.7)
    if moved:
        number = random_.randrange(len(parts.chunks))
        parts.chunks[number], words = spoil_payload(codec, parts.chunks[number], random_)
        words = f"inner chunk {number}: {words}"
    else:
        words = spoil_index(parts.index, len(victim.get(name)), random_)
    digest = chance(random_, 0.9)
    victim.put(name, parts.joined(digest=digest, moved=moved))
    if chance(random_, 0.7):
        seal(victim, name)
    return Change(f"{name}: {words}", sealed=True)


def _shards(victim, name):
    """Inner chunks of a shard, and their codec; None if the array has none."""
    document = victim.pristine.document(f"{name.rpartition('/')[0]}/zarr.json")
    first = document["codecs"][0]
    if first["name"] != "sharding_indexed":
        return None
    own = first["configuration"]
    whole = document["chunk_grid"]["configuration"]["chunk_shape"]
    return math.prod(whole) // math.prod(own["chunk_shape"]), own["codecs"][1]["name"]


def spoil_private(victim, random_):
    """Change state, checkpoint or the JSON in ``.live``, the checkpoint's crc32c made to fit."""
    names = [name for name in victim.pristine.files if "/.live/" in f"/{name}"]
    name = any_of(random_, names)
    if name is None:
        return None
    kind = name.rpartition("/")[2]
    if kind == "state":
        return _spoil_state(victim, name, random_)
    if kind == "checkpoint":
        return _spoil_checkpoint(victim, name, random_)
    if kind in {"generator", "writer"}:
        document = json.loads(victim.pristine.files[name])
        words = spoil_node(document, random_)
        data = json.dumps(document).encode()
        if chance(random_, 0.3):
            data = random_.choice((b"", b"[]", b"null", b"\xff", deep(random_), b"1e999", b'"x"'))
        victim.put(name, data)
        return Change(f"{name}: {words}", sealed=True)
    return None


def _words(old, random_):
    near = (old + 1, old - 1, old + 8, old - 8, old * 2, old // 2, old + 16)
    most = (0, 1, 8, 40, (1 << 40) - 1, 1 << 40, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1, 1 << 30)
    return random_.choice((random_.choice(near), random_.choice(most))) % (1 << 64)


def _spoil_state(victim, name, random_):
    words = list(_STATE.unpack(victim.get(name)[: _STATE.size].ljust(_STATE.size, b"\0")))
    changed = random_.choices((2, 3, 4, 12, 1, 0, 5, 7), (5, 5, 5, 2, 1, 1, 1, 1))[0]
    words[changed] = _words(words[changed], random_)
    if chance(random_, 0.3):
        words[4] = _words(words[4], random_)
    victim.put(name, _STATE.pack(*words).ljust(_PAGE, b"\0"))
    return Change(f"{name}: word {changed} = {words[changed]}, head {words[4]}", sealed=True)


def _spoil_checkpoint(victim, name, random_):
    data = bytearray(victim.get(name).ljust(2 * _PAGE, b"\0"))
    text = []
    for slot in (0, _PAGE) if chance(random_, 0.7) else (0,):
        record = list(_CHECKPOINT.unpack_from(data, slot))
        for _ in range(random_.choice((1, 1, 2, 3))):
            which = random_.choice((3, 4, 4, 5, 5, 6, 6, 7, 2))
            old = record[which]
            record[which] = random_.randbytes(16) if which == 2 else _words(old, random_)
            text.append(f"{which} = {record[which]!r}")
        packed = _CHECKPOINT.pack(*record)
        data[slot : slot + len(packed) + 4] = packed + crc32c(packed).to_bytes(4, "little")
    victim.put(name, bytes(data))
    return Change(f"{name}: {', '.join(text)}", sealed=True)


def spoil_values(victim, random_):
    """Other values in an array, sometimes with a checksum that fits."""
    names = [name for name in _data_files(victim) if "/.live/" not in f"/{name}"]
    names = [name for name in names if re.search(r"/c\.\d+", name)]
    name = any_of(random_, names)
    if name is None:
        return None
    document = victim.pristine.document(f"{name.rpartition('/')[0]}/zarr.json")
    if document["codecs"][0]["name"] != "bytes":
        return None
    dtype = np.dtype(document["data_type"])
    values = np.frombuffer(victim.get(name)[: 64 * dtype.itemsize], np.uint8).copy()
    values = values[: len(values) // dtype.itemsize * dtype.itemsize].view(dtype)
    if not values.size:
        return None
    special: tuple[Any, ...] = (0, 1)
    if dtype.kind == "f":
        special = (math.nan, math.inf, -math.inf, -1.0, 1e300, 5e-324, -0.0)
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        special = (0, 1, 2, info.max, info.min, min(39, info.max), min(40, info.max))
    with np.errstate(all="ignore"):
        for _ in range(random_.choice((1, 1, 3, values.size))):
            place = random_.randrange(min(values.size, random_.choice((4, 40, 64))))
            values[place] = np.array(random_.choice(special)).astype(dtype)
    data = values.tobytes()
    victim.put(name, data + victim.get(name)[len(data) :])
    sealed = _has_no_checksum(victim, name)
    if chance(random_, 0.6) and seal(victim, name):
        sealed = True
    return Change(f"{name}: other values{', sealed' if sealed else ''}", sealed)


def spoil_kind(victim, random_):
    """Put a link, a pipe, a socket, a device or a directory where a file or directory was."""
    name = any_of(random_, [*victim.pristine.files, *victim.pristine.folders])
    kind = random_.choice(KINDS)
    return make_kind(victim, name, kind)


KINDS = (
    "gone", "link out", "link to a directory out", "link in", "dangling link", "link to itself",
    "pipe", "socket", "device", "directory", "file", "hard link", "sparse",
)  # fmt: skip
"""What `make_kind` can put in the place of something."""


def make_kind(  # noqa: PLR0912 (a table: each kind in a line or two)
    victim, name, kind
):
    """Put something of that kind at a path.

    Beside the directory that the store lies in there is one called ``out``, with files and
    directories of the same names as in the store.
    """
    out = victim.path.parent.parent / "out"
    is_folder = name in victim.pristine.folders
    private = "/.live" in f"/{name}" or victim.pristine.closed is False
    where = victim.spoil(name)
    if not where.parent.is_dir():
        return None
    match kind:
        case "link out":
            where.symlink_to(out / name)
        case "link to a directory out":
            where.symlink_to(out / (name if is_folder else name.rpartition("/")[0]))
        case "link in":
            others = victim.pristine.folders if is_folder else tuple(victim.pristine.files)
            where.symlink_to(victim.path / others[len(others) // 2])
        case "dangling link":
            where.symlink_to(out / "nothing")
        case "link to itself":
            where.symlink_to(where)
        case "pipe":
            os.mkfifo(where)
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                _bind(one, where)
        case "device":
            if os.geteuid():
                os.mkfifo(where)
            else:
                os.mknod(where, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # zeros without end
        case "directory":
            where.mkdir()
            (where / "zarr.json").write_bytes(b"{}")
        case "file":
            where.write_bytes(b"x")
        case "hard link":
            os.link(out / name, where) if not is_folder else where.write_bytes(b"")
        case "sparse":
            with where.open("wb") as file:
                file.truncate(1 << 36)
    links = "link" in kind
    sealed = private or kind == "hard link"
    return Change(f"{name}: {kind}", sealed, links)


def _bind(one, where):
    """By way of a short name: an address has room for some hundred bytes."""
    descriptor = os.open(where.parent, os.O_RDONLY)
    try:
        one.bind(f"/proc/self/fd/{descriptor}/{where.name}")
    finally:
        os.close(descriptor)


_STRANGERS = (
    b"c.7", b"c.99999999999999999999", b"c.-1", b"c.00", b"c.0.0.0.0", b"c.\xd9\xa3", b"x.tmp",
    b".live", b"priorities", b"priorities.tmp", b"zarr.json.bak", b".zmetadata", b"lane-00007",
    b"lane-\xd9\xa3", b"lane-99999999999999999999", b".lane-00009.tmp", b"\xff\xfe", b"a\nb",
    b"\x1b[31m", b"..." + b"n" * 200, b"frames.tail", b"extras", b"finals", b"generator",
)  # fmt: skip


def add_stranger(victim, random_):
    """Put something into a directory that does not belong there."""
    folder = random_.choice(["", *victim.pristine.folders])
    stranger = os.fsdecode(random_.choice(_STRANGERS))
    name = f"{folder}/{stranger}" if folder else stranger
    if name in victim.pristine.files or name in victim.pristine.folders:
        return None
    where = victim.spoil(name)
    if not where.parent.is_dir():
        return None
    out = victim.path.parent.parent / "out"
    kind = random_.choice(("file", "directory", "link", "full directory", "pipe"))
    match kind:
        case "file":
            where.write_bytes(victim.get(any_of(random_, victim.pristine.files)))
        case "directory":
            where.mkdir()
        case "link":
            where.symlink_to(out)
        case "pipe":
            os.mkfifo(where)
        case _:
            where.mkdir()
            (where / "zarr.json").write_bytes(victim.get("zarr.json"))
            (where / "c.0").write_bytes(bytes(64))
    return Change(f"{name!r} added, a {kind}", links=kind == "link")


def exchange_files(victim, random_):
    """Give two files each other's bytes."""
    one, other = (any_of(random_, victim.pristine.files) for _ in range(2))
    if chance(random_, 0.6):
        folder = one.rpartition("/")[0]
        other = any_of(
            random_, [x for x in victim.pristine.files if x.rpartition("/")[0] == folder]
        )
    first, second = victim.get(one), victim.get(other)
    victim.put(one, second)
    victim.put(other, first)
    sealed = _has_no_checksum(victim, one) or _has_no_checksum(victim, other)
    return Change(f"{one} and {other} exchanged", sealed)


def change_alike(victim, random_):
    """The same other dtype, row shape or number of rows wherever a document speaks of it."""
    name = any_of(random_, [f"{one}/zarr.json" for one in victim.pristine.arrays()])
    lane = next((one for one in _lanes(victim) if one and name.startswith(f"{one}/")), "")
    root = f"{lane}/zarr.json" if lane else "zarr.json"
    pairs = [(name, "data_type"), (name, "shape")]
    which, key = random_.choice(pairs)
    try:
        document, own = json.loads(victim.get(which)), json.loads(victim.get(root))
        if key == "data_type":
            new = random_.choice(("uint8", "int8", "bool", "float16", "int16", "int64"))
            text = json.dumps(own).replace(f'"{document[key]}"', f'"{new}"')
            document[key] = new
            own = json.loads(text)
        else:
            rows = random_.choice((0, 1, 8, 39, 41, 64, 1 << 20, 1 << 33, (1 << 40) - 1))
            new = rows
            own["attributes"]["mmreplay"]["rows"] = rows
            for one in victim.pristine.arrays():
                if one.startswith(lane) and "checksums" not in one and "finals" not in one:
                    other = json.loads(victim.get(f"{one}/zarr.json"))
                    other["shape"][0] = rows
                    victim.put(f"{one}/zarr.json", json.dumps(other).encode())
            document = json.loads(victim.get(which))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None
    victim.put(which, json.dumps(document).encode())
    victim.put(root, json.dumps(own).encode())
    return Change(f"{which} and {root}: {key} {new!r}", sealed=True)


_MAKERS = (
    spoil_document,
    spoil_bytes,
    spoil_shard,
    spoil_private,
    spoil_values,
    spoil_kind,
    add_stranger,
    exchange_files,
    change_alike,
)
_WEIGHTS = (30, 16, 22, 10, 8, 5, 3, 3, 3)
