"""`Epochs`: which epoch of a dataset comes next, and the position of its batches.

Invariant: an epoch's order follows from its seed, its number, the arguments and the rows that were
there when it began, so that a position is all that is needed to continue it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np

from mmreplay.arguments import true_or_false, whole_number, whole_number_or_none
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.reading.frame_chunks import FrameChunks
from mmreplay.reading.kept_frames import KeptFrames
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.sampling.epoch import (
    PooledIds,
    Shares,
    block_shuffled_ids,
    ordered_ids,
    shuffled_ids,
)
from mmreplay.sampling.windows import Windows

T = TypeVar("T", bound=Sized)
Choose = Callable[[Index], Ids]
Part = tuple[Choose, KeptFrames | None, list[int]]
"""What gives a batch's ids, with what decoded frames stay, and a seed that is this batch's own."""

_POOL_BYTES = 192 << 20
_LEAST_ROWS, _MOST_ROWS = 1 << 10, 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class EpochArguments:
    """The arguments of `Dataset.batches`; SchemaError for one out of its range."""

    batch_size: int
    epochs: int | None
    shuffle: Any
    shuffle_rows: int | None
    rank: int
    world_size: int
    drop_last: bool
    epoch: int | None

    def __post_init__(self) -> None:
        world_size = whole_number("world_size", self.world_size)
        for name, value in {
            "batch_size": whole_number("batch_size", self.batch_size),
            "epochs": whole_number_or_none("epochs", self.epochs, 0),
            "shuffle_rows": whole_number_or_none("shuffle_rows", self.shuffle_rows),
            "world_size": world_size,
            "rank": whole_number("rank", self.rank, 0, world_size - 1),
            "epoch": whole_number_or_none("epoch", self.epoch, 0),
        }.items():
            object.__setattr__(self, name, value)
        if not (isinstance(self.shuffle, (bool, np.bool_)) or self.shuffle == "full"):
            raise SchemaError(
                f"shuffle: expected True, False or 'full'; found {self.shuffle!r:.80}"
            )
        object.__setattr__(self, "drop_last", true_or_false("drop_last", self.drop_last))


@dataclasses.dataclass(slots=True)
class _Place:
    """Where batches are: `position` ids of this rank's share of an epoch were given.

    `order` is what, besides, decides what comes next; None where no batch was given.
    """

    epoch: int = 0
    position: int = 0
    order: dict[str, Any] | None = None


class Epochs:
    """The epochs of one dataset.

    `unshared_seed` names the kind of seed, if other ranks cannot be given the same; else None.
    `selection` is a number that identifies what is selected; None for everything.
    """

    def __init__(self, seed: int, unshared_seed: str | None, selection: int | None = None) -> None:
        self.seed, self.unshared_seed, self._selection = seed, unshared_seed, selection
        self._next = 0
        self._place = _Place()
        self._loaded: _Place | None = None

    # ------------------------------------------------------------ state

    def state(self) -> dict[str, Any]:
        """Numbers and names that JSON can hold: seed, epoch and position."""
        return {"seed": self.seed, **dataclasses.asdict(self._place)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; raises SchemaError if it is not a valid state."""
        try:
            seed = whole_number("seed", state["seed"], 0)
            place = _Place(
                whole_number("epoch", state["epoch"], 0),
                whole_number("position", state["position"], 0),
            )
            if place.position:
                place.order = _checked_order(state["order"])
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(
                f"state: expected what state_dict() returned, found another: {error!s:.200}"
            ) from error
        self.seed, self.unshared_seed = seed, None
        self._next, self._place = place.epoch, place
        self._loaded = place if place.position else None

    # ------------------------------------------------------------ batches

    def check(self, given: EpochArguments, settings: Settings, windows: Windows | None) -> None:
        """Refuse what ranks cannot share, and what a state that was loaded does not fit."""
        if given.world_size > 1 and given.shuffle and self.unshared_seed is not None:
            raise SchemaError(
                f"seed: expected one that all {given.world_size:,} ranks share, a whole number or "
                f"a sequence of them; found {self.unshared_seed}, with which each rank may "
                f"shuffle in its own way; give every rank the same, such as seed=0"
            )
        loaded = self._loaded
        if loaded is None or given.epoch not in {None, loaded.epoch}:
            return
        for name, value in self._order(given, settings, windows).items():
            known = loaded.order.get(name)  # type: ignore[union-attr]
            if known != value:
                raise SchemaError(
                    f"{name}: expected {known!r}, as when the state was saved that was loaded, "
                    f"found {value!r}; to begin an epoch instead, name it with epoch="
                )

    def read(
        self,
        given: EpochArguments,
        settings: Settings,
        windows: Windows | None,
        live: LiveLanes,
        listed: Choose,
        valid: Callable[[Ids], Choose],
        read_each: Callable[[Iterable[Part]], Iterator[T]],
    ) -> Iterator[T]:
        """The batches of `read_each`, epoch by epoch, which gives one for each part, in order.

        `listed` lists all ids of an epoch, ascending; `valid` gives those of a batch when they are
        read. Batches of no transition are left out.
        """
        loaded, self._loaded = self._loaded, None
        kept: KeptFrames | None = None
        done, size = 0, given.batch_size
        while given.epochs is None or done < given.epochs:
            number = self._next if given.epoch is None else given.epoch + done
            self._next = number + 1
            done += 1
            begin = loaded if loaded is not None and loaded.epoch == number else _Place(number)
            loaded = None
            epoch = self._begin(begin, given, settings, windows, live, listed)
            if given.shuffle != "full" and (kept is None or kept.n_rows < epoch.kept_rows):
                kept = KeptFrames(epoch.kept_rows)
            starts = range(begin.position, epoch.size, size)
            # Some may be read ahead: the place is after the one that is given.
            for start, batch in zip(
                starts,
                read_each(
                    _parts(epoch, starts, live, valid, kept, [self.seed, number, given.rank])
                ),
                strict=True,
            ):
                self._place = _Place(number, min(start + size, epoch.size), epoch.order)
                if len(batch):
                    yield batch
            self._place = _Place(number + 1)

    def _order(
        self, given: EpochArguments, settings: Settings, windows: Windows | None
    ) -> dict[str, Any]:
        """What an order depends on, as JSON has it."""
        shuffle = given.shuffle if given.shuffle == "full" else bool(given.shuffle)
        out = {
            "selection": self._selection,
            "shuffle": shuffle,
            "world_size": given.world_size,
            "windows": None if windows is None else [*dataclasses.astuple(windows)],
        }
        if shuffle is True:  # of blocks, whose length the settings decide on
            out |= {
                "shuffle_rows": given.shuffle_rows,
                "stack": settings.stack,
                "n_step": settings.n_step,
            }
        return out

    def _begin(
        self,
        place: _Place,
        given: EpochArguments,
        settings: Settings,
        windows: Windows | None,
        live: LiveLanes,
        listed: Choose,
    ) -> _Epoch:
        """The order of an epoch that begins now, or of one that goes on."""

        def read(index: Index) -> tuple[Ids, list[list[int]], FrameChunks, tuple[str, ...]]:
            lanes = [[*map(int, index.extent(lane))] for lane in range(index.n_lanes)]
            if place.order is None:
                return listed(index), lanes, live.frame_chunks, live.uuids
            then, uuids = place.order["lanes"], place.order["uuids"]
            live.check_same(
                uuids,
                "of the epoch in which the state was saved that was loaded",
                "begin an epoch instead, with epoch=",
            )
            if windows is not None and lanes != then:
                raise SchemaError(
                    f"{live.path}: an epoch of windows continues only while the store does not "
                    f"change, and rows have come or gone since its state was saved; begin an epoch "
                    f"instead, with epoch="
                )
            return _before(listed(index), then), then, live.frame_chunks, live.uuids[: len(then)]

        # Listed once: another thread may take new rows between two looks at the index.
        ids, lanes, chunks, uuids = live.look(read)
        if place.order is not None and ids.size != place.order["size"]:
            raise SchemaError(
                f"{live.path}: expected the {place.order['size']:,} transitions or windows of the "
                f"epoch in which the state was saved that was loaded, found {ids.size:,} of them: "
                f"others were evicted since; begin an epoch instead, with epoch="
            )
        order = self._order(given, settings, windows)
        order |= {"lanes": lanes, "size": ids.size, "uuids": [*uuids]}
        shares = Shares(self.seed, place.epoch, given.rank, given.world_size)
        blocks = chunks.blocks(*_frames_around(settings, windows))
        pool_rows = given.shuffle_rows or _default_rows(chunks.row_bytes)
        n_rows = sum(stop - start for start, stop in lanes)
        mine: Ids | PooledIds
        if given.shuffle == "full":
            mine = shuffled_ids(ids, shares)
        elif given.shuffle:
            mine = block_shuffled_ids(ids, shares, blocks, pool_rows)
        else:
            mine = ordered_ids(ids, shares)
        size = len(mine)
        if given.drop_last:
            size = ids.size // given.world_size // given.batch_size * given.batch_size
        kept_rows = min(pool_rows + int(blocks.rows.max()), n_rows)
        return _Epoch(mine, size, order, uuids, kept_rows)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    """This rank's share of an epoch.

    Its first `size` ids are given in their order, on which `order` decided; they are of the lanes
    of `uuids`. `kept_rows` are worth keeping decoded.
    """

    ids: Ids | PooledIds
    size: int
    order: dict[str, Any]
    uuids: tuple[str, ...]
    kept_rows: int

    def part(self, start: int, stop: int) -> Ids:
        """Ids [start, stop) of them; each part begins where the one before has ended, or later."""
        stop = min(stop, self.size)
        return (
            self.ids.part(start, stop) if isinstance(self.ids, PooledIds) else self.ids[start:stop]
        )

    def pools_within(self, start: int, stop: int) -> list[Ids]:
        """The ids of the pools that begin there, if they are shuffled in pools."""
        if not isinstance(self.ids, PooledIds):
            return []
        begins = self.ids.begins
        here = begins[begins.searchsorted(start) : begins.searchsorted(stop) + 1].tolist()
        bounds = here if here and here[-1] >= stop else [*here, self.size]
        return [self.ids.part(low, high) for low, high in itertools.pairwise(bounds)]


def _parts(
    epoch: _Epoch,
    starts: range,
    live: LiveLanes,
    valid: Callable[[Ids], Choose],
    kept: KeptFrames | None,
    seed: list[int],
) -> Iterator[Part]:
    def of_same_store(choose: Choose) -> Choose:
        def checked(index: Index) -> Ids:
            live.check_same(
                epoch.uuids, "that this epoch began with", "begin a new epoch, of the store there"
            )
            return choose(index)

        return checked

    for start in starts:
        stop = start + starts.step
        ids = epoch.part(start, stop)
        for pool in epoch.pools_within(start, stop):
            live.request_frames(pool)
        yield of_same_store(valid(ids)), kept, [*seed, start]


def _frames_around(settings: Settings, windows: Windows | None) -> tuple[int, int]:
    """Frames before that of an id's own row, and after it, that a transition or a window shows."""
    behind, ahead = (settings.stack or 1) - 1, settings.n_step
    if windows is None:
        return behind, ahead
    return windows.burn_in + behind, windows.length - 1 + ahead


def _default_rows(row_bytes: int) -> int:
    """The rows of a pool unless the user says otherwise."""
    return min(max(_POOL_BYTES // row_bytes, _LEAST_ROWS), _MOST_ROWS)


def _checked_order(order: Mapping[str, Any]) -> dict[str, Any]:
    """As `_Place` has it, of a state; raises as `Epochs.load` expects."""
    lanes = [[whole_number("lanes", row, 0) for row in (one, two)] for one, two in order["lanes"]]
    uuids = tuple(map(str, order["uuids"]))
    size = whole_number("size", order["size"], 0)
    return {**order, "lanes": lanes, "size": size, "uuids": uuids}


def _before(ids: Ids, lanes: Sequence[Sequence[int]]) -> Ids:
    """The ids within these extents of lanes."""
    stops = np.array([stop for _, stop in lanes], np.int64)
    ids = ids[ids >> LANE_SHIFT < stops.size]
    out: Ids = ids[ids & ROW_MASK < stops[ids >> LANE_SHIFT]]
    return out
