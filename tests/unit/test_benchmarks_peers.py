"""What other libraries are given and asked for, and that the page shows what came of it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from benchmarks import experience, results
from benchmarks.peers import page, steps
from benchmarks.peers.arrays import Arrays
from benchmarks.peers.ours import Ours
from benchmarks.peers.peer import Setup
from benchmarks.peers.steps import Frames, Promise

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LENGTHS = [1, 2, 3, 4, 5, 7, 11, 13, 560]
PEERS = {
    "raw": lambda setup: Ours(setup, "raw"),
    "lz4": lambda setup: Ours(setup, "lz4"),
    "memmap": lambda setup: Arrays(setup, "memmap"),
    "preadv": lambda setup: Arrays(setup, "preadv"),
    "tensorstore": lambda setup: Arrays(setup, "tensorstore"),
    "zarr": lambda setup: Arrays(setup, "zarr"),
}


@pytest.fixture(scope="module")
def tape():
    """Episodes that end and are cut off in turns, and a last one that runs on."""
    rng = np.random.default_rng(0)
    resets = np.concatenate([np.arange(n + 1) == 0 for n in LENGTHS])
    rows = len(resets)
    flags = np.ones(rows, np.uint8)
    flags[np.cumsum(np.add(LENGTHS, 1))[:-1:2] - 2] = 0
    return experience.Tape(
        rng.integers(1, 256, (rows, 4, 4), np.uint8),
        np.arange(rows),
        rng.random(rows, np.float32),
        flags,
        resets.astype(np.uint8),
        (0, rows),
        np.empty(0, np.int64),
    )


@pytest.fixture(scope="module")
def frames(tape, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames")
    steps.save(folder, tape, len(tape))
    return Frames(folder)


@pytest.mark.parametrize("name", PEERS)
def test_batches_are_the_steps_and_a_wrong_byte_is_seen(name, frames, tmp_path):
    setup = Setup(tmp_path, len(frames.numbers), frames.shape)
    peer, n = PEERS[name](setup), len(frames.numbers) - 20
    for block in frames.steps(0, n):
        for step in block:
            peer.append(step)
    assert len(peer) == n
    batch = peer.plain(peer.sample(300))
    assert (np.diff(np.sort(batch.action)) > 0).sum() > 100
    frames.check(batch, Promise(), n)
    for field in ("observation", "next_observation", "action", "reward", "terminated"):
        wrong = getattr(batch, field).copy()
        wrong[7] = wrong[7] + 1 if wrong.dtype != np.bool_ else ~wrong[7]
        with pytest.raises(AssertionError):
            frames.check(dataclasses.replace(batch, **{field: wrong}), Promise(), n)
    with pytest.raises(AssertionError, match="no steps"):
        frames.check(batch, Promise(), 5)


def test_the_plots_are_made_of_the_results():
    document = results.load(RESULTS / "peers.json")
    for name, _ in page.PLOTS.values():
        assert page.digest(document) in (RESULTS / name).read_text(encoding="utf-8")


def test_the_page_shows_the_figures_of_each_library():
    document = results.load(RESULTS / "peers.json")
    for one in document["figures"].values():
        if one["what"] == "cpprb: sample 32":
            one.update(median=123456.0, low=123456.0, high=123456.0)
        if one["what"] == "tianshou: limit, 1 times the memory":
            one.update(median=0.0, low=0.0, high=0.0, note="killed by the kernel")
    shown = page.section(document, ["## Others"])
    assert "| cpprb | 123,456 | " in shown
    assert "0; killed by the kernel" in shown
    for name in document["details"]["libraries"]:
        assert f"| {name} | " in shown
