"""``mmreplay import`` and ``mmreplay export``: convert datasets of other libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from .wording import count, echo_result, progress, size

_BOOLS = {"True": True, "yes": True, "False": False, "no": False}
"""Accepted in addition to JSON's true and false."""
_OWN = {"format", "src", "dst", "codec", "columns", "leave_out", "progress"}
"""Arguments of the commands, which are not options of a format."""


class _FormatCommand(click.Command):
    """A command whose help ends with the formats."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The formats of this direction."""
        import mmreplay

        is_import = self.name == "import"
        rows = []
        for one in mmreplay.exchange_formats():
            lost = one.not_in if is_import else one.not_out
            options = one.import_options if is_import else one.export_options
            shown = [f"{name} ({', '.join(of)})" if of else name for name, of in options.items()]
            known = f" Options: {', '.join(shown)}." if shown else ""
            if lost is not None:
                rows.append((one.name, f"{one.about}. Not converted: {lost}.{known}"))
        with formatter.section("Formats"):
            formatter.write_dl(rows)


def _option(
    _context: click.Context, _parameter: click.Parameter, values: Sequence[str]
) -> dict[str, Any]:
    """KEY=VALUE, where VALUE is JSON, True, False, yes or no, else a text."""
    out: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise click.BadParameter(f"expected KEY=VALUE, found {text!r}")
        if key in _OWN:
            raise click.BadParameter(f"{key} is not an option of a format")
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = _BOOLS.get(value, value)
    return out


_OPTIONS = click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_option,
    help="An option of the format; repeatable. VALUE is JSON, True, False, yes, no, or a string.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")


@click.command("import", cls=_FormatCommand)
@click.argument("format_name", metavar="FORMAT")
@click.argument("sources", metavar="SRC...", type=click.Path(), nargs=-1, required=True)
@click.argument("target", metavar="DST", type=click.Path())
@click.option(
    "--codec",
    metavar="NAME[:LEVEL]",
    help="Compression of frames: raw, lz4, zstd, or with a level, such as zstd:9.",
)
@click.option(
    "--columns",
    metavar="NAME",
    multiple=True,
    help="Convert only this column, or those below it, besides actions, rewards and ends; "
    "repeatable.",
)
@click.option(
    "--leave-out",
    metavar="NAME",
    multiple=True,
    help="Leave out this column, or those below it; repeatable.",
)
@_OPTIONS
@_JSON
def import_dataset(
    format_name: str,
    sources: Sequence[str],
    target: str,
    as_json: bool,
    options: dict[str, Any],
    **settings: Any,
) -> None:
    """Convert the dataset at SRC, or several one after the other, to a new store at DST.

    Several files are read in the order of the numbers in their names, ep2 before ep10, unless they
    are given in another order than a shell's. Anything that could not be converted is listed at the
    end. Pickled data is never loaded, as it could run code.
    """
    import mmreplay

    options |= {name: value for name, value in settings.items() if value}
    with progress("import") as show:
        source = sources[0] if len(sources) == 1 else list(sources)
        made = mmreplay.import_dataset(format_name, source, target, progress=show, **options)
    ends = f" ({made.terminated:,} terminated, {made.truncated:,} truncated)"
    _print(made, ends, as_json=as_json)


@click.command("export", cls=_FormatCommand)
@click.argument("format_name", metavar="FORMAT")
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("target", metavar="DST", type=click.Path())
@click.option(
    "--leave-out", metavar="NAME", multiple=True, help="Leave out this extra column; repeatable."
)
@_OPTIONS
@_JSON
def export_dataset(
    format_name: str,
    source: str,
    target: str,
    leave_out: Sequence[str],
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Convert all episodes of the store at SRC to another library's dataset at DST.

    Anything that could not be converted is listed at the end. The store is not changed.
    """
    import mmreplay

    with progress("export") as show:
        made = mmreplay.export_dataset(
            source, format_name, target, leave_out=leave_out, progress=show, **options
        )
    _print(made, "", as_json=as_json)


def _print(made: Any, ends: str, *, as_json: bool) -> None:
    text = (
        f"{made.path}: {count(made.transitions, 'transition')}, {count(made.episodes, 'episode')}"
        f"{ends}; {size(made.bytes_on_disk)}"
    )
    lost = [f"not converted, {count(one.count, 'time')}: {one.what}" for one in made.losses]
    echo_result(made, "\n".join([text, *lost]), as_json=as_json)
