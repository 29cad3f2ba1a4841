"""The tree: nothing of a machine in it, and nothing too large."""

import collections
import functools
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mmreplay"


@functools.cache
def tracked_files():
    """The path and the bytes of each file."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / os.fsdecode(name) for name in result.stdout.split(b"\0") if name]
    return [(path, path.read_bytes()) for path in paths if path.is_file() and not path.is_symlink()]


def found(pattern, *, flags=0):
    expression = re.compile(pattern.encode(), flags)
    return [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path, data in tracked_files()
        for match in [expression.search(data)]
        if match
    ]


def test_no_file_names_a_folder_of_this_machine():
    folders = {ROOT, ROOT.parent, Path.home()}
    folders -= {Path("/"), Path("/home"), Path("/Users"), Path(tempfile.gettempdir())}
    own = "|".join(re.escape(str(folder)) for folder in sorted(folders))
    assert not found(rf"(?<![\w.~/-])(?:(?:{own})/|/(?:home|Users)/\w+/)")


def test_no_file_says_where_packages_come_from():
    assert not found(r"(?:extra-)?index[-_]url|find[-_]links|trusted[-_]host|/[s]imple/")


# ---------------------------------------------------------------- sizes and places


def modules():
    return sorted(one for one in PACKAGE.rglob("*.py") if one.name != "__init__.py")


def n_lines(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def longer_than(most, paths):
    return [
        f"{one.relative_to(ROOT)}: {n_lines(one)} lines" for one in paths if n_lines(one) > most
    ]


def test_each_example_is_short_and_has_a_test_file_of_its_name():
    examples = list((ROOT / "examples").glob("*.py"))
    tests = ROOT / "tests" / "examples"
    assert [one.name for one in examples if not (tests / f"test_{one.name}").is_file()] == []
    assert longer_than(149, examples) == []


def test_the_package_has_at_most_18_rooms_and_8_modules_beside_them():
    rooms = [one.name for one in PACKAGE.iterdir() if (one / "__init__.py").is_file()]
    beside = [one.name for one in modules() if one.parent == PACKAGE and one.name != "_version.py"]
    assert (len(rooms) <= 18, len(beside) <= 8) == (True, True), (rooms, beside)


def test_no_name_of_a_file_is_used_three_times():
    paths = [*modules(), *(ROOT / "cli").glob("*.py")]
    names = collections.Counter(one.name for one in paths if one.name != "__init__.py")
    assert [name for name, n in names.items() if n > 2] == []


def test_no_module_is_longer_than_500_lines():
    assert longer_than(500, PACKAGE.rglob("*.py")) == []


def test_no_file_of_tests_is_longer_than_700_lines():
    assert longer_than(700, (ROOT / "tests").rglob("test_*.py")) == []
