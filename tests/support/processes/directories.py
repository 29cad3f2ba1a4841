"""A store in a directory that others move and copy, and a reader of whatever is at a path.

Invariant: what must be in a store goes with its directory, not with a path; of a copy of a store
that was not closed, the rows that were durable must be there, and none may be that was not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from mmreplay.batches.batch import Batch
from mmreplay.datasets.load import load
from mmreplay.errors import EmptyBufferError, MmreplayError
from mmreplay.ids import Ids
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import Model
from tests.support.processes.parties import Party

__all__ = ["Directory", "Reader"]


@dataclasses.dataclass(eq=False)
class Directory:
    """A store, wherever it is now.

    Attributes:
        layout: it was made with.
        prioritized: whether its writers are prioritized buffers.
        model: the rows that may be in it.
        durable: of each lane, as many rows were flushed.
        state: ``open``, ``closed``, ``crashed``, or ``copied``: of one that was not closed.
        origin: the same for all copies of one store.
        party: who writes it, while it is open.
        files: what is in it, since that was last changed by who may.
        loose: files that a writer of another directory had mapped when links were made to them.
        loose_with: the directory of that writer.
        is_plain: whether it was not restored over files that its source did not have.
        priorities: ids, and the priorities that these must have.
    """

    layout: Layout
    prioritized: bool
    model: Model
    durable: list[int]
    state: str
    origin: object
    party: Party | None = None
    files: dict[str, bytes | None] = dataclasses.field(default_factory=dict)
    loose: frozenset[str] = frozenset()
    loose_with: Directory | None = None
    is_plain: bool = True
    priorities: tuple[Ids, object] | None = None

    def copied(self) -> Directory:
        """What a copy of it is, made file by file."""
        state = "closed" if self.state == "closed" else "copied"
        model = self.model.copy()
        model.end_session()
        return dataclasses.replace(
            self,
            model=model,
            durable=list(self.durable),
            state=state,
            party=None,
            loose=frozenset(),
            loose_with=None,
            priorities=self.priorities if state == "closed" else None,
        )

    def cut(self, rows: Sequence[int]) -> None:
        """So many rows were found in each lane.

        Raises:
            AssertionError: too few, or too many.
        """
        most = self.model.heads()
        least = self.durable if self.state == "copied" else most
        for low, found, high in zip(least, rows, most, strict=True):
            if not low <= found <= high:
                raise AssertionError(f"{found} rows; expected {low}, that are durable, to {high}")
        if self.state == "copied":
            self.model.cut(rows)

    def finish(self) -> None:
        """It was closed."""
        self.state, self.party, self.is_plain = "closed", None, True
        self.loose, self.loose_with = frozenset(), None
        self.durable = self.model.heads()


class Reader:
    """A dataset of whatever was at a path, and what that has been since.

    Attributes:
        name: of the path.
        followed: what was there, the newest last; None for nothing.
    """

    def __init__(self, path: Path, store: Directory) -> None:
        self.name = path.name
        self.followed: list[Directory | None] = [store]
        self._data = load(path, stack=2)

    def follow(self, store: Directory | None) -> None:
        """This is at the path now."""
        if store is not self.followed[-1]:
            self.followed.append(store)

    def sample(self, size: int) -> bool:
        """Whether it can go on: a batch is of a store that had its path.

        Raises:
            AssertionError: it is of none, or something was wrong though nobody touched the path.
        """
        stores = [one for one in self.followed if one is not None]
        try:
            batch = self._data.sample(size)
        except EmptyBufferError:
            # In a copy, the rows that were not durable are not there.
            if all(one.state != "copied" and one.model.ids().size for one in stores):
                raise
        except MmreplayError as error:
            if len(self.followed) == 1:
                raise AssertionError("nothing has happened to its store") from error
            return False
        else:
            if len(self.followed) == 1:
                _check(batch, stores[0])
            elif not any(_is_of(batch, one) for one in stores):
                raise AssertionError("a batch of no store that had the path")
        return True

    def close(self) -> None:
        """Let go of it."""
        self._data.close()


def _check(batch: Batch, store: Directory) -> None:
    checks.check_batch(batch, store.model.batch(batch.id, stack=2), "sample")


def _is_of(batch: Batch, store: Directory) -> bool:
    try:
        _check(batch, store)
    except (AssertionError, LookupError):
        return False
    return True
