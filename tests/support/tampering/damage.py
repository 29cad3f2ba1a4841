"""Damage to the files of a closed store, and which rows it costs, worked out naively.

Invariant: what `harm` says of the rows follows from the layout of the files alone; nothing of
`mmreplay.integrity` is asked.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmreplay.format.layout import CONTEXT_ROWS

__all__ = ["Damage", "LaneDamage", "lane_directories"]


def lane_directories(root: Path) -> list[Path]:
    """The lanes of a store, or the store."""
    return sorted(root.glob("lane-*")) or [root]


@dataclass
class LaneDamage:
    """A lane of one environment, and what was done to it.

    Attributes:
        path: its directory.
        lost: rows that nobody can vouch for any more.
        layout_lost: whether the only copy of how a compressed array is laid out is gone.
        layout_changed: whether a bit of such a copy has flipped, so that it may be gone.
        done: in words.
    """

    path: Path
    lost: set[int] = field(default_factory=set)
    layout_lost: bool = False
    layout_changed: bool = False
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Read how the lane is laid out, while it is sound."""
        own = _document(self.path)["attributes"]["mmreplay"]
        self.head: int = own["rows"]
        self.base: int = max(own["first"] - CONTEXT_ROWS, 0)
        self._has_copy = "consolidated_metadata" in _document(self.path)
        self.arrays: dict[str, _Array] = {}
        for one in sorted(self.path.rglob("zarr.json")):
            name = str(one.parent.relative_to(self.path))
            if _document(one.parent)["node_type"] == "array":
                self.arrays[name] = _Array(_document(one.parent))
        self._touched: set[str] = set()
        resets = b"".join(
            (self.path / "resets" / f"c.{n}").read_bytes()
            if (self.path / "resets" / f"c.{n}").exists()
            else bytes(self.arrays["resets"].chunk_rows)
            for n in range(-(-self.head // self.arrays["resets"].chunk_rows))
        )
        self.starts: list[int] = [row for row in range(self.base, self.head) if resets[row]]

    # ------------------------------------------------------------ what must be left

    @property
    def stop(self) -> int:
        """The first row that cannot be kept with its id; 0 if too few are left to sample any."""
        stop = min(self.lost, default=self.head)
        return 0 if self.base and stop < self.base + CONTEXT_ROWS else stop

    @property
    def later(self) -> list[tuple[int, int]]:
        """[start, stop) of sound rows after it, cut at damage and where an episode begins."""
        out: list[list[int]] = []
        for row in range(max(self.stop, self.base), self.head):
            if row in self.lost:
                continue
            if out and out[-1][1] == row and row not in self.starts:
                out[-1][1] += 1
            else:
                out.append([row, row + 1])
        return [(start, stop) for start, stop in out if stop - start > 1]

    # ------------------------------------------------------------ doing damage

    def harm(self, luck: random.Random) -> None:
        """Damage a file that was not damaged before, in a way that does not hide another."""
        hows: list[Callable[[random.Random], None]] = [
            *(self._flip, self._flip, self._cut, self._remove, self._zero, self._swap),
            *(self._lose_document, self._lose_sums, self._lose_index, self._add, self._copy),
        ]
        luck.choice(hows)(luck)

    def _rows_of(self, array: str, chunk: int) -> range:
        length = self.arrays[array].chunk_rows
        return range(max(chunk * length, self.base), min((chunk + 1) * length, self.head))

    def _lose(self, array: str, rows: range) -> None:
        self.lost |= set(rows)

    def _choose(self, luck: random.Random) -> tuple[str, int, Path] | None:
        """A chunk file of rows that nothing was done to yet."""
        files = [
            (name, int(file.name.split(".")[1]), file)
            for name, one in self.arrays.items()
            if one.holds_rows(name) and name not in self._touched
            for file in (self.path / name).glob("c.*")
        ]
        if not files:
            return None
        chosen = luck.choice(sorted(files))
        self._touched.add(chosen[0])  # its other files are needed to tell how it is laid out
        return chosen

    def _replace(self, array: str, chunk: int, file: Path, data: bytes) -> None:
        """Write other bytes to a chunk file; what stands past the last row harms none."""
        old, length = file.read_bytes(), len(data)
        file.write_bytes(data)
        one = self.arrays[array]
        n = self.head - chunk * one.chunk_rows
        if one.inner_rows or length != len(old) or one.used(old, n) != one.used(data, n):
            self._lose(array, self._rows_of(array, chunk))

    def _flip(self, luck: random.Random) -> None:
        if (chosen := self._choose(luck)) is None:
            return
        array, chunk, file = chosen
        one, sound = self.arrays[array], file.read_bytes()
        data = bytearray(sound)
        places = {luck.randrange(len(data)) for _ in range(luck.choice([1, 1, 2, 3]))}
        for at in places:
            data[at] ^= 1 << luck.randrange(8)
        if one.inner_rows:
            file.write_bytes(data)
            for at in places:
                rows = one.rows_at(sound, at, chunk)
                self._lose(array, _intersection(self._rows_of(array, chunk), rows))
        else:
            self._replace(array, chunk, file, bytes(data))
        self.done.append(f"flipped bits of bytes {sorted(places)} of {array}/{file.name}")

    def _cut(self, luck: random.Random) -> None:
        if (chosen := self._choose(luck)) is not None:
            array, chunk, file = chosen
            file.write_bytes(file.read_bytes()[: luck.randrange(file.stat().st_size)])
            self._lose(array, self._rows_of(array, chunk))
            self.done.append(f"cut {array}/{file.name}")

    def _remove(self, luck: random.Random) -> None:
        if (chosen := self._choose(luck)) is not None:
            array, chunk, file = chosen
            file.unlink()
            self._lose(array, self._rows_of(array, chunk))
            self.done.append(f"removed {array}/{file.name}")

    def _zero(self, luck: random.Random) -> None:
        if (chosen := self._choose(luck)) is not None:
            array, chunk, file = chosen
            data = file.read_bytes()
            start, stop = sorted(luck.sample(range(len(data) + 1), 2))
            if self.arrays[array].inner_rows or luck.random() < 0.5:
                start, stop = 0, len(data)
            if any(data[start:stop]):
                zeros = bytes(stop - start)
                self._replace(array, chunk, file, data[:start] + zeros + data[stop:])
                self.done.append(f"zeroed bytes {start} to {stop} of {array}/{file.name}")

    def _copy(self, luck: random.Random) -> None:
        """A chunk file stands in the place of another, too."""
        if (chosen := self._choose(luck)) is None:
            return
        array, chunk, file = chosen
        other = luck.choice(sorted((self.path / array).glob("c.*")))
        if (data := other.read_bytes()) != file.read_bytes():
            self._replace(array, chunk, file, data)
            self.done.append(f"copied {array}/{other.name} to {file.name}")

    def _swap(self, luck: random.Random) -> None:
        if (chosen := self._choose(luck)) is None:
            return
        array, chunk, file = chosen
        other = luck.choice(sorted((self.path / array).glob("c.*")))
        one, two = file.read_bytes(), other.read_bytes()
        if one != two:
            self._replace(array, chunk, file, two)
            self._replace(array, int(other.name.split(".")[1]), other, one)
            self.done.append(f"exchanged {array}/{file.name} and {other.name}")

    def _lose_document(self, luck: random.Random) -> None:
        names = [name for name in self.arrays if name not in self._touched]
        name = luck.choice(names)
        file = self.path / name / "zarr.json"
        self._touched.add(name)
        # The zarr.json of a store of many lanes says how they are laid out, too, and so does that of
        # a closed lane; but a document that can still be read counts, whatever has become of it.
        only_copy = not self.path.name.startswith("lane-") and (
            self.arrays[name].inner_rows > 0 or self.arrays[name].n_parts > 1
        )
        if luck.random() < 0.5:
            self.layout_lost |= only_copy and not self._has_copy
            file.unlink()
        else:
            self.layout_changed |= only_copy
            data = bytearray(file.read_bytes())
            data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
            file.write_bytes(data)
        self.done.append(f"damaged {name}/zarr.json")

    def _lose_sums(self, luck: random.Random) -> None:
        """A file of checksums goes: what it was of can only be checked by other rules."""
        names = [
            name
            for name, one in self.arrays.items()
            if one.holds_rows(name) and name not in self._touched
        ]
        if names:
            name = luck.choice(names)
            self._touched |= {name, f"checksums/{name}"}
            (self.path / "checksums" / name / "c.0").unlink()
            self.done.append(f"removed the checksums of {name}")

    def _lose_index(self, luck: random.Random) -> None:
        for file in (self.path / "episodes" / "starts").glob("c.*"):
            file.write_bytes(luck.randbytes(file.stat().st_size))
            self.done.append("overwrote the index")

    def _add(self, luck: random.Random) -> None:
        name = luck.choice(sorted(self.arrays))
        self._touched.add(name)  # it may look like a chunk file, and is none to be damaged
        (self.path / name / luck.choice(["notes.txt", "c.1.1.1.1.1", "more.bin"])).write_text("x")
        self.done.append(f"put a file into {name}")


class Damage:
    """Damage to a closed store of any number of lanes.

    Attributes:
        lanes: by place.
    """

    def __init__(self, root: Path) -> None:
        """Look at the store while it is sound."""
        self.lanes = [LaneDamage(path) for path in lane_directories(root)]

    def harm(self, luck: random.Random, times: int) -> None:
        """Damage so many files."""
        for _ in range(times):
            luck.choice(self.lanes).harm(luck)

    def __str__(self) -> str:
        """What was done."""
        return "; ".join(f"{lane.path.name}: {one}" for lane in self.lanes for one in lane.done)


class _Array:
    """What a zarr.json says."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.chunk_rows: int = document["chunk_grid"]["configuration"]["chunk_shape"][0]
        codec = document["codecs"][0]
        self.inner_rows, self.n_parts = 0, 1
        if codec["name"] == "transpose":
            self.n_parts = document["shape"][1]
        if codec["name"] == "sharding_indexed":
            self.inner_rows = codec["configuration"]["chunk_shape"][0]
        elements = 1
        for size in document["shape"][1:]:
            elements *= size
        kind = document["data_type"]
        self.row_bytes = elements * (1 if kind == "bool" else int(kind.lstrip("uintfloa")) // 8)

    @staticmethod
    def holds_rows(name: str) -> bool:
        """Whether rows depend on it."""
        return not name.startswith(("checksums/", "episodes/", "priorities"))

    def used(self, data: bytes, n_rows: int) -> bytes:
        """The bytes of the first rows of an uncompressed chunk file."""
        part = self.chunk_rows * self.row_bytes // self.n_parts
        used = min(n_rows, self.chunk_rows) * self.row_bytes // self.n_parts
        return b"".join(data[n * part : n * part + used] for n in range(self.n_parts))

    def rows_at(self, data: bytes, byte: int, chunk: int) -> range:
        """The rows of a chunk file that a byte of it tells about."""
        first = chunk * self.chunk_rows
        if not self.inner_rows:
            return range(first, first + self.chunk_rows)
        n_inner = self.chunk_rows // self.inner_rows
        index = struct.unpack(f"<{2 * n_inner}Q", data[-(16 * n_inner + 4) : -4])
        for number in range(n_inner):
            offset, size = index[2 * number : 2 * number + 2]
            if offset <= byte < offset + size:
                start = first + number * self.inner_rows
                return range(start, start + self.inner_rows)
        return range(first, first + self.chunk_rows)


def _intersection(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "zarr.json").read_bytes())
    return found
