"""`plot`: returns and lengths over time, rewards and actions, of one store or several together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import MissingExtraError, SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Ids
from mmreplay.reading.store import Store, open_store
from mmreplay.rendering import histograms
from mmreplay.rendering.episode import action_names
from mmreplay.rendering.histograms import Numbers, Tally, drawable
from mmreplay.rendering.new_file import checked_path, new_file
from mmreplay.system import user_paths
from mmreplay.system.disk_errors import writing

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError('curves need matplotlib: pip install "mmreplay[pictures]"') from error

SUFFIXES = (".svg", ".png")
MOST_STORES = 10
"""As many as there are colours that can be told apart."""

_MOST_BARS = 24
_LEAST_BARS = 4
"""Fewer leave the rest of the room empty, and are not as wide as the figure."""
_POINTS = 25
_LEAST_EPISODES = 5
"""A running mean is over a 25th of the episodes, and over five at least."""
_INKS = [f"C{number}" for number in range(MOST_STORES)]
_STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "text.parse_math": False,  # a $ in a name is a $
    "svg.fonttype": "none",
    "svg.hashsalt": "mmreplay",  # the same data, the same file
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Shown:
    """One store: its label, colour, and the episodes that ended, by when they did.

    steps: (E,) transitions collected when each ended; returns and lengths: (E,).
    """

    store: Store
    name: str
    ink: str
    steps: Ids
    returns: Numbers
    lengths: Ids


def plot(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Figure:
    """Draw returns and episode lengths over time, and how often rewards and actions occur.

    Several stores are drawn into the same axes. Only episodes that ended have a return and a
    length; time counts the transitions of all lanes, which are taken to have been recorded side by
    side, from the oldest that is kept.

    Args:
        paths: a store or several, closed or live.
        out: a file to make, whose name ends in .svg or .png; None makes none.
        progress: called with transitions counted and transitions in all.

    Returns:
        The figure, which a notebook shows.

    Raises:
        SchemaError: no store, too many, or another format.
        StoreNotFoundError: no store there, or no directory above `out`.
        StoreExistsError: `out` exists.
        CorruptStoreError: numbers that cannot be read.
        DiskFullError, FailedStoreError: it cannot be written. Nothing is left behind, after any
            error.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not 1 <= len(given) <= MOST_STORES:
        raise SchemaError(f"paths: expected 1 to {MOST_STORES} stores, found {len(given)}")
    target = None if out is None else checked_path(out, SUFFIXES)
    with contextlib.ExitStack() as opened:
        stores = [opened.enter_context(open_store(path)) for path in given]
        labels = _labels([user_paths.as_path(path) for path in given])
        shown = [
            _shown(store, label, ink)
            for store, label, ink in zip(stores, labels, _INKS, strict=False)
        ]
        with mpl.rc_context(_STYLE), warnings.catch_warnings():
            # A name may have letters that the font has not.
            warnings.filterwarnings("ignore", message="Glyph")
            figure = _figure(shown, _Told(stores, progress))
            if target is not None:
                _save(figure, target)
    return figure


def _save(figure: Figure, target: Path) -> None:
    kind = target.suffix.lower().removeprefix(".")
    # Without the date, which an SVG has by itself.
    about: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 150}
    with new_file(target) as staged, writing("writing a picture", staged):
        figure.savefig(staged, format=kind, **about)


class _Told:
    """What has been counted: rewards and actions of each transition, and once more for bins."""

    def __init__(
        self, stores: Sequence[Store], progress: Callable[[int, int], None] | None
    ) -> None:
        self._total = 2 * sum(map(len, stores))
        self._done = 0
        self._progress = progress

    def add(self, n: int) -> None:
        self._done = min(self._done + n, self._total)
        if self._progress is not None:
            self._progress(self._done, self._total)


def _labels(paths: Sequence[Path]) -> list[str]:
    names = [path.name for path in paths]
    full = [str(path) for path in paths]
    return [
        "".join(one if one.isprintable() else "?" for one in text)
        for text in (full if len(set(names)) < len(names) else names)
    ]


def _shown(store: Store, name: str, ink: str) -> _Shown:
    episodes = store.episodes
    episodes = episodes[store.endings(episodes) != "open"]
    widths = np.array([lane.environments for lane in store.lanes], np.int64)
    lanes, rows = episodes["id"] >> LANE_SHIFT, episodes["id"] & ROW_MASK
    # By when they ended, each lane with a clock of its own.
    ends = rows // widths[lanes] + episodes["length"]
    episodes = episodes[np.argsort(ends, kind="stable")]
    lengths = episodes["length"].astype(np.int64)
    return _Shown(
        store, name, ink, np.cumsum(lengths), episodes["return"].astype(np.float64), lengths
    )


# ---------------------------------------------------------------- drawing


def _figure(shown: Sequence[_Shown], told: _Told) -> Figure:
    figure = Figure(figsize=(9, 6), layout="constrained")
    (returns, lengths), (rewards, actions) = figure.subplots(2, 2)
    for one in shown:
        _curve(returns, one, one.returns)
        _curve(lengths, one, one.lengths.astype(np.float64))
    for axes, title in ((returns, "return of an episode"), (lengths, "steps of an episode")):
        axes.set_title(title)
        axes.set_xlabel("transitions")
        axes.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
        if not any(len(one.steps) for one in shown):
            _say(axes, "no whole episode has ended")
    _distribution(rewards, shown, "rewards", [], told)
    _distribution(actions, shown, "actions", _shared_names(shown), told)
    if len(shown) > 1:
        handles = [mpl.lines.Line2D([], [], color=one.ink, linewidth=3) for one in shown]
        figure.legend(
            handles, [one.name for one in shown], loc="outside upper center", ncols=3, frameon=False
        )
    else:
        figure.suptitle(shown[0].name)
    return figure


def _say(axes: Axes, words: str) -> None:
    """Words in the place of a picture: an axis without values would have numbers of no meaning."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)


def _curve(axes: Axes, one: _Shown, values: Numbers) -> None:
    """A dot for each episode, and their running mean."""
    here = np.isin(values, drawable(values))
    steps, values = one.steps[here], values[here]
    if not len(values):
        return
    dots: Any = {"markersize": 4, "markeredgewidth": 0, "alpha": 0.4}
    axes.plot(steps, values, "o", color=one.ink, rasterized=len(values) > 2_000, **dots)  # noqa: PLR2004
    n = max(len(values) // _POINTS, _LEAST_EPISODES)
    sums = np.cumsum(np.concatenate(([0.0], values)))
    starts = np.maximum(np.arange(1, len(values) + 1) - n, 0)
    means = (sums[1:] - sums[starts]) / (np.arange(1, len(values) + 1) - starts)
    axes.plot(steps, means, color=one.ink, linewidth=1.8)


def _distribution(
    axes: Axes, shown: Sequence[_Shown], path: str, names: Sequence[str], told: _Told
) -> None:
    """The share of each value among the transitions: as bars, or as steps over bins."""
    tallies = []
    for one in shown:
        tally = Tally()
        for block in histograms.blocks_of(one.store, path, lambda n: told.add(n // 2)):
            tally.add(block)
        tallies.append(tally)
    fields = [one.store.schema.columns()[path] for one in shown]
    parts = ", all parts together" if any(field.shape for field in fields) else ""
    axes.set_title(f"{path}: share of transitions{parts}")
    if not any(np.isfinite(one.low) for one in tallies):
        _say(axes, "no transition")
        return
    values = histograms.shared_values(tallies, _MOST_BARS)
    if values is not None:
        shares = [histograms.shares_of_values(tally, values) for tally in tallies]
        _bars(axes, shown, shares, [_label(value, names) for value in values.tolist()])
    else:
        edges = histograms.shared_edges(tallies)
        shares = []
        for one in shown:
            blocks = histograms.blocks_of(one.store, path, lambda n: told.add(n // 2))
            shares.append(histograms.shares_in_bins(blocks, edges))
            axes.stairs(shares[-1], edges, color=one.ink, fill=len(shown) == 1, linewidth=1.4)
    if path == "rewards":  # most of them are 0, and the others are what matters
        axes.set_yscale("log")
        axes.set_ylim(min(one[one > 0].min(initial=0.1) for one in shares) / 2, 1.2)
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=None))


def _bars(
    axes: Axes, shown: Sequence[_Shown], shares: Sequence[Numbers], labels: Sequence[str]
) -> None:
    places = np.arange(len(labels))
    around = max(_LEAST_BARS - len(labels), 0) / 2 + 0.6
    axes.set_xlim(-around, len(labels) - 1 + around)
    width = 0.8 / len(shown)
    for number, (one, heights) in enumerate(zip(shown, shares, strict=True)):
        shift = (number - (len(shown) - 1) / 2) * width
        axes.bar(places + shift, heights, width, color=one.ink)
    is_long = sum(map(len, labels)) > 40  # noqa: PLR2004 (letters across half the figure)
    turned: Any = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
    axes.set_xticks(places, labels, **turned)


def _label(value: float, names: Sequence[str]) -> str:
    is_named = value.is_integer() and 0 <= value < len(names)
    text = names[int(value)] if is_named else f"{value:.6g}"
    return "".join(one if one.isprintable() else "?" for one in text)


def _shared_names(shown: Sequence[_Shown]) -> list[str]:
    """What all of the stores call the actions; none if they differ."""
    scalar = all(one.store.schema.action.shape == () for one in shown)
    names = [action_names(one.store) for one in shown]
    return names[0] if scalar and all(one == names[0] for one in names) else []
