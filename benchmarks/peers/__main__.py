"""``python -m benchmarks.peers [--quick] [--report] [--data DIR] [--results DIR]``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.peers import measure, plots
from benchmarks.results import Result, load

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "benchmarks" / "results"


def main(arguments: list[str] | None = None) -> int:
    """Measure, and show the figures in benchmarks/README.md and its plots."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small: only to see that it works")
    parser.add_argument(
        "--data", type=Path, default=ROOT / "benchmarks" / "data", help="recorded games, kept"
    )
    parser.add_argument(
        "--results", type=Path, help="where the results go; quick ones go nowhere by default"
    )
    parser.add_argument("--report", action="store_true", help="only show the newest results again")
    options = parser.parse_args(arguments)
    results = options.results or (None if options.quick else KEPT)
    if options.report:
        _show(results or KEPT)
        return 0
    sizes = measure.QUICK if options.quick else measure.FULL
    data = options.data / f"peers-{sizes.name}"
    data.mkdir(parents=True, exist_ok=True)
    result = Result("peers", dataclasses.asdict(sizes), held=not options.quick)
    measure.run(result, sizes, data)
    if results is None:
        return 0
    print(result.write(results, data))
    _show(results)
    return 0


def _show(results: Path) -> None:
    """Draw the plots, and write the page if these are the results that it shows."""
    plots.write(load(results / "peers.json"), results)
    if results.resolve() == KEPT.resolve():
        (ROOT / "benchmarks" / "README.md").write_text(report.render(KEPT), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
