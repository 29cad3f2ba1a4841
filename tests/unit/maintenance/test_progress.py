"""Progress in bytes: it grows up to the total, and never past it."""

import pytest

from mmreplay import (
    snapshot,
)
from mmreplay.maintenance.progress import ByteCount


def test_the_progress_of_a_snapshot_ends_at_the_total(make, story, tmp_path):
    writer = make(n_lanes=2)
    story.play_every_end(writer)
    told = []
    snapshot(writer.path, tmp_path / "copy.zarr", lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0


def test_bytes_are_counted_up_to_the_total_and_not_past_it():
    told = []
    done = ByteCount(lambda *now: told.append(now), lambda: 10)
    for size in (3, 4, 9):
        done.add(size)
    done.finish()
    assert told == [(3, 10), (7, 10), (10, 10), (10, 10)]
    assert done.bytes == 16


def test_without_a_caller_who_asks_for_progress_the_total_is_not_worked_out():
    done = ByteCount(None, lambda: pytest.fail("nobody asked"))
    done.add(3)
    done.finish()
    assert done.bytes == 3
