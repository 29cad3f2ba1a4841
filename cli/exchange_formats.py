"""What ``mmreplay import`` and ``mmreplay export`` share: the list of formats, their options."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from .wording import count

__all__ = ["FormatCommand", "lines_of_losses", "options_of", "with_options"]

_BOOLS = {"True": True, "yes": True, "False": False, "no": False}
"""What is understood beside JSON's true and false."""


class FormatCommand(click.Command):
    """A command whose help ends with the formats, and what each cannot carry."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The formats of this direction; the package is imported for it."""
        import mmreplay

        is_import = self.name == "import"
        rows = []
        for one in mmreplay.exchange_formats():
            lost = one.not_in if is_import else one.not_out
            if lost is not None:
                names = one.import_options if is_import else one.export_options
                told = [
                    f"{name} ({', '.join(choices)})" if choices else name
                    for name, choices in names.items()
                ]
                options = f" Options: {', '.join(told)}." if told else ""
                rows.append((one.name, f"{one.about}. Not carried: {lost}.{options}"))
        with formatter.section("Formats"):
            formatter.write_dl(rows)


def _option(
    _context: click.Context, _parameter: click.Parameter, values: Sequence[str]
) -> dict[str, Any]:
    """KEY=VALUE, where VALUE is JSON, a bool as Python or people write it, or else a text."""
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
    """The options of a format; those that the command itself has are none."""
    for name in taken:
        if name in given:
            raise click.BadParameter(f"{name} is not an option of a format", param_hint="-o")
    return given


def lines_of_losses(losses: Sequence[Any]) -> list[str]:
    """What could not be carried over, a line each."""
    return [f"not carried over, {count(one.count, 'time')}: {one.what}" for one in losses]
