"""Single bits that flip in a closed store: whether `verify` finds each, and what the others harm.

Invariant: a flip counts as harmless only if it lies where this module says that nothing reads, and
everything that the store says is byte for byte what it was; any other that is not found is missed.
"""

import contextlib
import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmreplay.datasets.prioritized_buffer import PrioritizedReplayBuffer
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.format.layout import CONTEXT_ROWS, FINALS, SCALARS
from mmreplay.maintenance.copy_lane import read_rows
from mmreplay.reading.store import Store
from mmreplay.schema import Field
from tests.support.oracle.layout import Layout
from tests.support.oracle.pair import Pair
from tests.support.writers import LaneWriters

_ACTION = Field((), "int64", chunk=16)
_EXTRAS = {"log_prob": Field((2,), "float32", chunk=8)}
_DERIVED = {"v": Field((), "float32", chunk=16), "z": Field((2,), "float16", chunk=8)}
_SETTINGS = frozenset("level clevel typesize blocksize".split())
_SHARE_OF_FILES = 0.5
_BEGINNING = 1024


@dataclass(frozen=True, slots=True)
class Kind:
    """A store to flip bits in."""

    layout: Layout  # of its rows
    steps: int = 90  # in each lane
    # written by a plain writer, a replay buffer or a prioritized one
    buffer: type[ReplayBuffer] | None = None


KINDS = {
    "raw": Kind(Layout(Field((3, 4), "uint8", "raw", 16), _ACTION, _EXTRAS)),
    "lz4": Kind(Layout(Field((6, 8), "uint8", "lz4", 4, 16), _ACTION, {})),
    "zstd": Kind(Layout(Field((6, 8), "uint8", "zstd", 4, 16), _ACTION, _EXTRAS), 75),
    "gzip, float64": Kind(
        Layout(
            Field((5,), "float32", {"name": "gzip", "configuration": {"level": 6}}, 4, 8),
            Field((2,), "float32", chunk=16),
            {},
            "float64",
        )
    ),
    "dict, lanes": Kind(
        Layout(
            {
                "image": Field((4, 5), "uint8", "lz4", 4, 16),
                "speed": Field((2,), "float32", "raw", 16),
                "seen": Field((), "bool", "zstd", 8, 16),
            },
            _ACTION,
            _EXTRAS,
            lanes=3,
        ),
        40,
    ),
    "evicted, lanes": Kind(
        Layout(Field((6, 8), "uint8", "lz4", 4, 16), _ACTION, _EXTRAS, capacity=40, lanes=2), 200
    ),
    "evicted, raw": Kind(Layout(Field((3,), "uint8", "raw", 8), _ACTION, {}, capacity=25), 200),
    "replay buffer": Kind(
        Layout(Field((6, 8), "uint8", "lz4", 4, 16), _ACTION, {}, capacity=30), 150, ReplayBuffer
    ),
    "priorities": Kind(
        Layout(Field((3,), "uint8", "raw", 16), _ACTION, {}, capacity=300),
        120,
        PrioritizedReplayBuffer,
    ),
    "priorities, zstd": Kind(
        Layout(Field((6, 8), "uint8", "zstd", 4, 16), _ACTION, _EXTRAS, capacity=60),
        150,
        PrioritizedReplayBuffer,
    ),
    "derived, lanes": Kind(
        Layout(Field((3,), "uint8", "raw", 16), _ACTION, _EXTRAS, derived=_DERIVED, lanes=2), 60
    ),
    "derived, evicted": Kind(
        Layout(
            Field((6, 8), "uint8", "lz4", 4, 16),
            _ACTION,
            {},
            capacity=60,
            environments=2,
            derived=_DERIVED,
        ),
        150,
        ReplayBuffer,
    ),
    "several, lz4": Kind(
        Layout(Field((6, 8), "uint8", "lz4", 4, 16), _ACTION, _EXTRAS, environments=3)
    ),
    "several, evicted": Kind(
        Layout(Field((3,), "uint8", "raw", 8), _ACTION, {}, capacity=60, environments=3), 210
    ),
    "several, large": Kind(
        Layout(Field((64, 64), "uint8", "raw", 8), _ACTION, {}, environments=2), 45
    ),
    "several, priorities": Kind(
        Layout(Field((3,), "uint8", "zstd", 4, 16), _ACTION, {}, capacity=300, environments=4),
        75,
        PrioritizedReplayBuffer,
    ),
}
"""Every way in which a store may be laid out, small."""


def build(path, kind, seed=0):
    """Record a store of this kind, and close it."""
    with record(path, kind, seed):
        pass


def record(path, kind, seed=0):
    """Record a store of this kind; what writes it is still open."""
    generator = np.random.default_rng(seed)
    metadata = {"id": "Flips-v0", "seed": seed, "scale": 1e-05, "name": "caf\u00e9"}
    layout = kind.layout
    if kind.buffer is not None:
        writer = layout.create_buffer(path, kind.buffer, stack=2, metadata=metadata)
        writers = [writer]
    else:
        writers = layout.create_lanes(path, metadata=metadata)
        writer = writers[0] if layout.lanes is None else LaneWriters(path, writers)
    pair = Pair(writers, layout.model(), generator)
    for _ in range(3):
        pair.play(kind.steps // 3, 0.2, "any" if layout.environments else "at once")
        if isinstance(writer, ReplayBuffer):
            batch = writer.sample(16)
            if isinstance(writer, PrioritizedReplayBuffer):
                writer.update_priorities(batch.id, generator.normal(size=16))
        writer.flush()
    return writer


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit of one file."""

    file: str  # below the store's directory
    byte: int  # its place in the file
    bit: int  # 0 to 7

    @contextlib.contextmanager
    def in_place(self, root):
        """Flip it, and flip it back."""
        self._flip(root)
        try:
            yield
        finally:
            self._flip(root)

    def _flip(self, root):
        descriptor = os.open(root / self.file, os.O_RDWR)
        try:
            old = os.pread(descriptor, 1, self.byte)
            os.pwrite(descriptor, bytes([old[0] ^ 1 << self.bit]), self.byte)
        finally:
            os.close(descriptor)


def random_flips(root, luck, n):
    """Bits of a store: of any byte, and as many of any file, for the small ones matter as much.

    Half of them are near the beginning of their file, where the rows of a large one are.
    """
    sizes = {
        str(path.relative_to(root)): path.stat().st_size
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.stat().st_size
    }
    names, weights = list(sizes), list(sizes.values())
    for _ in range(n):
        by_file = luck.random() < _SHARE_OF_FILES
        name = luck.choice(names) if by_file else luck.choices(names, weights)[0]
        room = sizes[name] if luck.random() < _SHARE_OF_FILES else min(sizes[name], _BEGINNING)
        yield Flip(name, luck.randrange(room), luck.randrange(8))


def place_of(file):
    """What a file of a store holds, in words."""
    parts = [one for one in file.split("/") if not one.startswith("lane-") and one != FINALS]
    if parts[-1] == "zarr.json":
        return "documents"
    return "numbers" if parts[0] in (*SCALARS, "extras", "derived", "id", "first") else parts[0]


def all_flips(root, file):
    """Every bit of a file."""
    for byte in range((root / file).stat().st_size):
        for bit in range(8):
            yield Flip(file, byte, bit)


def is_named(flip, findings):
    """Whether a finding says which file it is; of a checksum, which file does not match it."""
    for one in findings:
        file = flip.file.removeprefix(f"{one.lane}/") if one.lane else flip.file
        array = file.rpartition("/")[0].replace("checksums/", "", 1)
        if one.file == flip.file or (array and one.array == array):
            return True
    return False


def everything(root):
    """All that a store says to whoever reads it: rows, index, priorities, attributes."""
    out: dict[str, Any] = {}
    with Store(_lanes(root)) as store:
        for lane in store.live.readers:
            for log in (lane.rows, lane.finals):
                where = f"{lane.path.name} {log.path.name}"
                out[f"{where} rows"], out[f"{where} base"] = log.head, log.base
                for path, spec in log.specs.items():
                    parts = read_rows(lane, log, spec, log.base, log.head)
                    out[f"{where} {path}"] = b"".join(part.tobytes() for _, part in parts)
        out["ids"], out["episodes"] = store.ids.tobytes(), store.episodes.tobytes()
        batch = store.transitions(store.ids, stack=3, n_step=3)
        for name in ("reward", "discount", "non_terminal"):
            out[name] = getattr(batch, name).tobytes()
        after = batch.next_observation  # from the final ones, where episodes end
        for key, one in after.items() if isinstance(after, dict) else [("frame", after)]:
            out[f"next {key}"] = one.tobytes()
    for file in root.rglob("priorities/c.*"):
        if file.parts[-3] != "checksums":
            out[str(file.relative_to(root))] = file.read_bytes()
    for folder in {root, *_lanes(root)}:
        out[f"{folder.name} attributes"] = json.loads((folder / "zarr.json").read_bytes())
    return out


def _lanes(root):
    return sorted(root.glob("lane-*")) or [root]


def why_harmless(root, flip, sound):
    """Why nobody can tell that a bit flipped; None where somebody could."""
    damaged = (root / flip.file).read_bytes()
    if flip.file.endswith("zarr.json"):
        old, new = json.loads(sound), json.loads(damaged)
        if _same(old, new):
            return "a document that says the same"
        if _same(_without_settings(old), _without_settings(new)):
            return "how hard a compressor is to try, which no reader asks"
    lane, found, path = flip.file.rpartition("checksums/")
    if found and not flip.file.endswith("zarr.json"):
        array, _, name = path.rpartition("/")
        document = json.loads((root / lane / array / "zarr.json").read_bytes())
        rows = document["chunk_grid"]["configuration"]["chunk_shape"][0]
        of_finals = lane.endswith(f"{FINALS}/")
        whole = root / lane.removesuffix(f"{FINALS}/")
        own = json.loads((whole / "zarr.json").read_bytes())["attributes"]["mmreplay"]
        base = own["first_final"] if of_finals else max(own["first"] - CONTEXT_ROWS, 0)
        if int(name[2:]) * 1024 + flip.byte // 4 < base // rows:
            return "the checksum of a file that was evicted"
    return None


def _same(one, other):
    """Equal JSON values; 1, 1.0 and true are three."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _without_settings(document):
    if isinstance(document, dict):
        return {
            key: None if key in _SETTINGS and type(value) is int else _without_settings(value)
            for key, value in document.items()
        }
    if isinstance(document, list):
        return [_without_settings(one) for one in document]
    return document
