"""The benchmarks run, check what they time, and their page says what their results say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mmreplay
from benchmarks import experience, naive, report, results, timing
from benchmarks.experience import Layout

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KEPT = sorted([*RESULTS.glob("*.json"), *(ROOT / "tests" / "crash" / "results").glob("*.json")])

ELSEWHERE = {"stable_baselines3", "training", "view"}  # need what is not installed here


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("experience")


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks", *map(str, arguments)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.deep(only=True)
@pytest.mark.parametrize("subject", sorted({*report.SUBJECTS} - ELSEWHERE))
def test_every_benchmark_runs_quickly_and_finds_right_what_it_timed(subject, data, quick):
    pytest.importorskip("ale_py")
    done = run(subject, "--quick", "--data", data, "--results", quick)
    assert done.returncode == 0, done.stderr
    document = results.load(quick / f"{subject}.json")
    assert document["figures"]
    assert all(
        one["holds"] is None for one in document["figures"].values()
    )  # sizes that mean nothing
    assert "mean nothing" in report.render(quick)


@pytest.fixture
def recording(tmp_path):
    """Three environments with episodes of many lengths, that reset themselves in the next step."""
    path, rng = tmp_path / "recording.zarr", np.random.default_rng(0)
    shape = 3, 4, 4
    with mmreplay.create(
        path, mmreplay.Field(shape[1:]), mmreplay.Field((), "int64"), lanes=3
    ) as writer:
        writer.reset(rng.integers(0, 256, shape, np.uint8))
        over = np.zeros(3, np.bool_)
        for _ in range(60):
            frames = rng.integers(0, 256, shape, np.uint8)
            ended, cut = (rng.random((2, 3)) < 0.1) & ~over
            writer.step(rng.integers(0, 9, 3), rng.random(3), frames, ended, cut, mask=~over)
            if over.any():
                writer.reset(frames, over)
            over = ended | cut
    return path


def test_a_tape_is_the_recording_in_each_layout_of_its_stores(recording, tmp_path):
    tape = experience.read_tape(recording)
    paths = {
        Layout.VECTOR: recording,
        Layout.LANES: experience.own_lanes(tmp_path, "game", "lz4", tape),
        Layout.ONE: experience.one_lane(tmp_path, "game", "lz4", tape, None)[0],
    }
    assert (tape.entries < 0).any()
    for layout, path in paths.items():
        with mmreplay.load(path, n_step=3, seed=0) as data:
            assert len(data) == tape.n_transitions
            experience.check_whole(data.store, tape, layout)
            batch = data.sample(64)
            naive.check_batch(batch, tape, layout, n_step=3)
            batch.observation[5, 0, 0, 0] += 1
            with pytest.raises(AssertionError):
                naive.check_batch(batch, tape, layout, n_step=3)
            tape.frames[7] += 1
            with pytest.raises(AssertionError):
                experience.check_whole(data.store, tape, layout)
            tape.frames[7] -= 1


def test_a_figure_is_the_median_of_the_runs_medians():
    clock = timing.Clock()
    for seconds in ([1.0, 2.0, 90.0], [3.0, 4.0, 5.0], [2.0, 3.0, 4.0]):
        clock.new_run()
        clock.put("one", np.array(seconds))
        clock.put("base", np.array([2.0]))
    found = clock.microseconds("one")
    assert (found.median, found.low, found.high, found.n_runs) == (3e6, 2e6, 4e6, 3)
    assert clock.ratio("one", "base").median == 1.5


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_result_in_the_repository_is_a_full_one_and_names_no_machine(path):
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    # Those of tests/crash are written by thorough runs alone; that of other libraries may be a quick
    # one, which its page says.
    if path.parent == RESULTS and path.stem != "peers":
        assert document["settings"]["name"] == "full"
    assert path.stem == document["subject"]
    assert set(document["machine"]) == {
        "system",
        "architecture",
        "processor",
        "cores",
        "memory_gib",
        "filesystem",
    }
    assert not re.search(r'"/|/(home|tmp|root|work|Users)\b', text)
