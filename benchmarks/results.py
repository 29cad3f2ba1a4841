"""Results as JSON: figures, the bounds they are held against, and where they were measured.

Invariant: a figure with a bound says whether it holds, and one that does not is written like any
other. Nothing in a result names a host, a user or a path.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.timing import Neighbours, Spread

__all__ = ["Figure", "Result", "load", "machine"]

_PACKAGES = (
    "mmreplay",
    "numpy",
    "zarr",
    "numcodecs",
    "gymnasium",
    "ale-py",
    "stable-baselines3",
    "cpprb",
    "torch",
    "tianshou",
    "torchrl",
    "tensordict",
    "flashbax",
    "jax",
    "d3rlpy",
    "tensorstore",
    "h5py",
    "minari",
    "pyarrow",
    "protobuf",
    "pillow",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table.

    Attributes:
        what: was measured.
        unit: of all values.
        median: over the runs.
        low: the lowest run.
        high: the highest run.
        n_runs: how many runs.
        bound: what the median is held against; None if nothing was promised.
        at_least: the bound is a lower one.
        holds: whether the median keeps the bound.
        note: what a reader should know.
    """

    what: str
    unit: str
    median: float
    low: float
    high: float
    n_runs: int
    bound: float | None = None
    at_least: bool = False
    holds: bool | None = None
    note: str = ""


class Result:
    """The figures of one subject.

    Args:
        subject: its module's name.
        settings: the sizes it was measured with.
        held: False leaves all bounds out: sizes that mean nothing are held against nothing.
    """

    def __init__(self, subject: str, settings: Mapping[str, Any], *, held: bool = True) -> None:
        """No figure yet."""
        self.subject = subject
        self._held = held
        self._neighbours = Neighbours()
        self.settings = dict(settings)
        self.figures: list[Figure] = []
        self.details: dict[str, Any] = {}

    def add(
        self,
        what: str,
        value: Spread | float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        note: str = "",
    ) -> None:
        """Keep and print a figure, with the bound that it is held against."""
        if not isinstance(value, Spread):
            value = Spread(float(value), float(value), float(value), 1)
        if not self._held:
            at_most = at_least = None
        bound = at_most if at_most is not None else at_least
        holds = None
        if at_most is not None:
            holds = value.median <= at_most
        elif at_least is not None:
            holds = value.median >= at_least
        figure = Figure(
            what,
            unit,
            _rounded(value.median),
            _rounded(value.low),
            _rounded(value.high),
            value.n_runs,
            bound,
            at_least is not None,
            holds,
            note,
        )
        if any(_key(one.what) == _key(what) for one in self.figures):
            raise ValueError(f"two figures called {what!r}")
        self.figures.append(figure)
        verdict = {None: "", True: "  holds", False: "  DOES NOT HOLD"}[holds]
        limit = "" if bound is None else f"  [{'>=' if at_least is not None else '<='} {bound:g}]"
        print(
            f"{figure.what:<72} {figure.median:>10g} {unit:<6} "
            f"({figure.low:g} to {figure.high:g}, {figure.n_runs} runs){limit}{verdict}",
            flush=True,
        )

    def document(self, data: Path) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "subject": self.subject,
            "date": dt.datetime.now(dt.UTC).date().isoformat(),
            "machine": machine(data),
            "percent_used_by_others": self._neighbours.percent(),
            "versions": versions(),
            "settings": self.settings,
            "figures": {_key(one.what): dataclasses.asdict(one) for one in self.figures},
            "details": self.details,
        }

    def write(self, folder: Path, data: Path) -> Path:
        """Write `folder`/<subject>.json."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.subject}.json"
        path.write_text(json.dumps(self.document(data), indent=1) + "\n", encoding="utf-8")
        return path


def load(path: Path) -> dict[str, Any]:
    """A result as `Result.write` left it."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _key(what: str) -> str:
    """The name that a document uses for a figure, which stays when others come before it."""
    return re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")


def _rounded(value: float) -> float:
    """Four digits: more would pretend."""
    return float(f"{value:.4g}")


def machine(data: Path) -> dict[str, Any]:
    """What was measured on; no names."""
    release = re.match(r"\d+(\.\d+)?", platform.release())
    return {
        "system": f"{platform.system()} {release.group() if release else ''}".strip(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "filesystem": _filesystem(data),
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that matter and are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _memory_gib() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return round(int(line.split()[1]) / (1 << 20))
    return None


def _filesystem(path: Path) -> str:
    """The type of the file system that a path is on."""
    where = str(path.resolve())
    best, kind = "", "unknown"
    for line in _lines("/proc/mounts"):
        _, mount, found, *_ = line.split()
        inside = where == mount or where.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind
