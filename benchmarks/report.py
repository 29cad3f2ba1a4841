"""The table of benchmarks/README.md, made of the results; figures that documents quote of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.results import load

__all__ = ["QUOTING", "SUBJECTS", "render", "with_figures", "write"]

QUOTING = ("README.md", "docs/reliability.md")
"""The documents that quote figures, by path from the root."""

SUBJECTS = {
    "sample": "Sampling",
    "vectors": "Sampling vectors",
    "sequences": "Sampling sequences",
    "prioritized": "Prioritized sampling",
    "append": "Appending",
    "record": "Recording",
    "disk": "Disk",
    "open": "Opening",
    "memory": "Memory",
    "before": "Before and after",
}

_HEAD = """\
# Benchmarks

This page is made by `python -m benchmarks report` from the files in `results/`; each figure is the
median of several runs, with the lowest and the highest run behind it. What is compared is timed in
turns, in one process. A bound is what the figure was held against; one that does not hold stands
here like any other. Every benchmark checks that what it timed was right.

    python -m benchmarks                  all of it: about an hour, 12 GB of disk
    python -m benchmarks sample append    some of it
    python -m benchmarks --quick          seconds: shows that they work, measures nothing

R is the time of one `np.take` of a batch's (32, 5) frames of 84x84 bytes from an array in RAM into
an array that is kept: no sampler can be faster than that. Games are recorded with eight
environments, frame skip 4, gray, and a random policy.
"""


def render(results: Path) -> str:
    """The page."""
    documents = [
        load(path) for subject in SUBJECTS if (path := results / f"{subject}.json").exists()
    ]
    parts = [_HEAD, _verdict(documents)]
    parts += [_section(document) for document in documents]
    return "\n".join(parts)


def write(results: Path, page: Path) -> None:
    """Write the page anew, and the figures in the documents above it."""
    page.write_text(render(results), encoding="utf-8")
    print(page)
    root = page.parent.parent
    for document in (root / name for name in QUOTING):
        text = document.read_text(encoding="utf-8")
        document.write_text(with_figures(text, root), encoding="utf-8")
        print(document)


_FIGURE = re.compile(
    r"(?P<number>TODO-FIGURE|-?\d[\d,.]*)(?P<unit>[^\d<|]*)"
    r"(?P<mark><!-- figure: (?P<file>[^\s:]+):(?P<key>\S+)(?: \* (?P<factor>\S+))? -->)"
)


def with_figures(text: str, root: Path) -> str:
    """Markdown with each number that has a figure comment behind it taken from the results.

    A figure whose file is not there yet stays as it is: it is written TODO-FIGURE until then.

    Raises:
        LookupError: a file of results without that figure.
    """

    def newest(found: re.Match[str]) -> str:
        file = root / found["file"]
        if not file.exists():
            return found[0]
        value: Any = json.loads(file.read_text(encoding="utf-8"))
        try:
            for part in found["key"].split("."):
                value = value[int(part)] if isinstance(value, list) else value[part]
        except LookupError as error:
            raise LookupError(f"{found['file']} has no {found['key']}") from error
        return _plain(value * float(found["factor"] or 1)) + found["unit"] + found["mark"]

    return _FIGURE.sub(newest, text)


def _verdict(documents: list[dict[str, Any]]) -> str:
    figures = [one for document in documents for one in document["figures"].values()]
    bound = [one for one in figures if one["bound"] is not None]
    missed = [one for one in bound if not one["holds"]]
    lines = [f"{len(bound) - len(missed)} of {len(bound)} bounds hold."]
    if missed:
        lines += ["", "Those that do not:", ""]
        lines += [f"- {one['what']}: {_value(one)}, bound {_bound(one)}" for one in missed]
    return "\n".join([*lines, ""])


def _section(document: dict[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    where = (
        f"`results/{document['subject']}.json`, {document['date']}: {machine['processor']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, "
        f"{machine['filesystem']}; {packages}."
    )
    others = document["percent_used_by_others"]
    if others is not None:
        where += f" Others used {others:.0f} % of the machine meanwhile."
    lines = [
        f"## {SUBJECTS[document['subject']]}",
        "",
        where,
        "",
    ]
    if document["settings"].get("name") != "full":
        lines += ["**Quick: these figures mean nothing.**", ""]
    lines += ["| | median | lowest to highest run | bound | holds |", "|---|---:|---:|---:|---|"]
    for one in document["figures"].values():
        holds = {None: "", True: "yes", False: "**no**"}[one["holds"]]
        note = f" ({one['note']})" if one["note"] else ""
        lines.append(
            f"| {one['what']}{note} | {_value(one)} | {_plain(one['low'])} to "
            f"{_plain(one['high'])} | {_bound(one)} | {holds} |"
        )
    return "\n".join([*lines, ""])


def _value(one: dict[str, Any]) -> str:
    return f"{_plain(one['median'])} {one['unit']}"


def _bound(one: dict[str, Any]) -> str:
    if one["bound"] is None:
        return ""
    return f"{'at least' if one['at_least'] else 'at most'} {_plain(one['bound'])}"


def _plain(number: float) -> str:
    """Three digits, and never an exponent."""
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}"
