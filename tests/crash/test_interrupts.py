"""An interrupt, as Ctrl-C sends one, at any call to the disk: the next call makes up for it.

Invariant: whatever was interrupted, what a later call says to be durable survives a power cut, and
nobody is kept out.
"""

import contextlib
import itertools
import random
import threading
from unittest import mock

import numpy as np
import pytest

import mmreplay
from mmreplay import Field
from mmreplay.system import platform
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.power_cut.power import power_disk

pytestmark = [pytest.mark.timeout(0 if THOROUGH else 900), pytest.mark.deep]

SETTINGS = {
    "raw": {"frame": Field((4,), "uint8", "raw", 8)},
    "lz4": {"frame": Field((4,), "uint8", "lz4", 2, 4)},
    "evicting": {"frame": Field((4,), "uint8", "lz4", 2, 4), "capacity": 30},
    "vector-raw": {"frame": Field((4,), "uint8", "raw", 8), "lanes": 2},
    "vector-evicting": {"frame": Field((4,), "uint8", "lz4", 2, 4), "lanes": 2, "capacity": 60},
}
ROWS = 120
EVERY = by_effort(53, 7, 1)


class Interrupt:
    """Raises a KeyboardInterrupt at a call of the main thread, once."""

    def __init__(self):
        self.left = None

    def __call__(self, _):
        if self.left is None or threading.current_thread() is not threading.main_thread():
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise KeyboardInterrupt


def frame(row):
    return np.full(4, row % 251, np.uint8)


def write(writer, stop):
    """Append rows up to `stop`, from wherever an interrupt has left it."""
    while writer.rows < stop:
        row = writer.rows
        if isinstance(writer, mmreplay.VectorWriter):
            write_tick(writer, row)
        elif writer.running:
            writer.step(row, 1.0, frame(row))
        else:
            writer.reset(frame(row))


def write_tick(writer, row):
    """Append the step of all environments that is this row."""
    frames = np.tile(frame(row), (len(writer), 1))
    if not writer.running.all():
        writer.reset(frames)
    zeros = np.zeros(len(writer), bool)
    writer.step([row] * len(writer), zeros, frames, zeros, zeros)


def trial(root, settings, what, at):
    """One interrupt, a call that goes through, a power cut, a look; whether there was an interrupt."""
    path, interrupt, boot = root / "s.zarr", Interrupt(), [1]

    def boot_id():
        return boot[0].to_bytes(16, "little")

    def opened():
        return mmreplay.create(
            path, action=Field((), "int64", chunk=8), append=True, flush_s=0, **settings
        )

    with mock.patch.object(platform, "boot_id", boot_id), power_disk(root, interrupt) as disk:
        writer = opened()
        write(writer, 9)
        writer.flush()
        write(writer, ROWS - 20)
        if what == "open":
            writer.close()
        interrupt.left = at
        with contextlib.suppress(KeyboardInterrupt):
            if what == "open":
                writer = opened()
            elif what == "write":
                write(writer, ROWS)
            else:
                getattr(writer, what)()
        came, interrupt.left = interrupt.left is None, None
        if what == "close":
            writer.close()  # the rest of it, or nothing
        if what in ("open", "close"):
            writer._release_unclosed()
            writer = opened()
            assert writer.rows == ROWS - 20
        # A flush has to make up for what the one before has begun: nothing is written in between.
        n_rows = ROWS - 20 if what == "flush" else ROWS
        write(writer, n_rows)
        writer.flush()
        writer._release_unclosed()
        disk.cut(random.Random(at))
        boot[0] += 1
        with mmreplay.open(path) as store:
            rows = np.arange(store.lanes[0].base, n_rows)
            assert store.live.rows(0) == n_rows
            frames = store.lanes[0].frames[rows[0] :].reshape(len(rows), -1)
            assert (frames == (rows % 251)[:, None]).all()
        checks.check_verified(path)
        opened().close()
    return came


@pytest.mark.parametrize("what", ["flush", "write", "close", "open"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_interrupted_at_any_call_and_called_again(tmp_path, kind, what):
    n_interrupts = 0
    for at in itertools.count(0, EVERY):
        (tmp_path / str(at)).mkdir()
        if not trial(tmp_path / str(at), SETTINGS[kind], what, at):
            break
        n_interrupts += 1
    assert n_interrupts > 0  # an opening does most of its calls in other threads
