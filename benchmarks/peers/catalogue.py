"""The libraries that are compared, and what a reader should know of each beside its figures.

Invariant: whatever is said of a figure here is why it is so, not how large it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.peers.peer import Peer, Setup

__all__ = ["ENTRIES", "Entry", "entries", "named"]


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line of each table.

    Attributes:
        name: of the library, and which way to use it.
        package: its distribution.
        kind: ``ours``, ``buffer`` (a replay buffer of others) or ``by hand`` (arrays, files).
        on_disk: its transitions are in files while it is used.
        differs: how its batches differ from those of the others; empty if they do not.
        sampling: why sampling takes as long as it does.
        adding: why adding does.
        keeping: why it takes the memory and files that it takes, and what a kill leaves.
        training: why a turn of a training loop takes as long as it does; where that is not told,
            as in the fields below, it follows from the others.
        opening: why saving, opening and a first batch do.
        limited: why sampling with little memory is as fast as it is.
        vectors: it was measured with vectors.
        appends: it takes single steps.
        extends: it takes steps of many environments at once.
        saves: there is something to be saved.
    """

    name: str
    package: str
    kind: str
    on_disk: bool
    differs: str
    sampling: str
    adding: str
    keeping: str
    training: str = ""
    opening: str = ""
    limited: str = ""
    vectors: bool = True
    appends: bool = True
    extends: bool = True
    saves: bool = True

    def make(self, setup: Setup) -> Peer:
        """Its buffer; imports the library."""
        return _MAKERS[self.name](setup)


def _ours(codec: str, prefetch: int) -> Callable[[Setup], Peer]:
    def make(setup: Setup) -> Peer:
        from benchmarks.peers.ours import Ours

        return Ours(setup, codec, prefetch)

    return make


def _buffer(name: str) -> Callable[[Setup], Peer]:
    def make(setup: Setup) -> Peer:
        from benchmarks.peers import buffers

        peer: Peer = getattr(buffers, name)(setup)
        return peer

    return make


def _torchrl(storage: str) -> Callable[[Setup], Peer]:
    def make(setup: Setup) -> Peer:
        from benchmarks.peers.tensors import TorchRL

        return TorchRL(setup, storage)

    return make


def _flashbax(setup: Setup) -> Peer:
    from benchmarks.peers.tensors import Flashbax

    return Flashbax(setup)


def _arrays(kind: str) -> Callable[[Setup], Peer]:
    def make(setup: Setup) -> Peer:
        from benchmarks.peers.arrays import Arrays

        return Arrays(setup, kind)

    return make


def _minari(setup: Setup) -> Peer:
    from benchmarks.peers.reader import Minari

    return Minari(setup)


AHEAD = 2
"""Batches that are made ahead, in the lines that say so."""
_SAME = ""
_OURS_KEEPING = "frames once, in files that each step is part of: a kill loses the step in flight"
_OURS_OPENING = (
    "a save waits for the disk; opening locks the store, checks its documents, and recovers what "
    "the killed writer had added"
)
_HANDED_OVER = (
    "nobody computes between these batches: threads that read ahead only take the cores and the "
    "interpreter's lock from the thread that they hand them to"
)
_MAKERS: dict[str, Callable[[Setup], Any]] = {
    **{f"mmreplay {codec}": _ours(codec, 0) for codec in ("raw", "lz4", "zstd")},
    **{f"mmreplay {codec}, ahead": _ours(codec, AHEAD) for codec in ("raw", "lz4", "zstd")},
    "stable-baselines3": _buffer("StableBaselines3"),
    "tianshou": _buffer("Tianshou"),
    "cpprb": _buffer("Cpprb"),
    "d3rlpy": _buffer("D3rlpy"),
    "TorchRL, memory": _torchrl("tensor"),
    "TorchRL, memmap": _torchrl("memmap"),
    "flashbax": _flashbax,
    **{
        f"{name}, by hand": _arrays(kind)
        for name, kind in (
            ("numpy.memmap", "memmap"),
            ("preadv", "preadv"),
            ("h5py", "h5py"),
            ("tensorstore", "tensorstore"),
            ("zarr-python", "zarr"),
        )
    },
    "Minari's reader": _minari,
}
_BY_HAND_LOST = "what a kill leaves is up to the code around it, here whole blocks"
_SLICES = "the first three steps of an episode are never drawn: a slice does not reach before it"
_DECODES_FIRST = "the first batch maps files, and checks each chunk that it reads"
_OURS = {  # by codec; `threads` stands in the place of `training` where they read ahead
    "raw": {
        "sampling": "copies five frames a transition from a mapped file; both stacks are views of "
        "them; of vectors, drawing steps and looking them up takes as long as copying",
        "adding": "copies the frame into a mapped file; of 256 environments, half goes into making "
        "files, with their blocks and pages, before rows come",
        "keeping": "mapped pages are the system's to take back",
        "training": "a batch is copied while the consumer waits",
        "threads": "a thread copies a batch while the consumer computes; to hand it over costs as "
        "much as that saves",
        "opening": "the first batch is the first to touch the mapped pages",
        "limited": "asks the kernel for all pages of a batch at once; what is not in memory is "
        "read from the disk for each batch again",
    },
    "lz4": {
        "sampling": "decodes the chunks of 16 frames that a transition's five lie in",
        "adding": "copies the frame into a mapped file; a thread compresses full chunks",
        "keeping": "compressed as soon as a chunk is full",
        "training": "a batch is decoded while the consumer waits",
        "threads": "threads decode while the consumer computes, which shares the cores with them "
        "and with those that compress",
        "opening": _DECODES_FIRST,
        "limited": "all of it stays in memory, compressed: only decoding takes time",
    },
    "zstd": {
        "sampling": "as lz4, with a codec that decodes more slowly",
        "adding": "as lz4",
        "keeping": "compressed as soon as a chunk is full",
        "training": "as lz4, with a codec that decodes more slowly",
        "threads": "as lz4; to decode a batch takes longer than a consumer of 1 ms computes, so "
        "that threads keep ahead of slower ones only",
        "opening": _DECODES_FIRST,
        "limited": "as lz4, with a codec that decodes more slowly",
    },
}


def _of_ours(codec: str, *, ahead: bool) -> Entry:
    why = _OURS[codec]
    return Entry(
        f"mmreplay {codec}{', ahead' * ahead}",
        "mmreplay",
        "ours",
        True,
        _SAME,
        why["sampling"] + "; threads make the next batches meanwhile" * ahead,
        why["adding"],
        f"{_OURS_KEEPING}; {why['keeping']}",
        why["threads" if ahead else "training"],
        f"{_OURS_OPENING}; {why['opening']}",
        _HANDED_OVER if ahead else why["limited"],
        vectors=codec == "raw",
    )


ENTRIES = (
    *(_of_ours(codec, ahead=ahead) for ahead in (False, True) for codec in _OURS),
    Entry(
        "stable-baselines3",
        "stable-baselines3",
        "buffer",
        False,
        "next observations of steps that end an episode are the next one's first, and truncated "
        "ones count as terminal",
        "numpy copies two stored stacks a transition, and torch copies them again",
        "copies two stacks, eight frames",
        "each frame four times in memory, half of what it takes without `optimize_memory_usage`; "
        "what was not saved is lost",
    ),
    Entry(
        "tianshou",
        "tianshou",
        "buffer",
        False,
        "the next observation of a step that ends an episode, and of the newest step, is its own "
        "observation",
        "gathers each of the eight frames apart, walks back by `prev`, and stacks them",
        "builds a `Batch` and writes it field by field; of many environments each apart, in Python",
        "frames once, in memory; what was not saved is lost",
    ),
    Entry(
        "cpprb",
        "cpprb",
        "buffer",
        False,
        "stacks have the frame axis last",
        "compiled; stacks are windows into one array, which numpy copies",
        "compiled, with some Python for each field",
        "frames once, in memory; what was not saved is lost",
    ),
    Entry(
        "d3rlpy",
        "d3rlpy",
        "buffer",
        False,
        "frames are float32, stacks begin with zeros, next observations of terminal steps are "
        "zeros, and the last step before a truncation is not drawn",
        "picks each transition in Python, from a deque, and makes floats of all frames",
        "a Python object and an index for each step",
        "frames once, in memory; what was not saved is lost",
        extends=False,
    ),
    Entry(
        "TorchRL, memory",
        "torchrl",
        "buffer",
        False,
        _SLICES,
        "many small operations on tensors; after a step was added, all are read for their episodes",
        "a TensorDict for each step, which `add` stacks and writes field by field",
        "frames once, in memory; what was not saved is lost",
    ),
    Entry(
        "TorchRL, memmap",
        "torchrl",
        "buffer",
        True,
        _SLICES,
        "as in memory: what it maps is in the page cache",
        "as in memory",
        "frames once, in sparse files; their length is in a dump alone, so what came later is lost",
    ),
    Entry(
        "flashbax",
        "flashbax",
        "buffer",
        False,
        "next observations of steps that end an episode are the next one's first",
        "one compiled function, called through Python, which draws sequences and stacks them",
        "a compiled update; without donating its state it would copy the whole buffer",
        "frames once, in memory that is filled at once; what was not written to a vault is lost",
    ),
    Entry(
        "numpy.memmap, by hand",
        "numpy",
        "by hand",
        True,
        _SAME,
        "one fancy index gathers all frames, with nothing around it",
        "copies the frame, and sets a few fields",
        "frames once, in sparse files; rows are whole only as long as the machine runs",
        opening="maps two files, and believes what they hold",
        limited="one page after the other is read from the disk, while the batch waits",
    ),
    Entry(
        "preadv, by hand",
        "numpy",
        "by hand",
        True,
        _SAME,
        "a system call for each window, in 16 threads, which costs more than to copy it",
        "as numpy.memmap: the same file, written through a map",
        "as numpy.memmap; the map is only written through",
        limited="16 threads wait for the disk at the same time",
        vectors=False,
    ),
    Entry(
        "h5py, by hand",
        "h5py",
        "by hand",
        True,
        _SAME,
        "a call for each window, which decodes a chunk or two through HDF5",
        "every 256 frames a block is compressed, while the loop waits",
        f"compressed by lzf; {_BY_HAND_LOST}",
    ),
    Entry(
        "tensorstore, by hand",
        "tensorstore",
        "by hand",
        True,
        _SAME,
        "reads of all windows at once, decoded by its threads; each opens a file and its index",
        "every 256 frames a block is compressed, while the loop waits",
        f"compressed by zstd; {_BY_HAND_LOST}",
    ),
    Entry(
        "zarr-python, by hand",
        "zarr",
        "by hand",
        True,
        _SAME,
        "a read for each window, planned in Python, chunk by chunk",
        "every 256 frames a block is compressed, while the loop waits",
        f"compressed by zstd; {_BY_HAND_LOST}",
    ),
    Entry(
        "Minari's reader",
        "minari",
        "by hand",
        True,
        _SAME,
        "reads each episode as a whole to take one step from it",
        "takes whole episodes",
        "frames once, not compressed (`jpeg_encoding=False`: JPEG would change them)",
        appends=False,
        extends=False,
        saves=False,
    ),
)


def entries(*, ahead: bool) -> tuple[Entry, ...]:
    """All of them, those of mmreplay that make batches ahead only where it can."""
    return tuple(one for one in ENTRIES if ahead or not one.name.endswith("ahead"))


def named(name: str) -> Entry:
    """The entry of a name."""
    return next(one for one in ENTRIES if one.name == name)
