"""The benchmarks run, check what they time, and their page says what their results say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import report, results, timing

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
KEPT = sorted([*RESULTS.glob("*.json"), *(ROOT / "tests" / "crash" / "results").glob("*.json")])


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
@pytest.mark.parametrize("subject", report.SUBJECTS)
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


def test_an_unknown_subject_is_wrong_usage():
    done = run("sampling")
    assert done.returncode == 2
    assert "no such subject: sampling" in done.stderr


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
    if path.parent == RESULTS:  # those of tests/crash are written by thorough runs alone
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
