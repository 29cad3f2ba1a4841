"""The command ``mmreplay``: one file per command, each a thin layer over `mmreplay` itself.

Invariant: importing this package imports click and nothing else; a command's own imports wait
until it runs, so that ``mmreplay --help`` and completion are quick.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from .failures import explained

__all__ = ["main"]

_COMMANDS = {
    "record": "Record a Gymnasium environment.",
    "info": "Show what is in a store.",
    "episodes": "List the trajectories.",
    "view": "Show every frame in a web page.",
    "verify": "Read everything and check every checksum and rule.",
    "repair": "Make a damaged store sound again.",
    "snapshot": "Copy a store, also while it is written.",
    "pack": "Copy, merge, filter and recompress stores.",
    "render": "Draw an episode as a film or contact sheet.",
    "plot": "Draw returns, lengths, rewards and actions.",
    "import": "Convert another library's dataset to a store.",
    "export": "Convert a store to another library's dataset.",
    "bench": "Measure how fast this machine samples.",
}
"""Name -> help in the list of commands, without importing them all."""

_NAMES = {"import": "import_dataset", "export": "export_dataset"}
"""Modules of the commands whose names are Python keywords."""


class _LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return list(_COMMANDS)

    def get_command(
        self,
        ctx: click.Context,
        cmd_name: str,
    ) -> click.Command | None:
        """The command, from the file of its name."""
        if cmd_name not in _COMMANDS:
            return None
        name = _NAMES.get(cmd_name, cmd_name)
        command = getattr(import_module(f".{name}", __name__), name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} is not a click command")
        return command

    def format_commands(
        self,
        ctx: click.Context,
        formatter: click.HelpFormatter,
    ) -> None:
        """The list in the help, without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse NUL bytes, which a path cannot have."""
        if any("\0" in one for one in args):
            raise click.UsageError("an argument has a NUL byte", ctx)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As `click.Group.main`, also if a caller has closed the output (``2>&-``)."""
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> object:
        """Run, with the errors of this package as messages."""
        with explained():
            return super().invoke(ctx)


def _version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from mmreplay import __version__

        click.echo(f"mmreplay {__version__}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Reinforcement-learning experience in one directory.

    Exit status: 0 done, 1 an error with a message on stderr, 2 wrong usage.
    """
