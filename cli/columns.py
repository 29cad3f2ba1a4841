"""``mmreplay columns``, ``add-column`` and ``drop-column``: extra columns of a store."""

from __future__ import annotations

import click

from .wording import count, echo, echo_json, echo_table, import_from_here, progress, table


@click.command("columns")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print them as one JSON object.")
def columns(path: str, as_json: bool) -> None:
    """List the extra columns of the store at PATH.

    Extras belong to their rows; derived columns can be updated, added and dropped.
    """
    import mmreplay

    with mmreplay.open(path) as store:
        schema = store.schema
    found = [
        {"name": name, "kind": kind, **one.to_json()}
        for kind, of in (("extra", schema.extras), ("derived", schema.derived))
        for name, one in of.items()
    ]
    if as_json:
        echo_json({"path": path, "columns": found})
    elif found:
        rows = [
            (one["name"], one["kind"], one["dtype"], " x ".join(map(str, one["shape"])) or "-")
            for one in found
        ]
        echo_table(table(("name", "kind", "dtype", "shape"), rows))
    else:
        echo(f"{path}: no extra columns")


@click.command("add-column")
@click.argument("path", type=click.Path())
@click.argument("name")
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--replace", is_flag=True, help="Replace a derived column of that name.")
def add_column(path: str, name: str, function: str, replace: bool) -> None:
    """Add the derived column NAME to the store at PATH, which nobody may be writing.

    MODULE:FUNCTION is called with each whole episode, a Trajectory (docs/reference/reading.md), and
    returns an array with a value for each of its steps. Other steps have 0.
    """
    import_from_here()
    import mmreplay

    with progress("add-column", "transitions") as show:
        n_values = mmreplay.add_column(path, name, function, replace=replace, progress=show)
    echo(f"{path}: added {name} to {count(n_values, 'transition')}")


@click.command("drop-column")
@click.argument("path", type=click.Path())
@click.argument("name")
def drop_column(path: str, name: str) -> None:
    """Remove the derived column NAME from the store at PATH, which nobody may be writing."""
    import mmreplay

    mmreplay.drop_column(path, name)
    echo(f"{path}: dropped {name}")
