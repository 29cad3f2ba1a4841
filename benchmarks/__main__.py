"""``python -m benchmarks [subject…] [--quick] [--data DIR]``; no subject means all of them."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

from benchmarks import report
from benchmarks.results import Result
from benchmarks.sizes import FULL, QUICK

HERE = Path(__file__).parent


def main(arguments: list[str] | None = None) -> int:
    """Measure; 0 also where a bound does not hold, which the results say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("subjects", nargs="*", metavar="subject", help=", ".join(report.SUBJECTS))
    parser.add_argument("--quick", action="store_true", help="small: only to see that it works")
    parser.add_argument(
        "--data", type=Path, default=HERE / "data", help="recorded games, kept: up to 12 GB"
    )
    parser.add_argument(
        "--results", type=Path, help="where the results go; quick ones go nowhere by default"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.subjects) - {*report.SUBJECTS, "report"}
    if unknown:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}")
    results = options.results or (None if options.quick else HERE / "results")
    chosen = options.subjects or [*report.SUBJECTS, *(["report"] if results else [])]
    if len(chosen) > 1:  # a process for each: none starts with the memory of the one before
        return max(_alone(subject, options) for subject in chosen)
    if chosen == ["report"]:
        for path, text in report.documents(HERE.parent).items():
            path.write_text(text, encoding="utf-8")
            print(path)
        return 0
    _measure(chosen[0], options.data, results, quick=options.quick)
    return 0


def _alone(subject: str, options: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "benchmarks", subject, "--data", str(options.data)]
    if options.quick:
        command.append("--quick")
    if options.results is not None:
        command += ["--results", str(options.results)]
    print(f"== {subject}", flush=True)
    return subprocess.run(command, check=False).returncode


def _measure(subject: str, data: Path, results: Path | None, *, quick: bool) -> None:
    scale = QUICK if quick else FULL
    data = data / scale.name
    data.mkdir(parents=True, exist_ok=True)
    result = Result(subject, dataclasses.asdict(scale), held=not quick)
    importlib.import_module(f"benchmarks.{subject}").run(result, scale, data)
    if results is not None:
        print(result.write(results, data))


if __name__ == "__main__":
    sys.exit(main())
