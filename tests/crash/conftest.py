"""Fixtures of this folder."""

import os
from pathlib import Path

import pytest

from benchmarks.results import Result
from mmreplay.format import plan
from tests.support.effort import THOROUGH
from tests.support.leftovers import PASSED
from tests.support.oracle.script import IMAGE_AND_JOINTS, Script
from tests.support.power_cut.layouts import SHORT_CHUNKS
from tests.support.processes.actor import Actors

FRAMES = {
    "raw": {"frame": [(6, 8), "uint8", "raw", 5]},
    "raw, mapped side by side": {"frame": [(64, 64), "uint8", "raw", 4]},
    "lz4": {"frame": [(6, 8), "uint8", "lz4", 2, 4]},
    "zstd, one row a shard": {"frame": [(6, 8), "uint8", "zstd", 1, 1]},
    "large": {"frame": [(512, 512), "uint8", "lz4", 1, 1]},
    "dict": IMAGE_AND_JOINTS,
}


@pytest.fixture(scope="module")
def actors():
    """A server that forks writer processes."""
    with Actors() as running:
        yield running


@pytest.fixture
def script_of(tmp_path):
    """What is done to a store of one of these kinds of frames while others look on."""
    return lambda name, **more: Script(
        path=str(tmp_path / "s.zarr"),
        report=str(tmp_path / "report"),
        seed=4,
        frame=FRAMES[name],
        action_chunk=6,
        **more,
    )


@pytest.fixture
def short_chunks(monkeypatch):
    """Of columns whose lengths no field gives: a simulated disk compares each file at each call."""
    for name, rows in SHORT_CHUNKS.items():
        monkeypatch.setattr(plan, name, rows)


@pytest.fixture
def measured(request, tmp_path):
    """`measured(subject, **settings)` is a `Result`: figures, and the bounds they are held against.

    Only a thorough run is held against anything. `make crash` names a folder in $MMREPLAY_RESULTS:
    there they are written, if the test passed, and docs/reliability.md quotes them.
    """
    results = []

    def begin(subject, **settings):
        results.append(Result(subject, settings, held=THOROUGH))
        return results[-1]

    yield begin
    missed = [one.what for result in results for one in result.figures if one.holds is False]
    folder = os.environ.get("MMREPLAY_RESULTS")
    if folder and THOROUGH and request.node.stash.get(PASSED, False):
        for result in results:
            result.write(Path(folder), tmp_path)
    assert not missed, missed
