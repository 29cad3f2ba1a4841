"""The benchmarks run, check what they time, and their page says what their results say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, results

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
