"""Figures in documents, made of the results: the page of benchmarks, and what others quote."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import load

__all__ = ["SUBJECTS", "cell", "documents", "quoted", "render", "row_lines", "table"]

_GAMES = r"^(?P<column>mspacman|breakout)[:,] "
_CODECS = r"(?:^|, )(?P<column>raw|lz4|zstd)(?P<keep>: )"
_WIDTHS = r"^(?P<column>[0-9,]+ environments): "
_SEEN = r"^(?P<column>(?:84x84|64x64x3|3x224x224), (?:follows the ball|random)): "
_LENGTHS = r"^(?P<column>[0-9,]+ rows(?: in [0-9,]+ stores)?|long by short): "
SUBJECTS = {  # title, and which part of a figure's name is the head of its column
    "sample": ("Sampling", _GAMES),
    "vectors": ("Sampling vectors", r"(?:, beside )?(?P<column>stack=\w+)(?:, )?"),
    "sequences": ("Sampling sequences", _GAMES),
    "windows": ("Sampling windows of columns", _GAMES),
    "statistics": ("Statistics", r"(?!)"),
    "ahead": ("Reading ahead", _GAMES),
    "epochs": ("Epochs", _GAMES),
    "training": ("Epochs of tensors, 256 transitions of 4 + 4 frames", _GAMES),
    "stable_baselines3": ("In stable-baselines3", _GAMES),
    "prioritized": (
        "Prioritized sampling",
        r", (?P<column>100,000 rows|10,000,000 rows|many by few)$",
    ),
    "columns": ("Derived columns", _GAMES),
    "append": ("Appending", _CODECS),
    "vector_append": ("Appending, many environments", _WIDTHS),
    "vector_open": ("Opening and sampling, many environments", _WIDTHS),
    "record": ("Recording", _GAMES),
    "record_experience": ("Recording in a loop of your own", r"^(?P<column>[^:]+): "),
    "disk": ("Disk", _GAMES),
    "open": ("Opening", r"^(?P<column>(?:closed|killed), \w+, \w+ (?:lanes?|environments)): "),
    "memory": ("Memory", _CODECS),
    "pack": ("Packing", _GAMES),
    "exchange": ("Import and export", r"^(?P<column>frames|vectors): "),
    "view": ("The page of a store", r"(?!)"),
    "scale": ("Long stores", _LENGTHS),
    "defaults": ("Codecs and lengths of chunks", _SEEN),
    "before": ("Before and after", r", (?P<column>before|now|now by before)$"),
}
_CALLED = {"mspacman": "Ms. Pac-Man", "breakout": "Breakout"}

_HEAD = """\
# Benchmarks

This page is made by `python -m benchmarks report` from the files in `results/`, which hold more
than it shows. A figure is the median of several runs, with the lowest..highest run behind it; one
without them was measured once, or was the same each time. What is compared is timed in turns, in
one process. ≤ and ≥ are bounds that the median was held against; one that does not hold stands here
like any other. Every benchmark checks that what it timed was right.

    python -m benchmarks                  all of it: about an hour, 12 GB of disk
    python -m benchmarks sample append    some of it
    python -m benchmarks --quick          seconds: shows that they work, measures nothing
    python -m benchmarks report           writes this page, and the figures in other documents
    make bench-peers                      other libraries, in an environment of their own

R is the time of one `np.take` of a batch's (32, 5) frames of 84x84 bytes from an array in memory
into an array that is kept: no sampler can be faster than that. "A by B" is A divided by B. Games
are recorded with eight environments, frame skip 4, gray, and a random policy.
"""


def render(results: Path) -> str:
    """The page of all results in a folder."""
    found = [load(path) for subject in SUBJECTS if (path := results / f"{subject}.json").exists()]
    shared = _setup(found[0]) | {key: at for one in found for key, at in _setup(one).items()}
    parts = [_section(one, shared) for one in found]
    if (path := results / "peers.json").exists():
        from benchmarks.peers import page  # which makes tables as this module does

        document = load(path)
        parts.append(page.section(document, _heading("Beside other libraries", document, shared)))
        found.append(document)
    return "\n".join([_HEAD, _verdict(found), f"Measured on: {_listed(shared)}.\n", *parts])


def _setup(document: Mapping[str, Any]) -> dict[str, str]:
    """Machine and versions: what two results should have in common to be compared."""
    machine = document["machine"]
    return {
        "processor": machine["processor"],
        "cores": f"{machine['cores']} cores",
        "memory": f"{machine['memory_gib']} GiB",
        "system": machine["system"],
        "file system": machine["filesystem"],
    } | {name: f"{name} {version}" for name, version in document["versions"].items()}


def _listed(setup: Mapping[str, str]) -> str:
    return ", ".join(setup.values())


def _verdict(found: list[dict[str, Any]]) -> str:
    figures = [one for document in found for one in document["figures"].values()]
    bound = [one for one in figures if one["bound"] is not None]
    missed = [one for one in bound if not one["holds"]]
    slower = [
        one
        for one in figures
        if re.search(r"by (cpprb|numpy)'s", one["what"]) and one["median"] > 1
    ]
    lines = [f"{len(bound) - len(missed)} of {len(bound)} bounds hold."]
    if missed:
        lines += ["", "Those that do not:", ""]
        lines += [f"- {one['what']}: {_value(one)}, bound {_bound(one)}" for one in missed]
    if slower:
        lines += ["", "Slower than cpprb or numpy beside it:", ""]
        lines += [f"- {one['what']}: {_value(one)}" for one in slower]
    return "\n".join([*lines, ""])


def _section(document: Mapping[str, Any], shared: Mapping[str, str]) -> str:
    title, column_of = SUBJECTS[document["subject"]]
    lines = _heading(title, document, shared)
    side_by_side: dict[str, dict[str, dict[str, Any]]] = {}
    alone: dict[str, dict[str, dict[str, Any]]] = {}
    for one in document["figures"].values():
        if part := re.search(column_of, one["what"]):
            row = re.sub(column_of, r"\g<keep>" if "keep" in part.groupdict() else "", one["what"])
            side_by_side.setdefault(row.removeprefix(": "), {})[part["column"]] = one
        else:
            alone[one["what"]] = {"": one}
    for rows in filter(None, (side_by_side, alone)):
        lines += [*row_lines(rows), ""]
    return "\n".join(lines)


def _heading(title: str, document: Mapping[str, Any], shared: Mapping[str, str]) -> list[str]:
    """Of the part about one result: when and where it was measured."""
    where = f"`results/{document['subject']}.json`, {document['date']}."
    if others := document["percent_used_by_others"]:
        where += f" Others used {others:.0f} % of the machine meanwhile."
    if other := {key: at for key, at in _setup(document).items() if at != shared.get(key)}:
        where += f" Measured on: {_listed(other)}."
    lines = [f"## {title}", "", where, ""]
    if document["settings"].get("name") != "full":
        lines += ["**Quick: these figures mean nothing.**", ""]
    return lines


def row_lines(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """A table; a column for each name that figures of a row are told apart by.

    What holds for all figures of a row stands at its end, and what does not in their cells.
    """
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    heads = [_CALLED.get(name, name) or "median" for name in columns]
    lines = [f"| | {' | '.join([*heads, ''])} |", "|---|" + "---:|" * len(columns) + "---|"]
    for what, row in rows.items():
        remarks = [[one["unit"], _bound(one), one["note"]] for one in row.values()]
        shared = [texts[0] if len(set(texts)) == 1 else "" for texts in zip(*remarks, strict=True)]
        cells = [cell(row[name], shared) if name in row else "" for name in columns]
        lines.append(f"| {' | '.join([what, *cells, '; '.join(filter(None, shared))])} |")
    return lines


def cell(one: Mapping[str, Any], shared: list[str]) -> str:
    """A figure, with its unit, bound and note unless they are among `shared`."""
    unit, bound, note = (
        "" if text in shared else text for text in (one["unit"], _bound(one), one["note"])
    )
    cell = f"{_plain(one['median'])} {unit}".strip()
    if one["low"] != one["high"]:
        cell += f" ({_plain(one['low'])}..{_plain(one['high'])})"
    cell = "; ".join(filter(None, [cell, bound, note]))
    return f"**{cell}; missed**" if one["holds"] is False else cell


def _value(one: Mapping[str, Any]) -> str:
    return f"{_plain(one['median'])} {one['unit']}"


def _bound(one: Mapping[str, Any]) -> str:
    if one["bound"] is None:
        return ""
    return f"{'≥' if one['at_least'] else '≤'} {_plain(one['bound'])}"


def _plain(number: float) -> str:
    """Three digits, and never an exponent."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"


# Figures in other documents.

BEGIN, END = "<!-- figures: python -m benchmarks report -->\n", "<!-- end of figures -->\n"
_ROWS = (  # what, mmreplay, beside it; {file:figure} is a median with its unit
    (
        "120,000 steps on disk, lz4: Breakout; Ms. Pac-Man",
        "{disk:breakout-lz4-on-disk}; {disk:mspacman-lz4-on-disk}",
        "{disk:breakout-raw-frames}; {disk:mspacman-raw-frames}, frames uncompressed",
    ),
    (
        "a batch of 32 stacks of 4, raw frames on disk",
        "{sample:beside-it-one-writer-raw-without-out}",
        "{sample:stable-baselines3-replaybuffer-sample-32-from-ram}, stable-baselines3, memory",
    ),
    (
        "a batch from lz4; from zstd (arrays reused)",
        (
            "{sample:mspacman-one-writer-lz4-n-step-1-a-batch}; "
            "{sample:mspacman-one-writer-zstd-n-step-1-a-batch}"
        ),
        "{sample:mspacman-r}, numpy copies its frames in memory",
    ),
    (
        "by priority: a batch, raw; updating 32 of a million",
        (
            "{prioritized:mspacman-40-000-rows-a-batch-of-32-with-stacks-of-4-without-out}; "
            "{prioritized:1-000-000-rows-update-of-32}"
        ),
        (
            "{prioritized:mspacman-40-000-rows-a-batch-of-32-with-stacks-of-4-cpprb}; "
            "{prioritized:1-000-000-rows-update-of-32-cpprb}, cpprb, memory"
        ),
    ),
    (
        "one step at full speed, mean: lz4; raw",
        "{append:lz4-mean}; {append:raw-mean}",
        "{append:stable-baselines3-replaybuffer-add-full-mean}, stable-baselines3, memory",
    ),
    (
        "eight Breakout environments, recorded",
        "{record:breakout-recorded}",
        "{record:breakout-nothing-recorded}, not recorded",
    ),
    (
        "opening a million rows, lz4: closed; after a kill",
        "{open:closed-lz4-one-lane-open}; {open:killed-lz4-one-lane-open-for-reading}",
        "",
    ),
    (
        (
            "committed rows lost in {kill_recording:kills} kills; "
            "promises broken in {simulator:power-cuts} simulated power cuts"
        ),
        "{kill_recording:committed-rows-lost}; {simulator:violations}",
        "",
    ),
)
_QUOTE = re.compile(r"\{(?P<subject>\w+):(?P<key>[\w-]+)\}")


def documents(root: Path) -> dict[Path, str]:
    """The documents that show figures, as they should be by the results under `root`.

    Raises:
        LookupError: docs/performance.md has no block for them, or a result lacks a figure.
    """
    page = root / "docs" / "performance.md"
    made = {
        path: quoted(path.read_text(encoding="utf-8"), root)
        for path in (root / "README.md", *(root / "docs").rglob("*.md"))
    }
    before, begin, rest = made[page].partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LookupError(f"{page} has no lines {BEGIN.strip()} and {END.strip()}")
    return {
        root / "benchmarks" / "README.md": render(root / "benchmarks" / "results"),
        **made,
        page: before + begin + table(root) + end + after,
    }


def table(root: Path) -> str:
    """The few figures of docs/performance.md, each with the file that it comes from."""
    lines = ["", "| | mmreplay | beside it | results |", "|---|---:|---|---|"]
    machines = {}
    for row in _ROWS:
        files = [_file(root, subject) for subject, _ in _QUOTE.findall(" ".join(row))]
        links = [f"[{file.name}](../{file.relative_to(root).as_posix()})" for file in files]
        cells = [_QUOTE.sub(lambda at: _median(root, *at.groups()), cell) for cell in row]
        lines.append(f"| {' | '.join([*cells, ', '.join(dict.fromkeys(links))])} |")
        timed = [file for file in files if file.stem in SUBJECTS]
        machines |= {_machine(load(file)["machine"]): None for file in timed}
    lines += ["", "Times are medians of several runs, with the files in the page cache, on"]
    return "\n".join([*lines, f"{'; '.join(machines)}.", ""])


def _machine(machine: Mapping[str, Any]) -> str:
    names = ("processor", "cores", "system", "filesystem")
    return "{}, {} cores, {}, {}".format(*(machine[name] for name in names))


def _file(root: Path, subject: str) -> Path:
    folder = "benchmarks" if subject in SUBJECTS else "tests/crash"
    return root / folder / "results" / f"{subject}.json"


def _median(root: Path, subject: str, key: str) -> str:
    return _value(load(_file(root, subject))["figures"][key]).strip()


_FIGURE = re.compile(
    r"(?P<number>-?\d[\d,.]*)(?P<unit>[^\d<|]*)"
    r"(?P<mark><!-- figure: (?P<file>[^\s:]+):(?P<key>\S+)(?: \* (?P<factor>\S+))? -->)"
)


def quoted(text: str, root: Path) -> str:
    """Markdown with each number that has a figure comment behind it taken from the results.

    Raises:
        LookupError: a file of results without that figure.
    """

    def newest(found: re.Match[str]) -> str:
        value: Any = json.loads((root / found["file"]).read_text(encoding="utf-8"))
        try:
            for part in found["key"].split("."):
                value = value[int(part)] if isinstance(value, list) else value[part]
        except LookupError as error:
            raise LookupError(f"{found['file']} has no {found['key']}") from error
        return _plain(value * float(found["factor"] or 1)) + found["unit"] + found["mark"]

    return _FIGURE.sub(newest, text)
