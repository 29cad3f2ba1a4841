"""The command ``mmreplay``: each command is a thin layer over a function of `mmreplay`.

Invariant: importing this package imports click and nothing else; a command's own imports wait
until it runs, so that ``mmreplay --help`` and completion are quick.
"""

from __future__ import annotations

import sys

try:
    import os
    import re
    import traceback
    from collections.abc import Iterator
    from contextlib import contextmanager, suppress
    from importlib import import_module
    from pathlib import Path

    import click

    from .wording import plain
except KeyboardInterrupt:
    sys.exit(130)  # without a traceback

__all__ = ["main"]

_COMMANDS = {
    "record": ("record", "Record a Gymnasium environment."),
    "info": ("info", "Show what is in a store."),
    "episodes": ("episodes", "List the episodes."),
    "stats": ("stats", "Show means, bounds and quantiles of the fields."),
    "tag": ("tag", "Give fields of episodes a value."),
    "view": ("view", "Show every step in a web page."),
    "verify": ("maintenance", "Check a store for damage."),
    "repair": ("maintenance", "Make a damaged store sound again."),
    "snapshot": ("maintenance", "Copy a store, also while it is written."),
    "push": ("archive", "Send a store to object storage."),
    "pull": ("archive", "Get a store from object storage."),
    "pack": ("pack", "Copy, merge, filter and recompress stores."),
    "columns": ("columns", "List the extra columns."),
    "add-column": ("columns", "Add a column that a function computes."),
    "drop-column": ("columns", "Remove a column that was added."),
    "render": ("pictures", "Draw an episode as a film or contact sheet."),
    "plot": ("pictures", "Draw returns, lengths, rewards and actions."),
    "import": ("exchange", "Convert another library's dataset to a store."),
    "export": ("exchange", "Convert a store to another library's dataset."),
    "bench": ("bench", "Measure how fast this machine samples."),
}
"""Name -> module, and help in the list of commands, which imports none of them."""


@contextmanager
def _explained() -> Iterator[None]:
    """Turn errors with a known cause into a message without a traceback; others are bugs."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
        raise  # click exits silently if the reader of the output is gone
    except KeyboardInterrupt:
        click.echo("Aborted!", err=True)
        raise click.exceptions.Exit(130) from None
    except OSError as error:
        text = str(error)
        if not _is_known(error) and error.strerror is not None:
            # Of a store, errors name the file.
            text = f"{error.filename or 'the output cannot be written'}: {error.strerror}"
        raise click.ClickException(plain(_as_typed(text))) from error
    except MemoryError as error:  # of Python, numpy, pyarrow or PyAV
        what = f" ({error})" if str(error) else ""
        text = f"out of memory{what}: end other programs, or raise the limit of this one"
        raise click.ClickException(plain(f"{text} (`ulimit -v`)")) from error
    except Exception as error:
        text = str(error)
        if not _is_known(error):
            where = _in_own_module()
            if where is None:
                raise
            text = f"{where}: {traceback.format_exception_only(error)[-1].strip()}"
        raise click.ClickException(plain(_as_typed(text))) from error


def _as_typed(text: str) -> str:
    """With paths in the working directory made relative."""
    with suppress(OSError):  # it may be gone
        # Where a path begins: the working directory's may stand within a longer one.
        return re.sub(rf"(?<![^\s'\"`(=:]){re.escape(f'{Path.cwd()}{os.sep}')}", "", text)
    return text


def _in_own_module() -> str | None:
    """The line of a policy or function in the working directory that failed just now, or None."""
    with suppress(OSError):
        for frame in reversed(traceback.extract_tb(sys.exc_info()[2])):
            if Path(frame.filename).parent == Path.cwd():
                return f"{frame.filename}, line {frame.lineno}"
    return None


def _is_known(error: Exception) -> bool:
    # Not imported for this: a command that never imported mmreplay cannot have raised its errors.
    mmreplay = sys.modules.get("mmreplay")
    return mmreplay is not None and isinstance(error, mmreplay.MmreplayError)


class _LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported."""
        if cmd_name not in _COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(cmd_name, _COMMANDS, 1)
            if near and not ctx.resilient_parsing:  # no completion
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {near[0]!r}?")
            return None
        module = _COMMANDS[cmd_name][0]
        name = f"{cmd_name}_dataset" if module == "exchange" else cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f".{module}", __name__), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help, without importing what it lists."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run, with the errors of this package as messages."""
        with _explained():
            return super().invoke(ctx)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="mmreplay", message="mmreplay %(version)s")
def main() -> None:
    """Record, inspect and convert stores of reinforcement-learning experience.

    A store is a directory with episodes of observations, actions and rewards. Start with:

        mmreplay record CartPole-v1 cart.zarr --steps 1000

    Exit status: 0 for success, 1 for an error, 2 for wrong usage, 130 after Ctrl-C.
    """
