"""The lanes of a store as one: columns over all of them, and their index.

Invariant: `index` and the columns show the same heads, and change only in `follow`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from mmreplay.episode_index import EPISODE_DTYPE, Index, Sources
from mmreplay.episode_index.steps import Steps as IndexedSteps
from mmreplay.errors import CorruptStoreError, InvalidIdError, SchemaError
from mmreplay.format.layout import episode_path
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading.episode_columns import (
    EpisodeColumn,
    LaneEpisodes,
    joined_fields,
    with_columns,
)
from mmreplay.reading.frame_chunks import FrameChunks
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError, LaneFiles
from mmreplay.storage.lane_metadata import Given
from mmreplay.storage.raw_column import RawColumn, Remaps
from mmreplay.storage.shard_column import ShardColumn
from mmreplay.system.held_directories import AnyPath

_LOG = logging.getLogger("mmreplay")
AnyColumn = RawColumn | ShardColumn | EpisodeColumn
Flags = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Contents:
    """What is in the lanes, all of one moment.

    Attributes:
        episodes: the whole retained ones, see `EPISODE_DTYPE`.
        n_odd_rewards: how many rewards that can be sampled are NaN or infinite.
        windows: (base, first, head) of each lane, in rows.
        n_transitions, n_finals: of each lane.
    """

    episodes: npt.NDArray[np.void]
    n_odd_rewards: int
    windows: list[tuple[int, int, int]]
    n_transitions: list[int]
    n_finals: list[int]


class JoinedLanes:
    """The lanes of a store as they were opened; a new one replaces it when one is opened again.

    In `columns` the entries of lane k are part k; those of frames have further parts for the final
    observations of each lane, in the same order. `fields` are those of episodes, of any lane.
    """

    def __init__(
        self,
        paths: Sequence[AnyPath],
        extras: Collection[str] | None = None,
        given: Given = None,
    ) -> None:
        """Raise EvictedError if a lane changed at this moment, SchemaError if they do not fit.

        `extras` are the names of the extra columns to read; None for all.
        """
        _check_distinct(paths)
        readers = self.readers = [
            LaneReader(path, number, given, extras=extras) for number, path in enumerate(paths)
        ]
        schema = readers[0].schema
        for reader in readers[1:]:
            if not reader.schema.same_data(schema):
                raise SchemaError(
                    f"{reader.path}: expected rows as in {paths[0]}, found "
                    f"{schema.differences(reader.schema)}; load them apart, or, if only extra "
                    f"columns differ, load those that both have (columns=[...])"
                )
        self.uuids: tuple[str, ...] = tuple(reader.metadata["uuid"] for reader in readers)
        remaps = self.remaps = Remaps()
        self._is_growing = False  # also after an interrupt in the middle: it is opened again then
        self.columns: dict[str, AnyColumn] = {}
        frames = [*schema.frame_paths.values()]
        finals = [reader.finals for reader in readers]
        for path in readers[0].document.rows:
            parts: list[LaneFiles] = [reader.entries for reader in readers]
            if path in frames:
                parts = [*(reader.frames for reader in readers), *finals]
            self.columns[path] = self._column(path, parts)
        self._finals = RawColumn(finals, "id", remaps), RawColumn(finals, "first", remaps)
        self.fields = joined_fields((reader.path, reader.schema.episode) for reader in readers)
        steps, resets = (cast("RawColumn", self.columns[path]) for path in ("step", "resets"))
        lanes = [LaneEpisodes(reader, resets) for reader in readers]
        self._of_episodes = {
            name: EpisodeColumn(episode_path(name), field, lanes, steps)
            for name, field in self.fields.items()
        }
        self.columns |= {episode_path(name): one for name, one in self._of_episodes.items()}
        self.frame_chunks = FrameChunks(readers, frames)
        self._known = [reader.extent for reader in readers]
        # Closed ones stay as they are.
        self.followed = [reader for reader in readers if not reader.is_closed]
        self.index = self._load_index()
        # Of closed lanes, once asked for.
        self._episodes: dict[int, tuple[npt.NDArray[np.void], int]] = {}
        self._around: tuple[int, IndexedSteps] | None = None

    def around(self, step: int) -> IndexedSteps:
        """The step with this id, with all of its episode; of closed lanes the newest is kept."""
        if self._around is None or self.followed or self._around[0] != step:
            self._around = step, self.index.span(np.array([step])).steps
        return self._around[1]

    def _load_index(self) -> Index:
        step, ends, resets = (
            cast("RawColumn", self.columns[path]) for path in ("step", "ends", "resets")
        )
        lost = functools.partial(_lost, self.readers, self._known)  # a method would keep maps open
        sources = Sources(step, ends, resets, *self._finals, lost)
        index = Index(sources, [reader.n for reader in self.readers])
        for reader, (base, head, first, stop) in zip(self.readers, self._known, strict=True):
            capacity, live, closed = reader.metadata["capacity"], reader.is_live, reader.is_closed
            finals = first, stop
            index.load(reader.path, (base, head), finals, capacity, live=live, closed=closed)
        return index

    def _column(self, path: str, lanes: Sequence[LaneFiles]) -> AnyColumn:
        """One over all lanes, which must all be raw, or all compressed."""
        raw = [lane for lane in lanes if lane.specs[path].is_raw]
        compressed = [lane for lane in lanes if not lane.specs[path].is_raw]
        if raw and compressed:
            codec = compressed[0].specs[path].codec_name
            raise SchemaError(
                f"{raw[0].path / path} is raw, {compressed[0].path / path} is compressed "
                f"({codec}); load them apart, or record both with one codec"
            )
        return RawColumn(lanes, path, self.remaps) if raw else ShardColumn(lanes, path)

    def report_exchanges(self, before: JoinedLanes) -> None:
        """Log which store is followed where another has the path of one that was open.

        Raises SchemaError if its columns differ.
        """
        for old, new in zip(before.readers, self.readers, strict=False):  # new lanes come last
            is_same = old.metadata["uuid"] == new.metadata["uuid"]
            if not new.schema.same_data(old.schema):
                if is_same:
                    raise SchemaError(
                        f"{new.path}: a column was dropped, or replaced by one of another kind "
                        f"({old.schema.differences(new.schema)}); open the store again"
                    )
                raise SchemaError(
                    f"{new.path}: another store, with other columns, is now at this path; the one "
                    f"that was open was moved or removed: if it was moved, open it at its new path"
                )
            if not is_same:
                _LOG.warning(
                    "%s: another store is now at this path, as after a repair, or after one was "
                    "moved and another made; this reader continues with it (uuid %s; before %s)",
                    new.path,
                    new.metadata["uuid"],
                    old.metadata["uuid"],
                )
        if gone := before.fields.keys() - self.fields.keys():
            raise SchemaError(
                f"{self.readers[0].path}: another store, without the fields {sorted(gone)} of "
                f"episodes, is now at this path; open it again"
            )

    # ------------------------------------------------------------ following the writers

    def follow(self) -> bool:
        """Take the newest rows; False when a lane's session is over.

        Raises EvictedError if rows came and went unseen.
        """
        if self._is_growing:  # something was raised in the middle of it
            return False
        moved = []
        for reader in self.followed:
            if not reader.poll():
                return False
            # A base moves without the head where a flush evicts: the columns may forget those rows
            # when another lane grows, so that the index must not have them, either.
            extent = reader.extent
            if extent != self._known[reader.number]:
                moved.append((reader.number, extent))
        if moved:
            self._grow(moved)
        return True

    def _grow(self, moved: Sequence[tuple[int, tuple[int, int, int, int]]]) -> None:
        for number, (base, *_) in moved:
            if self._known[number][1] < base:  # so far behind that rows came and went unseen
                raise EvictedError(str(self.readers[number].path))
        for column in (*self.columns.values(), *self._finals):
            column.refresh()
        self._is_growing = True
        for number, extent in moved:
            base, head, first, stop = self._known[number] = extent
            self.index.extend(number, base, head, (first, stop))
        self._is_growing = False

    def is_ahead(self) -> bool:
        """Whether every lane is followed, and no row of it came and went unseen."""
        if self._is_growing:
            return False
        pairs = zip(self.readers, self._known, strict=True)
        return all(reader.poll() and head >= reader.base for reader, (_, head, *_) in pairs)

    def same_session(self) -> bool:
        """Whether every lane is still in the session that was opened; takes no newer rows."""
        for reader in self.followed:  # noqa: SIM110 (all() takes longer, and it is asked each time)
            if not reader.in_session():
                return False
        return True

    def kept_all(self, n_remaps: int, pending: Sequence[tuple[int, int]]) -> bool:
        """Whether what was read, since `remaps` had this count, was there until now."""
        if self.remaps.count != n_remaps or (pending and not self.is_settled(pending)):
            return False
        return self.same_session()

    def is_settled(self, pending: Sequence[tuple[int, int]]) -> bool:
        """Whether pending rows that were read are unchanged, by `Steps.pending`.

        A final observation of their episode comes before a reset writes over them.
        """
        return not any(self.readers[lane].finals.has_moved(known) for lane, known in pending)

    def close(self) -> None:
        """Let go of all maps; a second call does nothing."""
        self.columns = {}
        for name in ("_finals", "_of_episodes"):
            self.__dict__.pop(name, None)
        self.index.close()

    def after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have held the locks."""
        for column in self.columns.values():
            column.after_fork_in_child()

    # ------------------------------------------------------------ rows of one lane

    @property
    def heads(self) -> list[int]:
        """The rows of each lane that are known."""
        return [head for _, head, *_ in self._known]

    def read(self, lane: int, path: str, rows: Ids) -> Array:
        """Rows of one lane by number, all of them kept: (n, *row_shape) as they are stored."""
        reader = self.readers[lane]
        entries = rows + (lane << LANE_SHIFT)
        if reader.environments is not None:
            entries = rows[:, None] * reader.n + np.arange(reader.n) + (lane << LANE_SHIFT)
        return self.columns[path].take(entries)

    def place(self, one: int) -> str:
        """The lane, row and environment of an id, in words."""
        lane, n = one >> LANE_SHIFT, self.readers[one >> LANE_SHIFT].n
        row, environment = divmod(one & ROW_MASK, n)
        where = "" if n == 1 else f", environment {environment}"
        return f"lane {lane}, row {row}{where}"

    def invalid_id(self, path: AnyPath, wrong: int) -> InvalidIdError:
        """The error for an id that is not a transition of the store at `path`."""
        lane = wrong >> LANE_SHIFT
        if not 0 <= lane < len(self.readers):
            return InvalidIdError(
                f"{path}: id {wrong}: there is no lane {lane}, of {len(self.readers)}"
            )
        n = self.readers[lane].n
        _, first, head = (bound // n for bound in self.index.window(lane))
        if (wrong & ROW_MASK) // n < first:
            why = f"was evicted: the oldest row that can be sampled is {first:,}"
        else:
            why = f"is not a transition: rows are {first:,} to {head - 1:,}"
            if n > 1:
                why += ", and an environment that was left out of a row has no step there"
        return InvalidIdError(f"{path}: id {wrong} ({self.place(wrong)}) {why}; see store.ids")

    # ------------------------------------------------------------ episodes

    def contents(self, *, returns: bool = True) -> Contents:
        """What is there; without `returns`, for which all rewards are read, they may be 0."""
        found, windows, flags = [], [], self.columns["non_terminals"]
        for number, reader in enumerate(self.readers):
            table = self._episodes.get(number)
            if table is None:
                table = _episode_table(reader, self.index, flags, returns=returns)
                if returns and reader.is_closed:
                    self._episodes[number] = table
            found.append(table)
            base, first, head = self.index.window(number)
            windows.append((base // reader.n, first // reader.n, head // reader.n))
        return Contents(
            np.concatenate([episodes for episodes, _ in found]),
            sum(n_odd for _, n_odd in found),
            windows,
            [self.index.n_transitions_of(number) for number in range(len(windows))],
            [stop - first for _, _, first, stop in self._known],
        )

    def episodes(self) -> npt.NDArray[np.void]:
        """The episodes of `contents`, with all their fields."""
        table = self.contents().episodes
        columns = {name: one.take(table["id"]) for name, one in self._of_episodes.items()}
        return with_columns(table, columns)

    def stored_fields(self, firsts: Ids) -> dict[str, Any]:
        """The fields of episodes by the ids of their first steps, as `reset` takes them, by name.

        (n, ...) each; texts as n bytes.
        """
        return {name: one.stored(firsts) for name, one in self._of_episodes.items()}

    def endings(self, firsts: Ids) -> tuple[Ids, Flags, Flags]:
        """How episodes of a step or more end: (steps, terminated, truncated), (B,) each."""
        span = self.index.span(firsts)
        lanes, strides = firsts >> LANE_SHIFT, np.array([reader.n for reader in self.readers])
        lasts = firsts + (span.left - 1) * strides[lanes]
        runs = np.array([reader.is_live for reader in self.readers])[lanes]
        runs[span.steps.over] = False
        terminated = self.columns["non_terminals"].take(lasts) == 0
        return span.left, terminated & ~runs, ~terminated & ~runs


def _check_distinct(lanes: Sequence[AnyPath]) -> None:
    """Refuse a lane that is given twice: its rows would be drawn twice as often."""
    seen: dict[tuple[int, int], AnyPath] = {}
    for lane in lanes:
        try:
            about = lane.stat()  # links followed: one lane has many paths
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed a moment ago, as its opening will say
        real = about.st_dev, about.st_ino
        if real in seen:
            raise SchemaError(
                f"{lane}: loaded already as {seen[real]}; name each store once, and not one of "
                f"its lanes beside it"
            )
        seen[real] = lane


def _lost(
    readers: Sequence[LaneReader],
    known: Sequence[tuple[int, int, int, int]],
    lane: int,
    message: str,
) -> Exception:
    """The error for a final observation that should be there; see `Sources`."""
    reader = readers[lane]
    base, _, _, stop = known[lane]
    has_moved = reader.finals.has_moved(stop) if reader.is_live else reader.replaced()
    if has_moved or not reader.poll() or reader.base != base:
        return EvictedError(str(reader.path))
    return CorruptStoreError(f"{reader.path}: {message}; run `mmreplay verify`")


def _episode_table(
    reader: LaneReader, index: Index, flags: AnyColumn, *, returns: bool
) -> tuple[npt.NDArray[np.void], int]:
    """The whole retained episodes of a lane, and how many of its rewards are NaN or infinite.

    `flags` are the store's `non_terminals`. Rewards are read in pieces, without the holes in their
    files; without `returns` they are not read, and returns and that number are 0.
    """
    found = index.episodes(reader.number)
    numbers = np.delete(np.arange(found.start, found.stop), found.cut - found.start)
    over = index.ended(reader.number, numbers)
    others = (found.whole() & (found.steps > 0)).nonzero()[0]
    firsts = np.concatenate((over[0], found.firsts(others)))
    steps = np.concatenate((over[1], found.steps[others]))
    runs = np.zeros(firsts.size, np.bool_)
    runs[numbers.size :] = reader.is_live  # else they ended there
    order = firsts.argsort(kind="stable")
    firsts, steps, runs = firsts[order], steps[order], runs[order]
    out, n_odd = np.zeros(firsts.size, EPISODE_DTYPE), 0
    out["id"], out["length"] = firsts, steps
    if returns:
        out["return"], n_odd = _returns(reader, index, firsts & ROW_MASK, steps)
    is_terminal = flags.take(firsts + (steps - 1) * reader.n) == 0
    out["terminated"], out["truncated"] = is_terminal & ~runs, ~is_terminal & ~runs
    return out, n_odd


def _returns(reader: LaneReader, index: Index, firsts: Ids, steps: Ids) -> tuple[Doubles, int]:
    """The returns of episodes by their first entries, and how many rewards are not finite."""
    n = reader.n
    _, start, stop = (bound // n for bound in index.window(reader.number))
    # By environment, then by time: so their steps follow one another in a piece of all of them.
    begins, envs = np.divmod(firsts, n)
    order = np.lexsort((begins, envs))
    begins, envs = begins[order], envs[order]
    ends = begins + steps[order]
    out, n_odd = np.zeros(firsts.size), 0
    pieces = chunk_files.filled_rows(reader.rows, reader.rows.specs["rewards"], start, stop)
    for row, values in pieces:
        size = len(values)
        n_odd += values.size - int(np.count_nonzero(np.isfinite(values)))
        here = np.flatnonzero((begins < row + size) & (ends > row))
        shift = envs[here] * size - row
        low = np.maximum(begins[here], row) + shift
        high = np.minimum(ends[here], row + size) + shift
        out[order[here]] += _sums(values.reshape(size, n).T.ravel(), low, high)
    return out, n_odd


def _sums(values: Array, begins: Ids, ends: Ids) -> Doubles:
    """Of values [begin, end), one or more, for (m,) of these, which ascend and do not overlap."""
    bounds = np.empty(2 * begins.size, np.int64)
    bounds[::2], bounds[1::2] = begins, ends
    with np.errstate(over="ignore", invalid="ignore"):  # of rewards that are not finite
        rewards = np.empty(values.size + 1)  # an end may be that of the values
        rewards[:-1], rewards[-1] = values, 0.0
        return np.asarray(np.add.reduceat(rewards, bounds)[::2])
