"""``mmreplay info``: what is in a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from .wording import age, count, echo_json, echo_table, grid, number, size, table, times

_SHORT = 40
_SHOWN_LANES = 16


@click.command("info")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def info(path: str, as_json: bool) -> None:
    """Show what is in the store at PATH, also while it is written or after a crash."""
    import mmreplay

    with mmreplay.open(path) as store:
        about = store.info()
    if as_json:
        echo_json({**about, "path": path})
        return
    title = f"{path}: {about['state']}, {count(about['lanes'], 'lane')}"
    if about["environments"] > about["lanes"]:
        title += f", {count(about['environments'], 'environment')}"
    parts: list[Any] = [title, "", grid(_facts(about)), "", _columns(about)]
    if about["lanes"] > 1:
        parts += ["", _lanes(about)]
    if about["returns"]:
        parts += ["", _spread(about["returns"], "return"), _spread(about["lengths"], "steps")]
    echo_table(*parts)


def _facts(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    env = _environment(about["env"])
    if env:
        yield "environment", env
    older = sum(one["first"] for one in about["lane_details"])
    context = about["kept_rows"] - (about["rows"] - older)
    rows = f"{about['transitions']:,} in {count(about['rows'] - older, 'row')}"
    if older:
        rows += f"; {older:,} older rows evicted"
        rows += f", {context:,} of them kept for stacks" if context else ""
    yield "transitions", rows
    capacity = about["capacity"]
    yield "capacity", "unlimited" if capacity is None else count(capacity, "transition")
    words = {"terminated": "terminated", "truncated": "truncated", "open": "running"}
    ends = [f"{about[name]:,} {word}" for name, word in words.items() if about[name]]
    whole = " whole" if older else ""
    yield "episodes", f"{about['episodes']:,}{whole}" + (f": {', '.join(ends)}" if ends else "")
    of_episodes = {k: one for k, one in about["episode_fields"].items() if k != "started"}
    if of_episodes:
        yield "their fields", ", ".join(f"{k} ({_kind(one)})" for k, one in of_episodes.items())
    if about["non_finite_rewards"]:
        odd, share = about["non_finite_rewards"], about["transitions"]
        yield "rewards", f"{odd:,} of {share:,} are NaN or infinite"
    yield from _savings(about)
    yield from _freshness(about)
    versions = about["versions"] if isinstance(about["versions"], dict) else {}
    written = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "made with", f"{written or 'unknown'} (format {about['format']})"


def _kind(field: Mapping[str, Any]) -> str:
    """A field of episodes in a word or two."""
    if "text" in field:
        return f"text of {field['text']} bytes"
    return " ".join([field["dtype"], "x".join(map(str, field["shape"]))]).strip()


def _environment(env: Any) -> str:
    """The source of the rows, from the metadata."""
    name = env.get("id") if isinstance(env, dict) else None
    if not isinstance(name, str):
        return ""
    found = env.get("runs")
    runs = [run for run in found if isinstance(run, dict)] if isinstance(found, list) else []
    last = runs[-1] if runs else env
    words = ", ".join(
        f"{key} {last[key]:.{_SHORT}}" if key == "policy" else f"{key} {last[key]}"
        for key, kind in (("policy", str), ("seed", int))
        if isinstance(last.get(key), kind)
    )
    if len(runs) > 1:
        words = f"{len(runs):,} recordings, the last: {words}"
    return f"{name}, {words}" if words else name


def _savings(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    on_disk = size(about["bytes_on_disk"])
    ahead = "" if about["state"] == "closed" else ", including preallocated space"
    yield "on disk", on_disk + ahead
    if about["saving_raw"] is not None:
        yield "", f"{times(about['saving_raw'])} its rows uncompressed ({size(about['bytes_raw'])})"
    if about["saving_stacked"] is not None:
        stack = about["stack"]
        two = "two observations" if stack == 1 else f"two stacks of {stack}"
        stacked = f"{two} per transition ({size(about['bytes_stacked'])})"
        yield "", f"{times(about['saving_stacked'])} {stacked}"


def _freshness(about: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    live = about["live"]
    if live is None:
        return
    is_live = about["state"] == "live"
    for writer in live["writers"]:
        process = f"pid {writer['pid']} on {writer['host']}, since {writer['since']}"
        yield "writer" if is_live else "last writer", process
    if live["last_row_s"] is not None:
        yield "newest row", f"{age(live['last_row_s'])} ago"
    if live["last_checkpoint_s"] is not None:
        rows = count(live["unflushed_rows"], "row")
        yield "flushed", f"{age(live['last_checkpoint_s'])} ago; {rows} since"
    if live["untrusted_rows"]:
        rows = count(live["untrusted_rows"], "row")
        yield "", f"its writer ended without close(); {rows} after its last flush are not trusted"
    elif not is_live:
        yield "", "its writer ended without close(); the next one recovers all rows"


def _columns(about: Mapping[str, Any]) -> Any:
    rows = [
        (
            name,
            "x".join(map(str, one["shape"])) or "scalar",
            one["dtype"],
            one["codec"],
            f"{one['chunk_rows']:,}",
            size(one["bytes_on_disk"]),
        )
        for name, one in about["fields"].items()
    ]
    return table(
        ("column", "shape", "dtype", "codec", "rows per file", "on disk"), rows, right=(4, 5)
    )


def _lanes(about: Mapping[str, Any]) -> Any:
    details = about["lane_details"]
    heads = ("lane", "name", "state", "rows", "first", "transitions", "environments")
    rows = [
        (str(number_), one["name"] or "", one["state"], *(f"{one[name]:,}" for name in heads[3:]))
        for number_, one in enumerate(details[:_SHOWN_LANES])
    ]
    left = len(details) - _SHOWN_LANES
    if left > 0:
        rows.append(("...", f"{left:,} more", *[""] * 5))
    return table(heads, rows, right=(0, *range(3, len(heads))))


def _spread(spread: Mapping[str, Any], unit: str) -> str:
    words = (f"{key} {'none' if one is None else number(one)}" for key, one in spread.items())
    return f"{unit} per episode: {', '.join(words)}"
