"""``mmreplay tag``: fields of episodes, given afterwards."""

from __future__ import annotations

from typing import Any

import click

from .pack import numbers
from .wording import count, echo, quoted, typed


@click.command("tag")
@click.argument("path", type=click.Path())
@click.argument("fields", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option(
    "--episodes",
    callback=numbers,
    metavar="N,N-N",
    help="Of these episodes, numbered as in `mmreplay episodes`, for example 0-99,250.  "
    "[default: all]",
)
def tag(path: str, fields: tuple[str, ...], episodes: list[int] | None) -> None:
    """Give fields of the episodes of the store at PATH a value: quality=good success=1.

    A field that the store does not have is added: of whole numbers, of numbers, of true and false,
    or of texts, by its value. No process may be writing the store. If this command is interrupted,
    the store is as before, or has all of the values.
    """
    import mmreplay

    with mmreplay.open(path) as store:
        known = store.episodes.dtype
    given: dict[str, Any] = {}
    for field in fields:
        name, is_there, value = field.partition("=")
        if not is_there or not name:
            raise click.UsageError(f"expected NAME=VALUE, found {field!r}")
        is_text = name in (known.names or ()) and known[name].kind == "U"
        given[name] = value if is_text else typed(value)
    n = mmreplay.tag(path, episodes, **given)
    names = ", ".join(given)
    echo(f"{path}: {names} of {count(n, 'episode')}; see `mmreplay episodes {quoted(path)}`")
