"""The part of benchmarks/README.md about other libraries, made of `results/peers.json`."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from benchmarks.peers.catalogue import Entry, named
from benchmarks.report import cell, row_lines

__all__ = ["PLOTS", "digest", "section"]

PLOTS = {
    "speed": (
        "peers-speed.svg",
        "Batches of 32 a second, by the bytes that a transition is kept in",
    ),
    "limits": ("peers-limits.svg", "Batches of 32 a second, by the data in units of memory"),
}
_INTRODUCTION = """\
Each library works in a process of its own, set up as its own documents say for the least memory, on
the same steps of Breakout: every batch that was checked holds the bytes of those steps, but for the
differences listed below. They take turns, run by run. "By hand" is a replay buffer that the
benchmark has written around a library of arrays or files; "ahead" makes two batches ahead. Nobody
reuses the arrays of a batch. `make bench-peers` installs and runs all of it, for twenty minutes
and with some 5 GB of disk; with `ARGS=--quick` it shows that it works.
"""
_TABLES: tuple[tuple[str, str, tuple[tuple[str, str], ...], str], ...] = (
    (
        "Sampling from other libraries",
        "Batches of stacks of 4 frames, and of vectors of 17 float32; us, and times that of raw.",
        (
            ("sample 32", "32"),
            ("sample 32, by raw", "by raw"),
            ("sample 256", "256"),
            ("vectors, sample 32", "32 vectors"),
            ("vectors, sample 256", "256 vectors"),
        ),
        "sampling",
    ),
    (
        "Adding to other libraries",
        (
            "us a step of one environment with frames, and of 256 environments with vectors, timed "
            "once while each library is filled."
        ),
        (
            ("append, median", "median"),
            ("append, mean", "mean"),
            ("vectors, append 256", "256 environments, mean"),
        ),
        "adding",
    ),
    (
        "A training loop on other libraries",
        (
            "ms of a turn: four steps added, a batch of 32, and a consumer that computes for 1 or "
            "5 ms, in one thread."
        ),
        (("loop, 1 ms", "1 ms"), ("loop, 5 ms", "5 ms")),
        "training",
    ),
    (
        "Memory and files of other libraries",
        (
            "MB, looked at once. Anonymous memory and mapped files are what came since the process "
            "had imported everything; the system can take back what is mapped. A transition's "
            "bytes are those of the memory, or of the files, that it is kept in."
        ),
        (
            ("anonymous", "anonymous"),
            ("mapped", "mapped"),
            ("whole process", "whole process"),
            ("disk", "files"),
            ("bytes a transition", "bytes a transition"),
        ),
        "keeping",
    ),
    (
        "Saving, being killed, opening again",
        (
            "A save (s), more steps, `kill -9`, and a new process that opens what is left (ms) and "
            "samples for the first time (ms); all of it once. Only the saves of mmreplay and "
            "numpy.memmap wait for the disk; flashbax compiles before its first batch. Lost is "
            "what was added and cannot be sampled."
        ),
        (
            ("save", "save"),
            ("open", "open"),
            ("first batch", "first batch"),
            ("lost by a kill", "lost transitions"),
        ),
        "opening",
    ),
)
_LIMIT = re.compile(r": limit, (?P<ratio>[\d.]+) times the memory$")


def section(document: Mapping[str, Any], heading: Sequence[str]) -> str:
    """Its tables, plots and bounds, below the lines of a heading."""
    figures = {one["what"]: one for one in document["figures"].values()}
    libraries = [named(name) for name in document["details"]["libraries"]]
    lines = [*heading, _INTRODUCTION]
    for name, words in PLOTS.values():
        lines += [f"![{words}](results/{name})", ""]
    for title, words, columns, why in _TABLES:
        lines += [f"### {title}", "", fill(words, 100), ""]
        lines += [*_table(figures, libraries, columns, why), ""]
    lines += [*_limits(document, figures, libraries)]
    lines += ["### In what batches differ", ""]
    told: dict[str, list[str]] = {}
    for one in libraries:
        told.setdefault(one.differs, []).append(one.name)
    lines += [
        fill(f"- {', '.join(names)}: {words}.", 100, subsequent_indent="  ")
        for words, names in told.items()
        if words
    ]
    shown = {name: {"": one} for name, one in figures.items() if not _is_of(name, libraries)}
    lines += ["", "### What is to be shown", "", *row_lines(shown), ""]
    return "\n".join(lines)


def _is_of(what: str, libraries: Sequence[Entry]) -> bool:
    return any(what.startswith(f"{one.name}: ") for one in libraries)


def _table(
    figures: Mapping[str, Any],
    libraries: Sequence[Entry],
    columns: Sequence[tuple[str, str]],
    why: str,
) -> list[str]:
    heads = [*(words for _, words in columns), *(["why"] if why else [])]
    lines = [
        f"| | {' | '.join(heads)} |",
        "|---|" + "---:|" * len(columns) + ("---|" if why else ""),
    ]
    for one in libraries:
        there = [figures.get(f"{one.name}: {name}") for name, _ in columns]
        if any(there):
            cells = [_cell(figure) for figure in there]
            reason = [getattr(one, why)] if why else []
            lines.append(f"| {' | '.join([one.name, *cells, *reason])} |")
    return lines


def _cell(figure: Mapping[str, Any] | None) -> str:
    """Without the unit, which stands above the table."""
    return "" if figure is None else cell(figure, [figure["unit"], "", ""])


def _limits(
    document: Mapping[str, Any], figures: Mapping[str, Any], libraries: Sequence[Entry]
) -> list[str]:
    ratios = list(dict.fromkeys(at["ratio"] for what in figures if (at := _LIMIT.search(what))))
    lines = ["### Sampling with less memory than data", ""]
    if not ratios:
        return [
            *lines,
            f"Not measured: {document['details'].get('limits', 'it was left out')}.",
            "",
        ]
    words = (
        "Batches of 32 a second, in a process that may take as much memory, beside that of its "
        "imports, as the raw frames divided by the number above the column. What is in files "
        "begins outside the page cache. Each figure is of one process, which samples for "
        f"{document['settings']['limited_s']:g} s; one with a range behind it is the median of "
        "several processes, in turns."
    )
    columns = [(f"limit, {ratio} times the memory", f"data / memory {ratio}") for ratio in ratios]
    return [*lines, fill(words, 100), "", *_table(figures, libraries, columns, "limited"), ""]


def digest(document: Mapping[str, Any]) -> str:
    """Of the figures, which the plots carry so that a test sees of which results they are made."""
    text = json.dumps(document["figures"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
