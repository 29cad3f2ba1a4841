"""The sources of an import: what a path, a list or a pattern names, read one after the other.

Invariant: all sources have the fields of the first one, and only one is open beside it.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, MmreplayError, SchemaError, StoreNotFoundError
from mmreplay.exchange.formats import ExchangeFormat
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import by_numbers, source_files
from mmreplay.exchange.steps import Steps
from mmreplay.exchange.tables import Incoming
from mmreplay.schema import FRAME
from mmreplay.system import user_paths
from mmreplay.system.limits import check_limit


def find_sources(given: Any, chosen: ExchangeFormat, losses: Losses) -> tuple[list[Any], float]:
    """What is read, one after the other, and the bytes of all files."""
    if not isinstance(given, (str, os.PathLike, list, tuple)) and chosen.takes_arrays:
        return [given], math.inf
    paths = [_source_path(one) for one in user_paths.matching(given, "src", by_numbers)]
    if len(paths) > 1 and chosen.files is None:
        raise SchemaError(f"{chosen.name}: expected one source, found {len(paths)}; import each")
    found: list[Any] = []
    n_bytes = 0
    for path in paths:
        with reading(path, chosen.name):
            n_bytes += sum(source_files(path).values())
            inside = chosen.files(path, losses) if chosen.files and path.is_dir() else []
        found += inside or [path]
    return found, n_bytes


def one_after_the_other(
    first: Incoming, sources: Sequence[Path], read: Callable[[Path], Any], name: str
) -> Iterator[Steps]:
    """The steps of several sources; raises FormatError unless they have the same fields."""
    yield from first.steps
    expected = fields_of(first)
    for source in sources[1:]:
        with reading(source, name), read(source) as incoming:
            found = fields_of(incoming)
            for what in sorted(expected.keys() | found.keys()):
                one, other = expected.get(what), found.get(what)
                if not one or not other or one[0] != other[0] or not np.can_cast(other[1], one[1]):
                    shown = ("nothing" if it is None else f"{it[1]} {it[0]}" for it in (one, other))
                    raise FormatError(
                        f"{source}: {what}: expected {next(shown)}, as in {sources[0]}, found "
                        f"{next(shown)}; import it alone, or choose columns"
                    )
            yield from incoming.steps


def fields_of(incoming: Incoming) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of a dataset's columns by what they are."""
    fields = {"actions": incoming.action}
    fields |= {observation_name(key): one for key, one in incoming.frames.items()}
    fields |= {f"column {name}": one for name, one in incoming.extras.items()}
    out = {name: (one.shape, np.dtype(one.dtype)) for name, one in fields.items()}
    return out | {"rewards": ((), np.dtype(incoming.reward_dtype))}


def observation_name(key: str) -> str:
    """What an observation is called in messages."""
    return "observations" if key == FRAME else f"observations {key}"


def _source_path(src: Any) -> Path:
    source = user_paths.absolute_path(src, "src")
    if not os.path.lexists(source):
        raise StoreNotFoundError(f"{source}: there is no such file or directory")
    try:  # only a link that the caller named is followed
        return source.resolve(strict=True) if source.is_symlink() else source
    except (OSError, RuntimeError) as error:
        raise StoreNotFoundError(f"{source}: this link leads to itself or to nothing") from error


@contextlib.contextmanager
def reading(source: object, name: str) -> Iterator[None]:
    """Whatever a library raises for an invalid file, as FormatError."""
    try:
        yield
    except MmreplayError:
        raise
    except Exception as error:
        if isinstance(error, OSError):
            check_limit(error, source)
        raise FormatError(
            f"{source}: cannot be read as {name}: {type(error).__name__}: {error!s:.300}; see "
            f"`mmreplay import --help` for the formats"
        ) from error
