"""The command ``mmreplay``: each command is a thin layer over a function of `mmreplay`.

Invariant: importing this package imports click and nothing else; a command's own imports wait
until it runs, so that ``mmreplay --help`` and completion are quick.
"""

from __future__ import annotations

from importlib import import_module

import click

from .failures import explained

__all__ = ["main"]

_COMMANDS = {
    "record": "Record a Gymnasium environment.",
    "info": "Show what is in a store.",
    "episodes": "List the episodes.",
    "view": "Show every step in a web page.",
    "verify": "Check a store for damage.",
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

_MODULES = {
    **dict.fromkeys(("import", "export"), "exchange"),
    **dict.fromkeys(("verify", "repair", "snapshot"), "maintenance"),
    **dict.fromkeys(("render", "plot"), "pictures"),
}
"""Module of each command that is not in a module of its name."""


class _LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in _COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        name = f"{cmd_name}_dataset" if module == "exchange" else cmd_name
        command: click.Command = getattr(import_module(f".{module}", __name__), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run, with the errors of this package as messages."""
        with explained():
            return super().invoke(ctx)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mmreplay", message="mmreplay %(version)s")
def main() -> None:
    """Record, inspect and convert stores of reinforcement-learning experience.

    A store is a directory with episodes of observations, actions and rewards. Start with:

        mmreplay record CartPole-v1 cart.zarr --steps 1000

    Exit status: 0 for success, 1 for an error, 2 for wrong usage.
    """
