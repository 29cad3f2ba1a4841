"""Small stores of every kind, kept in memory, to be spoilt and put right again many times.

Invariant: after `restore` a victim's directory holds the bytes of its store, and nothing else.
"""

import contextlib
import errno
import json
import os
import shutil
import stat
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.schema import Field
from mmreplay.writing.create import create
from tests.support.writers import make_lanes

# Device and inode in a state page, of the file and of its lane, and whether blocks lie past its end.
_IDENTITY, _HOME, _BEYOND = slice(40, 56), slice(72, 88), slice(88, 96)


@dataclass(frozen=True, slots=True)
class Pristine:
    name: str  # of the kind
    files: dict[str, bytes]  # the bytes of each file, by its path in the store
    folders: tuple[str, ...]  # every directory
    closed: bool = True  # whether it was closed
    trusted: bool = True  # whether the state page of a crashed one is to be trusted
    lanes: tuple[str, ...] = ("",)  # paths of the lanes; one, empty, of a store that is a lane

    def document(self, name):
        """The JSON of a zarr.json."""
        return json.loads(self.files[name])

    def arrays(self):
        return [name[:-10] for name in self.documents() if self._is_array(name)]

    def _is_array(self, name):
        return bool(self.document(name)["node_type"] == "array")

    def documents(self):
        return sorted(name for name in self.files if name.rpartition("/")[2] == "zarr.json")


class Victim:
    """A pristine store in a directory, to be changed and put right again."""

    def __init__(self, path, pristine):
        self.path, self.pristine = path, pristine
        self._now = {}
        self._spoilt = set()
        self.rebuild()

    def rebuild(self):
        """Write all of it anew, and remove what stands beside it."""
        shutil.rmtree(self.path.parent, ignore_errors=True)
        self._now, self._spoilt = {}, set()
        self.path.mkdir(parents=True)
        for name in self.pristine.folders:
            (self.path / name).mkdir()
        for name, data in self.pristine.files.items():
            self._write(name, data)

    def restore(self):
        """Put right what was changed through this object."""
        for name in sorted(self._spoilt):
            self.clear(name)
        spoilt, self._now, self._spoilt = self._spoilt, {}, set()
        for name in spoilt:
            below = f"{name}/"
            for folder in self.pristine.folders:
                if folder == name or folder.startswith(below):
                    (self.path / folder).mkdir(parents=True, exist_ok=True)
            for file, data in self.pristine.files.items():
                if file == name or file.startswith(below):
                    self._write(file, data)

    def get(self, name):
        """A file's bytes, as they are now."""
        return self._now.get(name, self.pristine.files.get(name, b""))

    def put(self, name, data):
        """Give a file other bytes."""
        self._spoilt.add(name)
        self._now[name] = data
        self._write(name, data)

    def spoil(self, name):
        """Make room for something else at a path, and return it."""
        if self._is_below_spoilt(name):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
        self._spoilt.add(name)
        self.clear(name)
        return self.path / name

    def clear(self, name):
        """Remove whatever stands at a path."""
        where = self.path / name
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.lstat(where).st_mode):
                shutil.rmtree(where)
            else:
                where.unlink()

    def _is_below_spoilt(self, name):
        return any(name.startswith(f"{one}/") for one in self._spoilt)

    def _write(self, name, data):
        where = self.path / name
        if self._is_below_spoilt(name):
            return  # what is above it may be a link by now
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = os.lstat(where)
            if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
                self.clear(name)
        try:
            with where.open("wb") as file:
                if name.endswith(".live/state") and self.pristine.trusted:
                    data = self._own(name, data, file.fileno())
                file.write(data)
        except (FileNotFoundError, NotADirectoryError):
            pass  # a directory above it was taken away on purpose

    def _own(self, name, data, descriptor):
        """A state page that says which file and directory it is of, unless that was changed, too.

        And that no blocks lie beyond the end of the file, as there are none.
        """
        pristine, out = self.pristine.files[name], bytearray(data)
        about, home = os.fstat(descriptor), (self.path / name).parent.parent.stat()
        for place, page in ((_IDENTITY, about), (_HOME, home)):
            if data[place] == pristine[place]:
                out[place] = struct.pack("<QQ", page.st_dev, page.st_ino)
        if data[_BEYOND] == pristine[_BEYOND]:
            out[_BEYOND] = bytes(8)
        return bytes(out)


def pristine_stores(folder, names=None):
    """Small stores of some kinds, or of every one; the same for every call but for uuids.

    They are made in `folder`, which must not exist, and is gone again then.
    """
    folder.mkdir()
    try:
        return [
            make(folder / name, name)
            for name, make in _MAKERS.items()
            if names is None or name in names
        ]
    finally:
        shutil.rmtree(folder)


@dataclass(slots=True)
class _Made:
    frame: Field | dict[str, Field]
    rows: int = 40
    settings: dict[str, Any] = field(default_factory=dict)
    left_open: bool = False
    trusted: bool = True
    prioritized: bool = False
    envs: int | None = None  # of one lane

    def __call__(self, path, name):
        arguments = {
            "frame": self.frame,
            "action": Field((), "int64", chunk=32),
            "extras": {"note": Field((2,), "float32", chunk=32)},
            "flush_s": 0,
            **self.settings,
            **({} if self.envs is None else {"lanes": self.envs}),
        }
        if self.prioritized:
            writer: Any = PrioritizedReplayBuffer(path, stack=2, **arguments)
        elif "lanes" in self.settings:
            writer = make_lanes(path, n_lanes=arguments.pop("lanes"), **arguments)
        else:
            writer = create(path, **arguments)
        self._play(writer, self.rows)
        if self.prioritized:
            batch = writer.sample(8)
            writer.update_priorities(batch.id, np.arange(8.0))
        if self.left_open:
            writer.flush()
            self._play(writer, 5, first=False)
            out = _taken(path, name, closed=False, trusted=self.trusted)
            writer.close()
            return out
        writer.close()
        return _taken(path, name)

    def _play(self, writer, rows, *, first=True):
        if self.envs is not None:
            _play_ticks(writer, self.frame, self.envs, 0 if first else self.rows, rows)
        else:
            _play(writer, self.frame, self.settings.get("lanes"), rows, reset=first)


def _play(writer, frame, lanes, rows, *, reset=True):
    generator = np.random.default_rng(rows)

    def one(field_):
        shape = field_.shape if lanes is None else (lanes, *field_.shape)
        return generator.integers(0, 3, shape).astype(field_.dtype)

    def frames():
        if isinstance(frame, dict):
            return {key: one(part) for key, part in frame.items()}
        return one(frame)

    def per_lane(value, dtype):
        return np.full(lanes, value, dtype) if lanes else np.dtype(dtype).type(value)

    for row in range(rows):
        if reset and row % 13 == 0:
            writer.reset(frames())
            continue
        is_last, is_odd = row % 13 == 12, row % 2 == 1
        ends = per_lane(is_last and not is_odd, "bool")
        note = np.full((lanes, 2) if lanes else (2,), row, "float32")
        cut = per_lane(is_last and is_odd, "bool")
        writer.step(
            per_lane(row % 4, "int64"), per_lane(row / 2, "float32"), frames(), ends, cut, note=note
        )


def _play_ticks(writer, frame, n, start, n_ticks):
    """Environment e has episodes of 5 + e steps, and is left out of the tick after each."""
    generator = np.random.default_rng(n_ticks)

    def frames():
        if isinstance(frame, dict):
            return {key: one(part) for key, part in frame.items()}
        return one(frame)

    def one(field_):
        return generator.integers(0, 3, (n, *field_.shape)).astype(field_.dtype)

    envs = np.arange(n)
    for tick in range(start, start + n_ticks):
        step = tick % (6 + envs)
        here, ends = step != 5 + envs, step == 4 + envs
        if not step.all():
            writer.reset(frames(), step == 0)
        writer.step(
            tick % 4 * here,
            tick / 2 * here,
            frames(),
            ends & (tick % 2 == 0),
            ends & (tick % 2 == 1),
            mask=here,
            note=np.full((n, 2), tick, "float32"),
        )


def _taken(path, name, *, closed=True, trusted=True):
    found = {}
    folders = []
    for folder, inner, names in os.walk(path):
        below = os.path.relpath(folder, path)
        prefix = "" if below == "." else f"{below}/"
        folders += [f"{prefix}{one}" for one in inner]
        found |= {f"{prefix}{one}": Path(folder, one).read_bytes() for one in names}
    if not trusted:
        for one in [one for one in found if one.endswith(".live/state")]:
            found[one] = found[one][:56] + bytes(16) + found[one][72:]  # of another boot
    lanes = tuple(one for one in sorted(folders) if one.startswith("lane-") and "/" not in one)
    return Pristine(name, found, tuple(sorted(folders)), closed, trusted, lanes or ("",))


_SMALL = Field((3, 4), "uint8", "lz4", 4, 16)
_EVERY = {
    "image": Field((3, 4), "uint8", "lz4", 4, 8),
    "depth": Field(
        (2, 2), "uint16", {"name": "zstd", "configuration": {"level": 3, "checksum": True}}, 2, 8
    ),
    "sound": Field((3,), "int16", {"name": "gzip", "configuration": {"level": 1}}, 8, 8),
    "bits": Field(
        (5,),
        "float32",
        {
            "name": "blosc",
            "configuration": {
                "cname": "zstd",
                "clevel": 3,
                "shuffle": "bitshuffle",
                "typesize": 4,
                "blocksize": 0,
            },
        },
        8,
        8,
    ),
    "joints": Field((7,), "float64", "raw", 8),
}
_LARGER = Field((24, 32), "uint8", "lz4", 8, 16)

_MAKERS = {
    "raw": _Made(Field((3, 4), "uint8", "raw", 8)),
    "lz4, evicting": _Made(_SMALL, 100, {"capacity": 12}),
    "larger lz4": _Made(_LARGER),
    "zstd": _Made(Field((24, 32), "uint8", "zstd", 8, 16)),
    "dict": _Made(_EVERY),
    "lanes": _Made(Field((3, 4), "uint8", "zstd", 2, 8), 20, {"lanes": 2, "capacity": 60}),
    "priorities": _Made(_SMALL, prioritized=True),
    "crashed": _Made(_SMALL, 100, {"capacity": 12}, left_open=True),
    "power cut": _Made(_SMALL, left_open=True, trusted=False),
    "crashed raw lanes": _Made(Field((3, 4), "uint8", "raw", 8), 20, {"lanes": 2}, left_open=True),
    "crashed buffer": _Made(_EVERY, left_open=True, prioritized=True),
    "vector": _Made(Field((3, 4), "uint8", "raw", 8), prioritized=True, envs=3),
    "vector, evicting": _Made(_SMALL, 150, {"capacity": 60}, envs=3),
    "crashed vector": _Made(_SMALL, left_open=True, prioritized=True, envs=3),
    "power cut of a vector": _Made(_SMALL, left_open=True, trusted=False, envs=3),
}


def any_of(random_, choices):
    """One of them; of none, None."""
    every = list(choices)
    return random_.choice(every) if every else None


def chance(random_, probability):
    return random_.random() < probability
