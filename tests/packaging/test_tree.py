"""Nothing of the machine on which a file was written stays in it."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked_files():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / os.fsdecode(name) for name in result.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def found(pattern, *, flags=0):
    expression = re.compile(pattern.encode(), flags)
    return [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in tracked_files()
        for match in [expression.search(path.read_bytes())]
        if match
    ]


def test_no_file_names_a_folder_of_this_machine():
    folders = {ROOT, ROOT.parent, Path.home()}
    folders -= {Path("/"), Path("/home"), Path("/Users"), Path(tempfile.gettempdir())}
    own = "|".join(re.escape(str(folder)) for folder in sorted(folders))
    assert not found(rf"(?<![\w.~/-])(?:(?:{own})/|/(?:home|Users)/\w+/)")


def test_no_file_says_where_packages_come_from():
    assert not found(r"(?:extra-)?index[-_]url|find[-_]links|trusted[-_]host|/[s]imple/")
