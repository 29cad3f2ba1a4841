"""What a writer that died has left: read by one who writes nothing, then gone on with.

Invariant: a check that returns has seen every acknowledged row, at most the one in flight of each
lane, and nothing else, byte for byte, in a store that `verify` has nothing to say about.
"""

from pathlib import Path

import numpy as np

from mmreplay.errors import FormatError, MmreplayError
from mmreplay.reading.store import Store
from tests.support.disks import faults
from tests.support.oracle import checks, disk
from tests.support.oracle.script import append_rows

_NEWEST_ROWS = 700  # compared column by column after each death; all of them in the end


def check_found(chronicle, *, most=40, power_cut=False):
    """What the actors left is what they acknowledged; then the model knows it.

    After a power cut it is at least what they acknowledged to be durable, and all of it is then.
    """
    path = Path(chronicle.script.path)
    store = _opened(chronicle)
    if store is None:
        return False
    with store:
        chronicle.catch_up([view.rows for view in store.lanes], power_cut=power_cut)
        model = chronicle.model
        checks.forget(store, model)
        checks.check_ids(store, model)
        _check_newest(store, model)
        ids = model.ids()
        if ids.size:
            generator = np.random.default_rng(len(store))
            chosen = np.concatenate((ids[:5], generator.choice(ids, most), ids[-5:]))
            batch = store.transitions(chosen, stack=3, n_step=3)
            # It may have died on the way to end an episode with the newest row, or just after.
            expected = model.batch(chosen, stack=3, n_step=3)
            checks.check_batch(batch, expected, endings=False)
    checks.check_verified(path)
    if power_cut:
        chronicle.acknowledge(model.heads(), durable=True)
    return True


def left(script, kind, n_rows=100):
    """The writer of a store, flushed ten rows before the end; closed, crashed or live."""
    writer, starts = script.open(), [None] * (script.envs or 1)
    for number in range(n_rows):
        append_rows(writer, script.plot, starts)
        if number == n_rows - 10:
            writer.flush()
    if kind == "closed":
        writer.close()
    elif kind == "crashed":
        faults.kill(writer)
    return writer


def _opened(chronicle):
    path = Path(chronicle.script.path)
    if path.exists():
        try:
            return Store([path])
        except FormatError:
            if chronicle.script.lane is None or any(path.glob("lane-*")):
                raise  # otherwise its first lane was just to be made
    if any(chronicle.committed):
        raise AssertionError(f"{path}: {chronicle.committed} rows were acknowledged, none is there")
    return None


def _check_newest(store, model):
    for view, lane in zip(store.lanes, model.lanes, strict=True):
        start, expected = max(len(lane.rows) - _NEWEST_ROWS, lane.base), lane.arrays()
        for path, column in checks.columns_of(view, model.schema).items():
            stop = len(lane.rows) - (path == "ends")  # which decide nothing there
            checks.check_same(
                column[start:stop], expected[path][start:stop], f"{view.path}: {path}"
            )


def finish(chronicle, n_rows):
    """Take over what the dead left, append some rows and close it: every row is there then."""
    script = chronicle.script
    writer = script.open(flush_s=0)
    lanes = faults.writers_of(writer)
    chronicle.begin([lane.rows for lane in lanes])
    starts = [None] * (script.envs or 1)
    for _ in range(n_rows):
        append_rows(writer, script.plot, starts)
    rows = [lane.rows for lane in lanes]
    writer.close()
    chronicle.acknowledge(rows)
    check_closed(chronicle)


def check_closed(chronicle):
    """A closed store: every row, and plain zarr without litter."""
    path = Path(chronicle.script.path)
    with Store([path]) as store:
        chronicle.catch_up([view.rows for view in store.lanes])
        chronicle.model.end_session()
        checks.check_columns(store, chronicle.model)
        checks.forget(store, chronicle.model)
        checks.check_ids(store, chronicle.model)
        checks.check_episodes(store, chronicle.model)
    disk.check_plain_zarr(path)
    checks.check_verified(path)
    litter = [one.name for one in path.parent.iterdir() if one.name.startswith(f".{path.name}.")]
    if litter:
        raise AssertionError(f"{path.parent}: left behind: {litter}")


def outcome(call) -> str:
    """``""``, or the error of mmreplay and what it says; other errors come through."""
    try:
        call()
    except MmreplayError as error:
        return f"{type(error).__name__}: {error}"
    return ""
