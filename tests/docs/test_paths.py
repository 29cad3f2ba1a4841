"""Every file, folder and test of this repository that a document names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = "benchmarks|cli|examples|mmreplay|tests"
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", *(f"{folder}/**/*.md" for folder in ("docs", *FOLDERS.split("|"))))
    for path in ROOT.glob(pattern)
)

PATH = re.compile(rf"(?<![\w./-])(?P<path>(?:{FOLDERS})/[\w./-]*\w)(?:::(?P<test>\w+))?")


def missing_paths(markdown, root):
    """The paths, and the tests in them, that `markdown` names and `root` does not have."""
    found = []
    for number, line in enumerate(markdown.splitlines(), start=1):
        for match in PATH.finditer(line):
            file = root / match["path"]
            if not file.exists() or (
                match["test"] and f"def {match['test']}(" not in file.read_text()
            ):
                found.append(f"{number}: {match[0]}")
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_path_that_a_document_names_exists(document):
    assert missing_paths(document.read_text(), ROOT) == []


def test_missing_path_is_noticed(tmp_path):
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_a.py").write_text("def test_one():\n    pass\n")
    document = (
        "`tests/unit/test_a.py`, tests/unit/, `tests/unit/test_a.py::test_one`.\n"
        "`tests/unit/test_a.py::test_two` and tests/unit/test_b.py.\n"
        "https://example.org/tests/none, src/tests/none.py\n"
    )
    assert missing_paths(document, tmp_path) == [
        "2: tests/unit/test_a.py::test_two",
        "2: tests/unit/test_b.py",
    ]
