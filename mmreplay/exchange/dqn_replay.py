"""DQN Replay: the gzipped arrays of Dopamine's replay buffer, one set of files per checkpoint.

Rows are single frames; each episode is preceded by stack - 1 rows of zeros, which are not steps.
Such rows without a terminal row before them mean that an episode was truncated. The file
``episode_end_indices`` is a pickle and never opened.

Invariant: a file with imported rows is read to its end, where its checksum is.
"""

from __future__ import annotations

import gzip
import itertools
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import cast

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.batches.runs import block_steps
from mmreplay.errors import FormatError
from mmreplay.exchange.columns import NpyColumn, Shape, row_bytes
from mmreplay.exchange.fields import flags, has_values
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import add_other_files, open_file, source_files
from mmreplay.exchange.tables import Block, Incoming, Tables
from mmreplay.exchange.transitions import FinalObservation
from mmreplay.ids import Array

_FILE = re.compile(r"\$store\$_([^/]+)_ckpt\.(\d{1,18})\.gz\Z")
_COUNTS = re.compile(r"add_count_ckpt\.\d+\.gz\Z")
_STEP = ("observation", "action", "reward", "terminal")
_MOST_STACK = 1000  # more than any buffer stacks


@contextmanager
def read(
    source: Path,
    losses: Losses,
    *,
    stack: int = 4,
    final_observation: FinalObservation = "repeat",
) -> Iterator[Incoming]:
    """A directory of checkpoints, one after the other; `stack` as of the buffer."""
    n_padding = whole_number("stack", stack, 1, _MOST_STACK) - 1
    found: dict[int, set[str]] = {}
    for name in source_files(source):
        if match := _FILE.match(name):
            found.setdefault(int(match[2]), set()).add(match[1])
    add_other_files(source, lambda name: _FILE.match(name) or _COUNTS.match(name), losses)
    if not found:
        raise FormatError(f"{source}: expected files as $store$_observation_ckpt.0.gz, found none")
    numbers = sorted(found)
    for number in numbers:
        if missing := set(_STEP) - found[number]:
            raise FormatError(f"{source}: checkpoint {number} has no {min(missing)}")
    shared = set.intersection(*found.values())
    others = set().union(*found.values()) - shared
    losses.add_names("arrays that only some checkpoints have", others)
    n_steps = sum(min(_counts(source, number)) for number in numbers)
    called = {name if name in _STEP else f"extras/{name}": name for name in sorted(shared)}
    columns = {"truncations": Shape((n_steps,), np.dtype(np.bool_))}
    with ExitStack() as opened:
        names = [name for name in called.values() if name in _STEP or losses.takes(name)]
        first = _open(source, numbers[0], names, opened)
        for role, name in called.items():
            if name in first:
                columns[role] = Shape((n_steps, *first[name].shape[1:]), first[name].dtype)
    tables = Tables(columns, source, losses, final_observation, called=called)
    rows = _rows(source, numbers, [called[one] for one in tables.used if one in called])
    blocks = _without_padding(rows, n_padding, losses)
    yield tables.incoming(
        {role: block[called.get(role, role)] for role in tables.used} for block in blocks
    )


def _open(source: Path, number: int, names: list[str], opened: ExitStack) -> dict[str, NpyColumn]:
    out = {}
    for name in names:
        path = source / f"$store$_{name}_ckpt.{number}.gz"
        out[name] = NpyColumn(opened.enter_context(_Unzipped(path)), str(path))
    return out


class _Unzipped(gzip.GzipFile):
    def __init__(self, path: Path) -> None:
        file = open_file(path)
        super().__init__(fileobj=file)
        self.myfileobj = cast("FileIO", file)  # so that it is closed, too

    def read(self, size: int | None = -1) -> bytes:
        """As of any file; raises FormatError."""
        try:
            return super().read(size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FormatError(
                f"{self.name}: damaged, or cut off: {error!s:.300}; get a new copy"
            ) from error


def _counts(source: Path, number: int) -> tuple[int, int]:
    """Rows ever added to the buffer of a checkpoint, including overwritten ones; its capacity."""
    path = source / f"add_count_ckpt.{number}.gz"
    with _Unzipped(path) as file:
        count = NpyColumn(file, str(path))
        if count.shape or count.dtype.kind not in "iu":
            raise FormatError(
                f"{path}: expected a whole number, found an array of {count.shape} {count.dtype}"
            )
        value = int(count.read(0, 1)[0])
        count.finish()
    with ExitStack() as opened:
        return value, _open(source, number, ["reward"], opened)["reward"].shape[0]


def _rows(source: Path, numbers: list[int], names: list[str]) -> Iterator[Block]:
    """The rows of some checkpoints, oldest first; those of one buffer, whose counts grow, once."""
    seen = 0
    for number in numbers:
        count, capacity = _counts(source, number)
        n_kept = min(count, capacity)
        n_known = max(seen - (count - n_kept), 0) if count > seen else 0
        seen = count
        cursor = count % capacity if count > capacity else 0
        oldest = (cursor, min(cursor + n_kept, capacity), True), (0, cursor, False)
        for low, high, to_end in oldest:
            start = min(low + n_known, high)
            n_known -= start - low
            if start < high or to_end:
                yield from _part(source, number, names, start, high, to_end=to_end)


def _part(
    source: Path, number: int, names: list[str], low: int, high: int, *, to_end: bool
) -> Iterator[Block]:
    """Rows [low, high) of a checkpoint; `to_end` reads its files to their end."""
    with ExitStack() as opened:
        columns = _open(source, number, names, opened)
        size = block_steps(row_bytes(columns))
        bounds = [*range(0, low, size), *range(low, high, size), high]
        for start, stop in itertools.pairwise(bounds):
            block = {name: one.read(start, stop) for name, one in columns.items()}
            if start >= low:
                name = f"{source}: checkpoint {number}: terminal"
                yield block | {"terminal": flags(block["terminal"], name)}
        for one in columns.values() if to_end else ():
            one.finish()


def _without_padding(rows: Iterator[Block], n_padding: int, losses: Losses) -> Iterator[Block]:
    """Blocks without padding, with ``truncations``; the last rows of each wait for the next."""
    held: Block | None = None
    for new in itertools.chain(rows, [None]):
        block = held if new is None else new
        if block is None:
            return
        if held is not None and new is not None:
            block = {name: np.concatenate((held[name], part)) for name, part in new.items()}
        terminal, n = block["terminal"], len(block["terminal"])
        zero = ~terminal & _is_zero(block)
        # The row before padding may end an episode, and padding may go on in the next block.
        stop = n if new is None else int(max(np.flatnonzero(~zero), default=0))
        cut, keep = np.zeros(n, np.bool_), np.ones(n, np.bool_)
        edges = np.flatnonzero(np.diff(zero[:stop], prepend=False, append=False)).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True) if n_padding else ():
            if first == 0 or terminal[first - 1]:
                keep[first : min(first + n_padding, last)] = False
            elif last - first == n_padding:
                keep[first:last] = False
                cut[first - 1] = True
                losses.add("ends of truncated episodes: found by the padding after them")
        block["truncations"] = cut
        if keep[:stop].any():
            yield {name: part[:stop][keep[:stop]] for name, part in block.items()}
        held = {name: block[name][stop:] for name in block.keys() - {"truncations"}}


def _is_zero(block: Block) -> Array:
    """(n,) bool: all zeros; frames are the last to be compared."""
    out = ~(has_values(block["reward"]) | has_values(block["action"]))
    numbers = np.flatnonzero(out)
    out[numbers] = ~has_values(block["observation"][numbers])
    return np.asarray(out)
