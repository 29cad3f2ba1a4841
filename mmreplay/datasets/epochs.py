"""`Epochs`: which epoch of a dataset comes next, and the position of its batches.

Invariant: an epoch's order follows from its seed, its number, the arguments and the rows that
existed when it began, so a position is enough to continue it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import numpy as np

from mmreplay.arguments import true_or_false, whole_number, whole_number_or_none
from mmreplay.batches.settings import Settings
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.reading.frame_chunks import FrameChunks, KeptFrames
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.sampling.draws import Windows
from mmreplay.sampling.epoch import PooledIds, Shares, block_shuffled_ids, ordered_ids, shuffled_ids

T = TypeVar("T", bound=Sized)
Choose = Callable[[Index], Ids]
Part = tuple[Choose, KeptFrames | None, list[int]]
"""What returns a batch's ids, what keeps its decoded frames, and a seed for this batch alone."""

_INSTEAD = "begin an epoch instead, with epoch="
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
            "drop_last": true_or_false("drop_last", self.drop_last),
        }.items():
            object.__setattr__(self, name, value)
        if not (isinstance(self.shuffle, (bool, np.bool_)) or self.shuffle == "full"):
            raise SchemaError(
                f"shuffle: expected True, False or 'full'; found {self.shuffle!r:.80}"
            )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Epochs of transitions, or of windows."""

    given: EpochArguments
    settings: Settings
    selection: int | None  # a number that identifies it
    windows: Windows | None  # None for transitions
    frames: tuple[int, int] | None  # of windows of columns: how many are read behind and ahead
    live: LiveLanes
    listed: Choose  # all ids of an epoch, ascending
    valid: Callable[[Ids], Choose]  # those of a batch's ids that can still be read

    def order(self) -> dict[str, Any]:
        """What the order of an epoch depends on, besides seed, number and rows."""
        given, settings = self.given, self.settings
        out = {
            "selection": self.selection,
            "shuffle": given.shuffle if given.shuffle == "full" else bool(given.shuffle),
            "world_size": given.world_size,
            "windows": None if self.windows is None else [*dataclasses.astuple(self.windows)],
        }
        if out["shuffle"] is True:  # in blocks, whose length depends on the settings
            out["shuffle_rows"] = given.shuffle_rows
            out |= {"stack": settings.stack, "n_step": settings.n_step}
            out["frames"] = None if self.frames is None else [*self.frames]
        return out


@dataclasses.dataclass(slots=True)
class _Position:
    """The first `position` ids of this rank's share of an epoch were returned."""

    epoch: int = 0
    position: int = 0
    order: dict[str, Any] | None = None  # determines the others; None if no batch was returned
    done: int = 0  # epochs that its call of `batches` had completed before


class Epochs:
    """The epochs of a dataset; `unshared_seed` is the kind of a seed that ranks cannot share."""

    def __init__(self, seed: int, unshared_seed: str | None) -> None:
        self.seed, self.unshared_seed = seed, unshared_seed
        self._next = 0
        self._at = _Position()
        self._loaded: _Position | None = None

    def state(self) -> dict[str, Any]:
        """Seed, epoch and position, as JSON values."""
        return {"seed": self.seed, **dataclasses.asdict(self._at)}

    def restoring(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """What continues where `state` was taken; SchemaError if it is not a valid state."""
        try:
            seed = whole_number("seed", state["seed"], 0)
            at = _Position(
                whole_number("epoch", state["epoch"], 0),
                whole_number("position", state["position"], 0),
                done=whole_number("done", state["done"], 0),
            )
            if at.position:
                order = state["order"]
                rows = [(first, stop) for first, stop in order["lanes"]]
                at.order = {
                    **order,
                    "lanes": [[whole_number("lanes", row, 0) for row in lane] for lane in rows],
                    "size": whole_number("size", order["size"], 0),
                    "uuids": tuple(map(str, order["uuids"])),
                }
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(
                f"state: expected what state_dict() returned, found another: {error!s:.200}"
            ) from error

        def restore() -> None:
            self.seed, self.unshared_seed, self._next, self._at = seed, None, at.epoch, at
            self._loaded = at if at.position or at.done else None

        return restore

    def check(self, request: Request) -> None:
        """Refuse what ranks cannot share, and what does not fit a loaded state."""
        given, loaded = request.given, self._loaded
        if given.world_size > 1 and given.shuffle and self.unshared_seed is not None:
            raise SchemaError(
                f"seed: expected one that all {given.world_size:,} ranks share, a whole number or "
                f"a sequence of them; found {self.unshared_seed}, with which each rank may "
                f"shuffle differently; give every rank the same, such as seed=0"
            )
        if loaded is None or given.epoch not in {None, loaded.epoch}:
            return
        if given.epoch is None and given.epochs and given.epochs <= loaded.done:
            raise SchemaError(
                f"epochs: expected more than the {loaded.done:,} that the call of the loaded state "
                f"had completed, found {given.epochs:,}; give all that it had, or {_INSTEAD}"
            )
        if loaded.order is None:
            return
        for name, value in request.order().items():
            known = loaded.order.get(name)
            if known != value:
                raise SchemaError(
                    f"{name}: expected {known!r}, as when the loaded state was saved, found "
                    f"{value!r}; to begin an epoch instead, name it with epoch="
                )

    def read(
        self, request: Request, read_each: Callable[[Iterable[Part]], Iterator[T]]
    ) -> Iterator[T]:
        """The batches that have transitions, epoch by epoch; `read_each` returns one per part."""
        given = request.given
        loaded = self._loaded
        kept: KeptFrames | None = None
        first = 0 if loaded is None or given.epoch is not None else loaded.done
        for done in itertools.count(first) if given.epochs is None else range(first, given.epochs):
            number = self._next if given.epoch is None else given.epoch + done
            begin = loaded if loaded is not None and loaded.epoch == number else _Position(number)
            loaded = None
            epoch = self._begin(begin, request)
            if given.shuffle != "full" and (kept is None or kept.n_rows < epoch.kept_rows):
                kept = KeptFrames(epoch.kept_rows)
            starts = range(begin.position, epoch.size, given.batch_size)
            parts = _parts(epoch, starts, request, kept, [self.seed, number, given.rank])
            for start, batch in zip(starts, read_each(parts), strict=True):
                if start == begin.position:  # there is a batch: before, an interrupt repeats it
                    self._next, self._loaded = number + 1, None
                # Not of the batches that were read ahead.
                stop = min(start + given.batch_size, epoch.size)
                self._at = _Position(number, stop, epoch.order, done)
                if len(batch):
                    yield batch
            if not starts:
                self._next, self._loaded = number + 1, None
            is_last = done + 1 == given.epochs
            self._at = _Position(number + 1, done=0 if is_last else done + 1)

    def _begin(self, at: _Position, request: Request) -> _Epoch:
        """An epoch that begins or continues."""
        given, live = request.given, request.live

        def read(index: Index) -> tuple[Ids, list[list[int]], FrameChunks, tuple[str, ...]]:
            lanes = [[*map(int, index.extent(lane))] for lane in range(index.n_lanes)]
            if at.order is None:
                return request.listed(index), lanes, live.frame_chunks, live.uuids
            then, uuids = at.order["lanes"], at.order["uuids"]
            live.check_same(uuids, "of the epoch of the loaded state", _INSTEAD)
            if request.windows is not None and lanes != then:
                raise SchemaError(
                    f"{live.path}: an epoch of windows continues only while the store does not "
                    f"change, and rows were added or evicted since its state was saved; {_INSTEAD}"
                )
            ids = request.listed(index)
            ids = ids[ids >> LANE_SHIFT < len(then)]
            stops = np.array([stop for _, stop in then], np.int64)
            ids = ids[ids & ROW_MASK < stops[ids >> LANE_SHIFT]]
            return ids, then, live.frame_chunks, live.uuids[: len(then)]

        # In one look at the index: another thread may take new rows between two.
        ids, lanes, chunks, uuids = live.look(read)
        if at.order is not None and ids.size != at.order["size"]:
            raise SchemaError(
                f"{live.path}: expected the {at.order['size']:,} transitions or windows of the "
                f"epoch of the loaded state, found {ids.size:,} of them: the others were evicted; "
                f"{_INSTEAD}"
            )
        order = request.order() | {"lanes": lanes, "size": ids.size, "uuids": [*uuids]}
        shares = Shares(self.seed, at.epoch, given.rank, given.world_size)
        # Frames before and after the one of an id's own row that its batch entry shows.
        behind, ahead = (request.settings.stack or 1) - 1, request.settings.n_step
        if request.frames is not None:
            behind, ahead = request.frames
        elif request.windows is not None:
            behind, ahead = behind + request.windows.burn_in, ahead + request.windows.length - 1
        blocks = chunks.blocks(behind, ahead)
        most = min(max(_POOL_BYTES // chunks.row_bytes, _LEAST_ROWS), _MOST_ROWS)
        pool_rows = given.shuffle_rows or most
        if given.shuffle == "full":
            mine = shuffled_ids(ids, shares)
        elif given.shuffle:
            mine = block_shuffled_ids(ids, shares, blocks, pool_rows)
        else:
            mine = ordered_ids(ids, shares)
        size = len(mine)
        if given.drop_last:
            size = ids.size // given.world_size // given.batch_size * given.batch_size
        n_rows = sum(stop - start for start, stop in lanes)
        kept_rows = min(pool_rows + int(blocks.rows.max()), n_rows)
        return _Epoch(mine, size, order, uuids, kept_rows)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    """The first `size` ids of this rank's share of an epoch."""

    ids: PooledIds
    size: int
    order: dict[str, Any]  # determines them
    uuids: tuple[str, ...]  # of the lanes
    kept_rows: int  # decoded ones that are worth keeping


def _parts(
    epoch: _Epoch, starts: range, request: Request, kept: KeptFrames | None, seed: list[int]
) -> Iterator[Part]:
    live = request.live

    def checked(choose: Choose, index: Index) -> Ids:
        live.check_same(
            epoch.uuids, "that this epoch began with", "begin a new epoch, of the store there"
        )
        return choose(index)

    begins = epoch.ids.begins
    for start in starts:
        stop = min(start + starts.step, epoch.size)
        ids = epoch.ids.part(start, stop)
        pools = begins[begins.searchsorted(start) : begins.searchsorted(stop) + 1].tolist()
        if not pools or pools[-1] < stop:
            pools.append(epoch.size)
        for low, high in itertools.pairwise(pools):  # those that begin in this batch
            live.request_frames(epoch.ids.part(low, high))
        yield functools.partial(checked, request.valid(ids)), kept, [*seed, start]
