"""``mmreplay record``: record a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .wording import Whole, age, count, echo_result, import_from_here, progress, size

if TYPE_CHECKING:  # gymnasium is an extra: `mmreplay record --help` works without it
    from mmreplay import RecordProgress, RecordResult


def _fields(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, Any]:
    """Fields of episodes by name."""
    if not given:
        return {}
    import mmreplay

    out: dict[str, Any] = {}
    for one in given:
        name, _, kind = one.partition(":")
        width = kind.removeprefix("text")
        is_text = width != kind and width.isdecimal()
        try:
            out[name] = mmreplay.Text(int(width)) if is_text else mmreplay.Field((), kind or "?!")
        except mmreplay.SchemaError as error:
            raise click.BadParameter(
                f"{one!r}: expected NAME:DTYPE, as success:int8; {error}"
            ) from error
    return out


@click.command("record")
@click.argument("env_id")
@click.argument("path", type=click.Path())
@click.option("--steps", type=Whole(min=1), required=True, help="Steps to record.")
@click.option(
    "--envs",
    type=Whole(min=1),
    help="Environments that step together.  [default: 1; with --append, the store's]",
)
@click.option(
    "--policy",
    default="random",
    show_default=True,
    metavar="random|MODULE:CALLABLE",
    help="The policy: random actions, or your own CALLABLE(observation) -> action. On Atari it "
    "receives single (84, 84) uint8 frames, not stacks.",
)
@click.option(
    "--seed",
    type=Whole(min=0),
    default=0,
    show_default=True,
    help="Seed of the environments and the policy.",
)
@click.option(
    "--codec",
    metavar="NAME[:LEVEL]",
    help="Codec of the frames: raw, lz4 or zstd, optionally with a level: zstd:9.  "
    "[default: lz4 from 1 KiB per frame, else raw; with --append, the store's]",
)
@click.option("--capacity", type=Whole(min=1), help="Keep only the newest N steps.")
@click.option(
    "--episode",
    multiple=True,
    callback=_fields,
    metavar="NAME:DTYPE",
    help="Store this number of the info of each episode's last step with the episode: "
    "success:int8. Texts are NAME:textBYTES, as task:text64.",
)
@click.option("--append", is_flag=True, help="Continue the store at PATH, or create it.")
@click.option(
    "--life-loss",
    flag_value=True,
    default=None,
    help="Treat a lost life as terminal. With --append the store's own setting applies.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def record(env_id: str, path: str, steps: int, as_json: bool, **settings: Any) -> None:
    """Record the Gymnasium environment ENV_ID into a store at PATH.

    Atari ids such as ALE/Breakout-v5 get the standard preprocessing (84x84 gray, frame skip 4,
    no-op start); all other environments are recorded unchanged. Ctrl-C ends the recording and keeps
    every step.
    """
    import_from_here()
    import mmreplay

    try:
        with mmreplay.stop_on_signals() as stop, progress("record", "steps") as show:
            report = None if show is None else partial(_show, show)
            result = mmreplay.record(env_id, path, steps, progress=report, stop=stop, **settings)
    except mmreplay.DiskFullError as error:
        if not Path(path).exists():
            raise
        raise mmreplay.DiskFullError(
            f"{error}\nAll steps before that are kept in {path}: continue with --append"
        ) from error
    echo_result(result, _summary(result, steps), as_json=as_json)


def _show(show: Callable[..., None], done: RecordProgress) -> None:
    text = (
        f"{done.steps_per_s:,.0f} steps/s, {done.episodes:,} episodes, {size(done.bytes_on_disk)}"
    )
    show(done.steps, done.total, text)


def _summary(result: RecordResult, asked: int) -> str:
    text = (
        f"Recorded {count(result.steps, 'step')} of {result.env} into {result.path}: "
        f"{count(result.episodes, 'episode')} finished; those still running were truncated\n"
        f"{count(result.environments, 'environment')}, {size(result.bytes_on_disk)} on disk, "
        f"{age(result.seconds)}, {result.steps_per_s:,.0f} steps/s"
    )
    if result.evicted_rows:
        text += f"\nevicted the oldest {result.evicted_rows:,} of the store's {result.rows:,} rows"
    if result.stopped:
        kept = "" if result.evicted_rows else ", all kept"
        text = (
            f"Stopped at {result.steps:,} of {asked:,} steps{kept}; continue with --append\n{text}"
        )
    return text
