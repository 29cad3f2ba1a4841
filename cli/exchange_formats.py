"""The list of formats in ``mmreplay import`` and ``mmreplay export``, and their options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from .wording import count

__all__ = ["FormatCommand", "lines_of_losses", "options_of", "with_options"]

_BOOLS = {"True": True, "yes": True, "False": False, "no": False}
"""Accepted in addition to JSON's true and false."""


class FormatCommand(click.Command):
    """A command whose help ends with the formats."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The formats of this direction."""
        import mmreplay

        is_import = self.name == "import"
        rows = []
        for one in mmreplay.exchange_formats():
            lost = one.not_in if is_import else one.not_out
            names = one.import_options if is_import else one.export_options
            shown = [
                f"{name} ({', '.join(values)})" if values else name
                for name, values in names.items()
            ]
            options = f" Options: {', '.join(shown)}." if shown else ""
            if lost is not None:
                rows.append((one.name, f"{one.about}. Not converted: {lost}.{options}"))
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
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = _BOOLS.get(value, value)
    return out


with_options = click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_option,
    help="An option of the format; repeatable. VALUE is JSON, True, False, yes, no, or a string.",
)


def options_of(given: dict[str, Any], *taken: str) -> dict[str, Any]:
    """The options of a format; refuses `taken`, the arguments of the command itself."""
    for name in taken:
        if name in given:
            raise click.BadParameter(f"{name} is not an option of a format", param_hint="-o")
    return given


def lines_of_losses(losses: Sequence[Any]) -> list[str]:
    """A line for each loss."""
    return [f"not converted, {count(one.count, 'time')}: {one.what}" for one in losses]
