"""What the documents show works, and what they claim was measured.

CONTRIBUTING.md, "Documents", says how to write blocks and figures for these tests.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from benchmarks import report

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
LINKING = sorted({*DOCUMENTS, *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md")})
FIGURE_DOCUMENTS = [*DOCUMENTS, *sorted((ROOT / "benchmarks").glob("*.md"))]

RUN = {"python", "console", "bash"}
SHOWN = {"text", "json", "toml", "make", "mermaid"}
MAX_EXEMPT_BLOCKS = 3
BLOCK_TIMEOUT_S = 120

NO_RUN = re.compile(r"<!--\s*no-run:(.*?)-->")
GIVEN = re.compile(r"<!--\s*given:(.*?)-->")
FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^`]*)$")

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
FIGURE = re.compile(
    r"<!--\s*figure:\s*(?P<file>[^\s:]+):(?P<key>\S+?)(?:\s*\*\s*(?P<factor>[\d.e+-]+))?\s*-->"
)
TO_COME = "TODO-FIGURE"  # stands for a number whose file of results is not there yet
# A number with a unit that somebody must have measured: 1.8x, 12 times, 4 us, 60 %, 3 GB/s.
UNIT = r"(?:x|times|R|ns|us|µs|ms|%|[kKMGT]i?B|\w+/s)"
MEASURED = re.compile(rf"(?<![\w.,])(?P<number>{NUMBER})\s?{UNIT}(?!\w)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line of its first line, why it is not run."""

    language: str
    text: str
    line: int
    no_run: str | None


def blocks(markdown):
    """The fenced blocks of `markdown`, in order."""
    found = []
    inside = no_run = None
    indent = ""
    for line, text in enumerate(markdown.splitlines(), start=1):
        if inside is None:
            if opening := FENCE.match(text):
                inside = (opening["ticks"], opening["language"].strip(), line + 1, [])
                indent = opening["indent"]
            elif text.strip():
                comment = NO_RUN.fullmatch(text.strip())
                no_run = comment[1].strip() if comment else None
        elif text.strip() == inside[0]:
            _, language, first, lines = inside
            found.append(Block(language, "".join(lines), first, no_run))
            inside = no_run = None
        else:
            inside[3].append(f"{text.removeprefix(indent)}\n")
    assert inside is None, f"the block that starts on line {inside[2]} has no end"
    return found


def prose(markdown):
    """`markdown` with the same lines, its fenced blocks and inline code blanked out."""
    lines = markdown.splitlines()
    for block in blocks(markdown):
        first, stop = block.line - 2, block.line + block.text.count("\n")
        lines[first:stop] = [""] * (stop - first)
    return [re.sub(r"`[^`]*`", "", line) for line in lines]


def commands(block):
    """(command, expected output or None) for every command of a console or bash block."""
    found: list[tuple[str, list[str]]] = []
    joined = block.text.replace("\\\n", " ")
    for line in joined.splitlines():
        if block.language == "bash":
            if line.strip() and not line.startswith("#"):
                found.append((line, []))
        elif line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            assert found, f"line {block.line}: a console block starts with `$ `"
            found[-1][1].append(line)
    return [(command, "\n".join(output).strip() or None) for command, output in found]


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


def check_command(command, expected, folder):
    """Run `command` in `folder`; commands that install or need the repository are looked up."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        assert set(words[1:]) <= targets, f"{command}: no such target"
        return
    if words[0] == "pip" or words[1:3] == ["-m", "pip"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = re.findall(r"(?:mmreplay|\.)\[([\w,-]+)\]", command)
        extras = {extra for group in wanted for extra in group.split(",")}
        assert "install" in words, command
        assert extras <= set(project["optional-dependencies"]), f"{command}: no such extra"
        return
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "COLUMNS": "100",
            "NO_COLOR": "1",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=BLOCK_TIMEOUT_S,
    )
    assert result.returncode == 0, f"$ {command}\n{result.stdout}{result.stderr}"
    if expected is not None:
        shows = f"$ {command}\nshown:\n{expected}\nprinted:\n{result.stdout}"
        assert matches(expected, result.stdout), shows


def run_document(markdown, name, folder):
    """Run the blocks of one document in order: Python in one namespace, commands in one folder."""
    namespace = {"__name__": "__main__"}
    for block in blocks(markdown):
        if block.no_run is not None or block.language not in RUN:
            continue
        if block.language == "python":
            # Newlines before it, so that a traceback names the line of the document.
            code = compile("\n" * (block.line - 1) + block.text, name, "exec")
            exec(code, namespace)
        else:
            for command, expected in commands(block):
                check_command(command, expected, folder)


def value_at(results, key):
    """The number at a dotted `key`; a part that is a number indexes a list."""
    for part in key.split("."):
        results = results[int(part)] if isinstance(results, list) else results[part]
    return results


def figure_faults(line, root):
    """What is wrong with the figures of one line of prose: [] if nothing is."""
    faults = []
    start = 0
    for figure in FIGURE.finditer(line):
        before = line[start : figure.start()]
        shown = re.findall(rf"(?<![\w.]){NUMBER}", before)
        start = figure.end()
        file = root / figure["file"]
        if TO_COME in before:
            if file.is_file():
                faults.append(f"measured, but not filled in: {figure[0]}")
        elif not shown:
            faults.append(f"no number before {figure[0]}")
        elif not file.is_file():
            faults.append(f"no such file: {figure['file']}")
        else:
            number = Decimal(shown[-1].replace(",", ""))
            try:
                value = Decimal(repr(value_at(json.loads(file.read_text()), figure["key"])))
            except (LookupError, ValueError, ArithmeticError, TypeError):
                faults.append(f"no number at {figure['file']}:{figure['key']}")
                continue
            value *= Decimal(figure["factor"] or 1)
            n_digits = len(shown[-1].partition(".")[2])
            if abs(value - number) > Decimal(1).scaleb(-n_digits) / 2:
                faults.append(f"{shown[-1]} is shown, {value} was measured: {figure[0]}")
    return faults


def unsourced(line):
    """The measured-looking numbers of one line of prose that no figure or given comment follows."""
    matches = list(MEASURED.finditer(line))
    found = []
    for index, match in enumerate(matches):
        end = matches[index + 1].start() if index + 1 < len(matches) else len(line)
        rest = line[match.end() : end]
        given = GIVEN.search(rest)
        if not FIGURE.search(rest) and not (given and given[1].strip()):
            found.append(match[0])
    return found


def anchor(heading):
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def dead_links(document):
    """The links of a document to files and headings of the repository that are not there."""
    found = []
    for number, line in enumerate(prose(document.read_text()), start=1):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", line):
            file, _, name = link.partition("#")
            target = document.parent / file if file else document
            if not target.exists():
                found.append(f"{number}: {link}")
            elif name:
                lines = target.read_text().splitlines()
                headings = {anchor(one.lstrip("#")) for one in lines if one.startswith("#")}
                if name not in headings:
                    found.append(f"{number}: {link}")
    return found


def relative(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_every_block_of_the_document_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_document(document.read_text(), relative(document), tmp_path)


def test_every_block_says_what_it_is():
    unknown = [
        f"{relative(document)}:{block.line}: {block.language!r}"
        for document in DOCUMENTS
        for block in blocks(document.read_text())
        if block.language not in RUN | SHOWN
    ]
    assert not unknown, f"known languages: {sorted(RUN | SHOWN)}"


def test_few_blocks_are_not_run_and_each_says_why():
    exempt = [block for path in DOCUMENTS for block in blocks(path.read_text()) if block.no_run]
    silent = [
        block for path in DOCUMENTS for block in blocks(path.read_text()) if block.no_run == ""
    ]
    assert not silent
    assert len(exempt) <= MAX_EXEMPT_BLOCKS


@pytest.mark.parametrize("document", FIGURE_DOCUMENTS, ids=relative)
def test_every_figure_is_the_one_that_was_measured(document):
    faults = [
        f"{relative(document)}:{number}: {fault}"
        for number, line in enumerate(prose(document.read_text()), start=1)
        for fault in figure_faults(line, ROOT)
    ]
    assert not faults


@pytest.mark.parametrize("name", report.QUOTING)
def test_every_measured_number_names_its_source(name):
    found = [
        f"{name}:{number}: {text}"
        for number, line in enumerate(prose((ROOT / name).read_text()), start=1)
        for text in unsourced(line)
    ]
    assert not found


@pytest.mark.parametrize("document", LINKING, ids=relative)
def test_every_link_leads_somewhere(document):
    assert dead_links(document) == []


# The checks themselves: a check that lets everything through looks just like one that holds.


def test_a_block_that_fails_is_noticed(tmp_path):
    for block in (
        "```python\n1 / 0\n```\n",
        "```console\n$ exit 3\n```\n",
        "```bash\nfalse | true\n```\n",
        "```console\n$ echo 5 rows\n6 rows\n```\n",
        "```console\n$ make nothing\n```\n",
        "```console\n$ pip install 'mmreplay[nothing]'\n```\n",
    ):
        with pytest.raises((AssertionError, ZeroDivisionError)):
            run_document(block, "block", tmp_path)


def test_blocks_share_a_namespace_and_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = """
```python
word = "seen"
```

<!-- no-run: it would fail -->

```python
raise SystemExit
```

1. In a list:

   ```python
   if word:
       word += " twice"
   ```

```console
$ echo one \\
    two > file
$ cat file; echo three; echo four
one two
...
four
```

```python
from pathlib import Path
assert word == "seen twice" and Path("file").read_text() == "one two\\n"
```
"""
    run_document(document, "document", tmp_path)
    assert [block.no_run for block in blocks(document)] == [
        None,
        "it would fail",
        None,
        None,
        None,
    ]


def test_shown_output_must_be_what_is_printed():
    printed = "first  1\n\nsecond 2\nthird 3.5 s\n"
    for good in ("first 1\n...\nthird ... s", "...\nfirst 1\n\nsecond 2\nthird 3.5 s\n...", "..."):
        assert matches(good, printed), good
    for bad in ("first 1", "...\nsecond 2", "first 1\nthird 3.5 s", "first 1\n...\nthird s"):
        assert not matches(bad, printed), bad


def test_a_figure_must_be_rounded_from_its_result(tmp_path):
    (tmp_path / "sample.json").write_text('{"raw": {"ratio": 1.849, "times_s": [0.0000421]}}')
    good = "1.8x<!-- figure: sample.json:raw.ratio -->"
    time = "42.1 us <!--figure:sample.json:raw.times_s.0*1e6-->"
    assert figure_faults(f"| raw | {good} | {time} |", tmp_path) == []
    for bad in (
        "1.9x<!-- figure: sample.json:raw.ratio -->",
        "1.8<!-- figure: sample.json:raw.nothing -->",
        "1.8<!-- figure: nothing.json:raw.ratio -->",
        "fast<!-- figure: sample.json:raw.ratio -->",
        "1.8<!-- figure: sample.json:raw -->",
        f"{good} and more <!-- figure: sample.json:raw.ratio -->",
    ):
        assert len(figure_faults(bad, tmp_path)) == 1, bad


def test_a_figure_stays_to_come_only_until_it_is_measured(tmp_path):
    line = f"{TO_COME} kills<!-- figure: kills.json:figures.kills.median -->"
    assert figure_faults(line, tmp_path) == []
    (tmp_path / "kills.json").write_text('{"figures": {"kills": {"median": 200}}}')
    assert len(figure_faults(line, tmp_path)) == 1
    assert figure_faults(line.replace(TO_COME, "200"), tmp_path) == []


def test_a_link_that_leads_nowhere_is_noticed(tmp_path):
    (tmp_path / "other.md").write_text("# Other\n\n## What is *not*, and why\n")
    document = tmp_path / "document.md"
    document.write_text(
        "# One two\n[a](other.md) [b](#one-two) [c](other.md#what-is-not-and-why)\n"
        "[d](https://example.org/none) `[e](none.md)`\n[f](none.md) [g](#three) [h](other.md#one-two)\n"
    )
    assert dead_links(document) == ["4: none.md", "4: #three", "4: other.md#one-two"]


def test_a_measured_number_needs_a_source():
    assert unsourced("raw 1.8x, lz4 at 60 % and 4.1 us, 12,000 steps/s") == [
        "1.8x",
        "60 %",
        "4.1 us",
        "12,000 steps/s",
    ]
    assert unsourced("1.8x<!-- figure: a.json:b --> and 2-3x") == ["3x"]
    assert unsourced("at most 2 % <!-- given: the limit that a test holds -->") == []
    assert unsourced("at most 2 % <!-- given: -->") == ["2 %"]
    assert unsourced("84x84 frames, Python 3.11, 8 envs, zarr v3, kill -9, 1,000,000 rows") == []
    assert prose("a `1.8x` b\n```text\n2x\n```\n") == ["a  b", "", "", ""]
