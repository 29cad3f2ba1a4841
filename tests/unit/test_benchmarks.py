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


@pytest.mark.slow
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


def test_a_bound_that_does_not_hold_is_written_and_listed(tmp_path, capsys):
    result = results.Result("disk", {"name": "full"})
    result.add("small enough", 3.0, "MB", at_most=4)
    result.add("fast enough", timing.Spread(1.0, 0.5, 2.0, 5), "steps/s", at_least=2)
    result.add("just so", 1.0, "MB")
    result.write(tmp_path, tmp_path)
    assert "DOES NOT HOLD" in capsys.readouterr().out
    holds = [one["holds"] for one in results.load(tmp_path / "disk.json")["figures"].values()]
    assert holds == [True, False, None]
    page = report.render(tmp_path)
    assert "1 of 2 bounds hold." in page
    assert "- fast enough: 1 steps/s, bound at least 2" in page


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


def test_the_page_is_made_of_the_results():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert page == report.render(RESULTS)


def test_documents_get_the_newest_figures_and_keep_those_that_are_still_to_come(tmp_path):
    (tmp_path / "kills.json").write_text('{"kills": {"median": 12345}, "seconds": [0.0314]}')
    kills = "<!-- figure: kills.json:kills.median -->"
    seconds = "<!-- figure: kills.json:seconds.0 * 1e3 -->"
    later = "TODO-FIGURE cuts<!-- figure: cuts.json:cuts.median -->"
    text = f"TODO-FIGURE kills{kills}, 7 ms{seconds} | {later}, 3 lanes\n"
    filled = f"12,345 kills{kills}, 31.4 ms{seconds} | {later}, 3 lanes\n"
    assert report.with_figures(text, tmp_path) == filled
    assert report.with_figures(filled, tmp_path) == filled
    with pytest.raises(LookupError, match=r"kills\.json has no deaths"):
        report.with_figures("1<!-- figure: kills.json:deaths -->", tmp_path)


@pytest.mark.parametrize("name", report.QUOTING)
def test_the_documents_quote_the_newest_figures(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == report.with_figures(text, ROOT)
