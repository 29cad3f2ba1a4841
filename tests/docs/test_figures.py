"""The figures in documents are those of the results."""

import json
import re
import shutil
from pathlib import Path

import pytest

from benchmarks import report, results, timing

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
SHOWING = ("README.md", "benchmarks/README.md", *PAGES)
CLAIMING = ("README.md", "docs/reliability.md", "docs/tested.md", "docs/comparison.md")
# A number with a unit that somebody must have measured: 1.8x, 12 times, 4 us, 60 %, 3 GB/s.
MEASURED = re.compile(
    r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?\s?(?:x|times|R|ns|us|µs|ms|%|[kKMGT]i?B|\w+/s)(?!\w)"
)
SOURCED = re.compile(r"[^\d<]*<!-- (?:figure|given): \S+.*?-->")


def unsourced(markdown):
    """The measured-looking numbers that stand neither in the block nor before a comment."""
    before, _, rest = markdown.partition(report.BEGIN)
    text = before + rest.partition(report.END)[2]
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [at[0] for at in MEASURED.finditer(text) if not SOURCED.match(text, at.end())]


@pytest.fixture
def root(tmp_path):
    """A copy of the documents and of the results."""
    for name in SHOWING:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("benchmarks/results", "examples/results", "tests/crash/results"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def test_documents_show_the_figures_of_the_results():
    made = report.documents(ROOT)
    for name in SHOWING:
        shown = (ROOT / name).read_text(encoding="utf-8")
        assert shown == made[ROOT / name], f"{name}: make it: python -m benchmarks report"


@pytest.mark.parametrize("name", CLAIMING)
def test_measured_numbers_name_their_source(name):
    assert unsourced((ROOT / name).read_text(encoding="utf-8")) == []


def test_table_has_at_most_eight_rows_and_each_names_its_files():
    rows = [line for line in report.table(ROOT).splitlines() if line.startswith("| ")][1:]
    assert 1 <= len(rows) <= 8
    assert all(re.search(r"\[\w+\.json\]\(\.\./[\w/]+\.json\) \|$", row) for row in rows)


def test_another_result_changes_the_documents_that_show_it(root):
    before = report.documents(root)
    for file, figure, changed in (
        (
            "benchmarks/results/disk",
            "breakout-lz4-on-disk",
            ["benchmarks/README.md", "docs/performance.md"],
        ),
        ("tests/crash/results/simulator", "violations", ["docs/performance.md", "docs/tested.md"]),
    ):
        path = root / f"{file}.json"
        whole, result = path.read_text(encoding="utf-8"), results.load(path)
        result["figures"][figure]["median"] += 1000
        path.write_text(json.dumps(result), encoding="utf-8")
        after = report.documents(root)
        path.write_text(whole, encoding="utf-8")
        assert [name for name in SHOWING if after[root / name] != before[root / name]] == changed


def test_page_without_a_block_is_left_alone(root):
    (root / "docs" / "performance.md").write_text(f"a\n{report.BEGIN}b\n")
    with pytest.raises(LookupError, match=r"performance\.md has no lines"):
        report.documents(root)


def test_page_names_bounds_that_do_not_hold_and_what_is_slower(tmp_path, capsys):
    result = results.Result("append", {"name": "full"})
    result.add("raw: one", 3.0, "MB", at_most=4)
    result.add("lz4: one", timing.Spread(1.0, 0.5, 2.0, 5), "MB", at_least=2, note="small")
    result.add("drawn, by cpprb's", 2.0, "times")
    result.write(tmp_path, tmp_path)
    assert "DOES NOT HOLD" in capsys.readouterr().out
    page = report.render(tmp_path)
    assert "1 of 2 bounds hold." in page
    assert "- lz4: one: 1 MB, bound ≥ 2\n" in page
    assert "- drawn, by cpprb's: 2 times\n" in page
    assert "| | raw | lz4 |  |\n" in page
    assert "| one | 3; ≤ 4 | **1 (0.5..2); ≥ 2; small; missed** | MB |\n" in page
    assert "| drawn, by cpprb's | 2 | times |\n" in page


def test_numbers_before_a_comment_are_replaced(tmp_path):
    (tmp_path / "kills.json").write_text('{"kills": {"median": 12345}, "seconds": [0.0314]}')
    kills = "<!-- figure: kills.json:kills.median -->"
    seconds = "<!-- figure: kills.json:seconds.0 * 1e3 -->"
    shown = f"3 lanes, 1 kills{kills}, 7 ms{seconds}\n"
    assert report.quoted(shown, tmp_path) == f"3 lanes, 12,345 kills{kills}, 31.4 ms{seconds}\n"
    with pytest.raises(LookupError, match=r"kills\.json has no deaths"):
        report.quoted("1<!-- figure: kills.json:deaths -->", tmp_path)


def test_measured_number_without_a_source_is_noticed():
    assert unsourced("raw 1.8x, at 60 % and 4.1 us,\n12,000 steps/s") == [
        "1.8x",
        "60 %",
        "4.1 us",
        "12,000 steps/s",
    ]
    assert unsourced("1.8x<!-- figure: a.json:b --> and 2-3x") == ["3x"]
    assert unsourced("at most 2 %<!-- given: the limit that a test holds -->") == []
    assert unsourced(f"2x {report.BEGIN}3x\n{report.END}4x") == ["2x", "4x"]
    assert unsourced("84x84 frames, kill -9, 1,000,000 rows, `2x`\n```text\n3x\n```\n") == []
