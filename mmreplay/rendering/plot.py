"""`plot`: draw returns and lengths over time, rewards and actions, of one or several stores."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError, SchemaError, printable
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.reading.store import Store, open_store
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
MOST_STORES = 10  # the number of different colours

Numbers = npt.NDArray[np.float64]

_MOST_VALUES = 1_000_000
_LARGEST = 1e300  # matplotlib cannot draw larger values
_MOST_BARS = 24
_MOST_DOTS = 2_000  # in an SVG, more dots become a bitmap
_BINS = 60
_POINTS, _LEAST_EPISODES = 25, 5  # a running mean is over a 25th of the episodes, and at least five
_STYLE: Any = {
    "font.size": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "text.parse_math": False,  # a $ in a name is a $
    "svg.fonttype": "none",
    "svg.hashsalt": "mmreplay",  # the same data, the same file
}


class Curves(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as out, mpl.rc_context(_STYLE):
            self.savefig(out, format="png")
            return out.getvalue()


class _Shown(NamedTuple):
    """A store, its label and colour; (E,) of its ended episodes; (n,) rewards and actions."""

    name: str
    ink: str
    returns: Numbers
    lengths: Numbers
    columns: dict[str, Numbers]


def plot(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Figure:
    """Draw returns and lengths over time, rewards and actions, of stores on the same axes.

    Time is counted in transitions of all lanes, as if they had been recorded at the same time.
    Returns the figure, which a notebook shows.

    Args:
        paths: a store, several or a glob pattern; closed or live.
        out: the file to make, whose name ends in .svg or .png; None makes none.
        progress: called with stores read and stores in all.

    Raises:
        SchemaError: too many stores, or another format.
        StoreNotFoundError: no store there or given, or no directory above `out`.
        StoreExistsError: `out` exists.
        CorruptStoreError: numbers that cannot be read.
        DiskFullError, FailedStoreError: it cannot be written. No error leaves a file behind.
    """
    stores = user_paths.matching(paths, "paths")
    if len(stores) > MOST_STORES:
        raise SchemaError(f"paths: expected 1 to {MOST_STORES} stores, found {len(stores)}")
    target = None if out is None else checked_path(out, SUFFIXES)
    labels = [store.name for store in stores]
    if "" in labels or len(set(labels)) < len(labels):
        labels = [*map(str, stores)]
    shown = []
    for number, (path, label) in enumerate(zip(stores, labels, strict=True)):
        with open_store(path) as store:
            shown.append(_shown(store, printable(label), f"C{number}"))
        if progress is not None:
            progress(number + 1, len(stores))
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font lacks some letters
        figure = _figure(shown)
        if target is not None:
            kind = target.suffix.lower().removeprefix(".")
            # Without a date: the same data gives the same file.
            about: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 150}
            with new_file(target) as staged, writing("writing a picture", staged):
                figure.savefig(staged, format=kind, **about)
    return figure


def _shown(store: Store, name: str, ink: str) -> _Shown:
    episodes = store.episodes
    episodes = episodes[store.endings(episodes) != "open"]
    widths = np.array([lane.environments for lane in store.lanes], np.int64)
    lanes, rows = episodes["id"] >> LANE_SHIFT, episodes["id"] & ROW_MASK
    # Sorted by their end, counted in steps of their lane.
    ends = rows // widths[lanes] + episodes["length"]
    episodes = episodes[np.argsort(ends, kind="stable")]
    return _Shown(
        name,
        ink,
        episodes["return"].astype(np.float64),
        episodes["length"].astype(np.float64),
        {path: _column(store, path) for path in ("rewards", "actions")},
    )


def _column(store: Store, path: str) -> Numbers:
    """(n,) a column of all transitions, or of a million at even distances."""
    most = max(_MOST_VALUES // math.prod(store.schema.columns()[path].shape), 1)

    def read() -> tuple[JoinedLanes, Array]:
        lanes = store.live.follow()
        n = lanes.index.n_transitions
        ranks = np.linspace(0, n - 1, min(n, most)).astype(np.int64)
        return lanes, lanes.columns[path].take(lanes.index.at(ranks))

    numbers = store.live.retrying(read).astype(np.float64).ravel()
    return numbers[np.abs(numbers) < _LARGEST]


def _figure(shown: Sequence[_Shown]) -> Figure:
    figure = Curves(figsize=(9, 6), layout="constrained")
    (returns, lengths), (rewards, actions) = figure.subplots(2, 2)
    _curves(returns, "return of an episode", [(one, one.returns) for one in shown])
    _curves(lengths, "steps of an episode", [(one, one.lengths) for one in shown])
    _distribution(rewards, "rewards", shown)
    _distribution(actions, "actions", shown)
    names = [one.name for one in shown]
    handles = [mpl.lines.Line2D([], [], color=one.ink, linewidth=3) for one in shown]
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _say(axes: Axes, words: str) -> None:
    """Text instead of a chart."""
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, words, ha="center", transform=axes.transAxes)


def _curves(axes: Axes, title: str, curves: Sequence[tuple[_Shown, Numbers]]) -> None:
    """A dot for each episode, and their running mean."""
    axes.set_title(title)
    axes.set_xlabel("transitions")
    axes.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    if not any(len(values) for _, values in curves):
        _say(axes, "no whole episode has ended")
    for one, values in curves:
        here = np.abs(values) < _LARGEST
        steps, numbers = np.cumsum(one.lengths)[here], values[here]
        dots: Any = {"markersize": 4, "markeredgewidth": 0, "alpha": 0.4}
        axes.plot(steps, numbers, "o", color=one.ink, rasterized=len(numbers) > _MOST_DOTS, **dots)
        n = max(len(numbers) // _POINTS, _LEAST_EPISODES)
        sums = np.cumsum(np.concatenate(([0.0], numbers)))
        stops = np.arange(1, len(numbers) + 1)
        starts = np.maximum(stops - n, 0)
        axes.plot(steps, (sums[stops] - sums[starts]) / (stops - starts), color=one.ink)


def _distribution(axes: Axes, path: str, shown: Sequence[_Shown]) -> None:
    """The share of each value: as bars, or as steps over bins."""
    axes.set_title(f"share of {path}")
    columns = [one.columns[path] for one in shown]
    values = np.unique(np.concatenate(columns))
    if not len(values):
        _say(axes, "no transition")
        return
    is_few = len(values) <= _MOST_BARS
    edges = np.append(values, np.inf) if is_few else np.linspace(values[0], values[-1], _BINS + 1)
    shares = [np.histogram(one, edges)[0] / max(len(one), 1) for one in columns]
    if is_few:
        labels, width = [f"{value:.6g}" for value in values], 0.8 / len(shown)
        for number, (one, heights) in enumerate(zip(shown, shares, strict=True)):
            places = np.arange(len(values)) + (number - (len(shown) - 1) / 2) * width
            axes.bar(places, heights, width, color=one.ink)
        is_long = sum(map(len, labels)) > 40  # noqa: PLR2004 (letters across half the figure)
        turned: Any = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if is_long else {}
        axes.set_xticks(np.arange(len(values)), labels, **turned)
    else:
        for one, heights in zip(shown, shares, strict=True):
            axes.stairs(heights, edges, color=one.ink, fill=len(shown) == 1, linewidth=1.4)
    if path == "rewards":  # most of them are 0, and the others matter
        axes.set_yscale("log")
        axes.set_ylim(min(one[one > 0].min(initial=0.1) for one in shares) / 2, 1.2)
        axes.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=None))
