"""What must be in a store of either kind: lanes of one environment each, or one lane of many.

Invariant: what is asked here of the two models has the same meaning for both; a lane's rows are
the ticks where it is of many environments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from mmreplay.batches.batch import Batch
from mmreplay.ids import Ids
from mmreplay.reading.store import Store
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import LANE_SHIFT, Model
from tests.support.oracle.vectors import VectorModel

__all__ = ["AnyModel", "batch", "check", "cut", "end_session", "heads", "model_of"]

AnyModel = Model | VectorModel


def model_of(layout: Layout) -> AnyModel:
    """A model of the empty store."""
    if layout.width is None:
        return layout.model()
    return VectorModel(layout.schema, layout.width, layout.capacity)


def heads(model: AnyModel) -> list[int]:
    """The rows of each lane."""
    if isinstance(model, VectorModel):
        return [len(model.ticks)]
    return [len(lane.rows) for lane in model.lanes]


def cut(model: AnyModel, rows: Sequence[int]) -> None:
    """Of each lane only so many rows are left."""
    for lane, head in zip(
        [model] if isinstance(model, VectorModel) else model.lanes, rows, strict=True
    ):
        lane.cut(head)


def end_session(model: AnyModel) -> None:
    """The writer closed, or died: all episodes are over."""
    for lane in [model] if isinstance(model, VectorModel) else model.lanes:
        lane.end_session()


def batch(model: AnyModel, ids: Ids, stack: int) -> Batch:
    """What `Store.transitions` must return for ids that there are, or were.

    Raises:
        IndexError: there never was such a row.
    """
    if isinstance(model, Model):
        return model.batch(ids, stack=stack)
    rows = []
    for cell in ids.tolist():
        tick, env = divmod(cell, model.width)
        if env not in model.ticks[tick]:
            raise IndexError(cell)
        rows.append(env << LANE_SHIFT | model.row(tick, env))
    return dataclasses.replace(model.lanes.batch(rows, stack=stack), id=ids)


def check(store: Store, model: AnyModel, *, live: bool) -> None:
    """Every row, and what is made of some.

    Args:
        store: what is checked.
        model: what is right.
        live: whether the newest episodes may go on, as nobody has closed the store.

    Raises:
        AssertionError: something differs.
    """
    if isinstance(model, Model):
        checks.check_store(store, model, live=live, most=12)
        return
    model.forget(store.lanes[0].base)
    _check_ticks(store, model)
    model.check(store, most=12, ended=not live)


def _check_ticks(store: Store, model: VectorModel) -> None:
    """What the ticks hold that are kept; zeros below them, and where an environment was left out."""
    (view,) = store.lanes
    frames, n, base = view.frames, len(model.ticks), view.base
    columns = {name: getattr(view, name) for name in ("actions", "rewards", "non_terminals")}
    columns |= {f"extras/{name}": one for name, one in view.extras.items()}
    columns |= (
        {f"frames/{name}": one for name, one in frames.items()}
        if isinstance(frames, dict)
        else {"frames": frames}
    )
    for path, column in columns.items():
        expected = np.zeros((n, *column.shape[1:]), column.dtype)
        for env, lane in enumerate(model.lanes.lanes):
            ticks = [tick for tick in range(base, n) if env in model.ticks[tick]]
            rows = [model.row(tick, env) for tick in ticks]
            # The frame that a step led to is that of the next row of a lane of its own.
            values = lane.column(path, 0)[path.startswith("frames") :]
            expected[ticks, env] = values[rows]
        checks.check_same(column[:], expected, f"{view.path}: {path}")
