"""What the documents show works, and where they point there is something.

CONTRIBUTING.md, "Documents", says how to write blocks for these tests.
"""

import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.processes.commands import Commands

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PAGES = {path.relative_to(ROOT).as_posix() for path in DOCUMENTS}
LINKING = sorted({*DOCUMENTS, *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md")})
if find_spec("torch") is None:  # `make test-adapters` runs these
    DOCUMENTS = [path for path in DOCUMENTS if path.parent.name != "train"]
if find_spec("obstore") is None:  # `make test-archive` runs it
    DOCUMENTS.remove(ROOT / "docs" / "archive.md")
SHOWN = {"text", "json", "toml", "make", "mermaid"}  # not run
FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^`]*)$")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of its first line."""

    language: str
    text: str
    line: int


def blocks(markdown):
    """The fenced blocks of `markdown`, in order."""
    found = []
    opening = None
    for number, line in enumerate(markdown.splitlines(), start=1):
        if opening is None:
            if opening := FENCE.match(line):
                first, lines = number + 1, []
        elif line.strip() == opening["ticks"]:
            found.append(Block(opening["language"].strip(), "".join(lines), first))
            opening = None
        else:
            lines.append(f"{line.removeprefix(opening['indent'])}\n")
    assert opening is None, f"the block that starts on line {first} has no end"
    return found


def prose(markdown):
    """The lines of `markdown`, with fenced blocks and inline code blanked out."""
    lines = markdown.splitlines()
    for block in blocks(markdown):
        first, stop = block.line - 2, block.line + block.text.count("\n")
        lines[first:stop] = [""] * (stop - first)
    return [re.sub(r"`[^`]*`", "", line) for line in lines]


def commands(block):
    """(command, expected output) for every command of a console block."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            assert found, f"line {block.line}: a console block starts with `$ `"
            found[-1][1].append(line)
    return [(command, "\n".join(output)) for command, output in found]


def matches(expected, printed):
    """Whether `expected` shows what was printed. A line `...` is any lines, or none.

    Empty lines and the number of spaces between words do not count.
    """
    pattern = ""
    for line in filter(str.strip, expected.splitlines()):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*"
        else:
            words = (re.escape(word).replace(r"\.\.\.", ".*") for word in line.split())
            pattern += r"[ ]*" + r"[ ]+".join(words) + r"[ ]*\n"
    lines = "".join(f"{line}\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, lines) is not None


def run_command(command, folder, mmreplay):
    """What `command` prints in `folder`; what installs or needs the repository is looked up.

    `mmreplay` runs that command, where no shell is needed for it.
    """
    words = shlex.split(command, comments=True)
    if words[0] == "mmreplay" and not set(command) & set("|&;<>$*#\n"):
        status, printed, told = mmreplay().run(words[1:], folder)
        assert status == 0, f"$ {command}\n{printed}{told}"
        return printed
    if words[0] == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets, f"{command}: no such target"
        return ""
    if words[0] == "pip" or words[1:3] == ["-m", "pip"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = re.findall(r"(?:mmreplay|\.)\[([\w,-]+)\]", command)
        extras = {extra for group in wanted for extra in group.split(",")}
        assert extras <= set(project["optional-dependencies"]), f"{command}: no such extra"
        return ""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_document(markdown, name, folder, mmreplay):
    """Run the blocks of one document in order: Python in one namespace, commands in one folder."""
    namespace = {"__name__": "__main__"}
    for block in blocks(markdown):
        if block.language == "python":
            # Newlines before it, so that a traceback names the line of the document.
            exec(compile("\n" * (block.line - 1) + block.text, name, "exec"), namespace)
        elif block.language == "bash":
            run_command(block.text, folder, mmreplay)
        elif block.language == "console":
            for command, expected in commands(block):
                printed = run_command(command, folder, mmreplay)
                shows = f"$ {command}\nshown:\n{expected}\nprinted:\n{printed}"
                assert not expected.strip() or matches(expected, printed), shows
        else:
            assert block.language in SHOWN, f"{name}:{block.line}: {block.language!r}"


def anchor(heading):
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")


def dead_links(document):
    """The links of a document to files and headings of the repository that are not there."""
    found = []
    for number, line in enumerate(prose(document.read_text()), start=1):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", line):
            file, _, name = link.partition("#")
            target = document.parent / file if file else document
            headings = (
                {anchor(one) for one in target.read_text().splitlines() if one.startswith("#")}
                if name and target.exists()
                else ()
            )
            if not target.exists() or (name and name not in headings):
                found.append(f"{number}: {link}")
    return found


def relative(path):
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to work in: its modules are found, and so are the installed commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture(scope="module")
def mmreplay():
    """Starts it for the first command: a process that runs none need not wait for it."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(Commands()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_blocks_of_a_document_run(document, folder, mmreplay):
    run_document(document.read_text(), relative(document), folder, mmreplay)


@pytest.mark.parametrize("document", LINKING, ids=relative)
def test_links_lead_somewhere(document):
    assert dead_links(document) == []


@pytest.mark.parametrize(
    ("name", "most"), [("README.md", 120), ("docs/semantics.md", 600), ("docs/format.md", 450)]
)
def test_a_page_is_short(name, most):
    assert len((ROOT / name).read_text().splitlines()) <= most


LONG = {"docs/design.md", "docs/format.md", "docs/semantics.md"}  # contributors' and two contracts


def n_words(markdown):
    """Words that are read: no blocks, comments, or punctuation of tables."""
    text = re.sub(r"<!--.*?-->", "", re.sub(r"(?ms)^ *```.*?^ *```", "", markdown))
    return sum(re.search(r"\w", word) is not None for word in text.split())


@pytest.mark.parametrize("document", sorted(PAGES - LONG))
def test_a_page_of_the_site_has_at_most_1200_words(document):
    assert n_words((ROOT / document).read_text()) <= 1200


# The checks themselves: a check that lets everything through looks just like one that holds.


@pytest.mark.parametrize(
    "block",
    [
        "```python\n1 / 0\n```\n",
        "```console\n$ exit 3\n```\n",
        "```console\n$ mmreplay info nothing.zarr\n```\n",
        "```bash\nfalse | true\n```\n",
        "```console\n$ echo 5 rows\n6 rows\n```\n",
        "```console\n$ make nothing\n```\n",
        "```console\n$ pip install 'mmreplay[nothing]'\n```\n",
        "```pyton\n1\n```\n",
    ],
)
def test_block_that_fails_is_noticed(block, folder):
    with pytest.raises((AssertionError, ZeroDivisionError)):
        run_document(block, "block", folder, Failing)


class Failing:
    """In the place of `Commands`."""

    def run(self, *_):
        return 1, "", "Error"


def test_shown_output_must_be_what_is_printed():
    printed = "first  1\n\nsecond 2\nthird 3.5 s\n"
    for good in ("first 1\n...\nthird ... s", "...\nfirst 1\n\nsecond 2\nthird 3.5 s\n...", "..."):
        assert matches(good, printed), good
    for bad in ("first 1", "...\nsecond 2", "first 1\nthird 3.5 s", "first 1\n...\nthird s"):
        assert not matches(bad, printed), bad


def test_words_are_those_that_are_read():
    assert (
        n_words("| a | b |\n|---|---|\n<!-- no -->\n```python\nno\n```\n- one, two -- three") == 5
    )


def test_link_that_leads_nowhere_is_noticed(tmp_path):
    (tmp_path / "other.md").write_text("# Other\n\n## What is *not*, and why\n")
    document = tmp_path / "document.md"
    document.write_text(
        "# One two\n[a](other.md) [b](#one-two) [c](other.md#what-is-not-and-why)\n"
        "[d](https://example.org/none) `[e](none.md)`\n[f](none.md) [g](#three) [h](other.md#one-two)\n"
    )
    assert dead_links(document) == ["4: none.md", "4: #three", "4: other.md#one-two"]
