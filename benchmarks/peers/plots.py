"""The two plots of the page, as SVG files beside the results that they show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.catalogue import named
from benchmarks.peers.page import PLOTS, digest

__all__ = ["write"]

_COLOURS = {"ours": "#c2185b", "buffer": "#1565c0", "by hand": "#616161"}
_WIDE, _HIGH = 150, 15  # of a name, in dots
_DASHES = ("-", "--", ":", "-.")


def write(document: Mapping[str, Any], folder: Path) -> None:
    """Draw both into a folder."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mmreplay", "font.size": 9})
    _speed(document, folder)
    _limits(document, folder)


def _medians(document: Mapping[str, Any]) -> dict[str, float]:
    return {one["what"]: one["median"] for one in document["figures"].values()}


def _save(figure: Any, document: Mapping[str, Any], path: Path) -> None:
    # No date, and the results that it was made of: the same file from the same results.
    figure.savefig(path, metadata={"Date": None, "Description": digest(document)})
    text = path.read_text(encoding="utf-8")
    path.write_text("\n".join(map(str.rstrip, text.splitlines())) + "\n", encoding="utf-8")


def _name(axes: Any, labels: Mapping[str, tuple[float, float]]) -> None:
    """Write names right of their points, lower where another one stands in the way."""
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * (high / low) ** 0.3)  # room for them
    taken: list[tuple[float, float]] = []
    for name, point in sorted(labels.items(), key=lambda one: -one[1][1]):
        x, y = axes.transData.transform(point)
        place = y
        while any(abs(x - other) < _WIDE and abs(place - at) < _HIGH for other, at in taken):
            place -= 1
        taken.append((x, place))
        axes.annotate(
            name,
            point,
            (8, (place - y) * 72 / axes.figure.dpi - 3),
            textcoords="offset points",
            color=_COLOURS[named(name).kind],
            arrowprops={"arrowstyle": "-", "lw": 0.4, "shrinkA": 0, "shrinkB": 2},
        )


def _speed(document: Mapping[str, Any], folder: Path) -> None:
    """Batches a second against bytes a transition."""
    import matplotlib.pyplot as plt

    name, title = PLOTS["speed"]
    found = _medians(document)
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    labels = {}
    for library in document["details"]["libraries"]:
        x, y = found[f"{library}: bytes a transition"], 1e6 / found[f"{library}: sample 32"]
        axes.plot(x, y, "o", color=_COLOURS[named(library).kind])
        labels[library] = x, y
    axes.set(xscale="log", yscale="log", title=title)
    axes.set(xlabel="bytes a transition", ylabel="batches of 32 a second")
    axes.grid(visible=True, alpha=0.3)
    _name(axes, labels)
    _save(figure, document, folder / name)


def _limits(document: Mapping[str, Any], folder: Path) -> None:
    """Batches a second against data divided by memory; the kernel killed a line that ends."""
    import matplotlib.pyplot as plt

    name, title = PLOTS["limits"]
    found = _medians(document)
    ratios = document["settings"]["ratios"]
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    labels = {}
    for number, library in enumerate(document["details"]["libraries"]):
        points = [
            (ratio, rate)
            for ratio in ratios
            if (rate := found.get(f"{library}: limit, {ratio:g} times the memory"))
        ]
        if not points:
            continue
        colour, dashes = _COLOURS[named(library).kind], _DASHES[number % len(_DASHES)]
        axes.plot(*zip(*points, strict=True), "o", linestyle=dashes, color=colour)
        labels[library] = points[-1]
    axes.set(xscale="log", yscale="log", title=title)
    axes.set(xlabel="raw frames / memory", ylabel="batches of 32 a second")
    axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, alpha=0.3)
    _name(axes, labels)
    _save(figure, document, folder / name)
