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
from mmreplay.texts import Text


def find_sources(given: Any, chosen: ExchangeFormat, losses: Losses) -> tuple[list[Any], float]:
    """What is read, one after the other, and the bytes of all files."""
    if not isinstance(given, (str, os.PathLike, list, tuple)) and chosen.takes_arrays:
        return [given], math.inf
    paths = [_source_path(one) for one in user_paths.matching(given, "src", by_numbers)]
    if paths == sorted(paths, key=str):  # as a shell and `sorted` put them: file 10 before file 2
        paths.sort(key=by_numbers)
    if len(paths) > 1 and chosen.files is None:
        raise SchemaError(f"{chosen.name}: expected one source, found {len(paths)}; import each")
    found: list[Any] = []
    n_bytes = 0
    for path in paths:
        with reading(path, chosen.name):
            n_bytes += sum(source_files(path).values())
            inside = chosen.files(path, losses) if chosen.files and path.is_dir() else []
        found += inside or [path]
    with reading(paths[0], chosen.name):
        return chosen.tables(found, losses) if chosen.tables else found, n_bytes


def shown(source: Any) -> object:
    """A source in messages: the first of its files."""
    first = source[0] if isinstance(source, list) else source
    return first if isinstance(first, Path) else "src"


def one_after_the_other(
    first: Incoming, sources: Sequence[Any], read: Callable[[Any], Any], name: str
) -> Iterator[Steps]:
    """The steps of several sources; raises FormatError unless they have the same fields."""
    yield from first.steps
    expected = fields_of(first) | _of_episodes(first)
    for source in sources[1:]:
        with reading(shown(source), name), read(source) as incoming:
            found = fields_of(incoming) | _of_episodes(incoming)
            for what in sorted(expected.keys() | found.keys()):
                one, other = expected.get(what), found.get(what)
                if not one or not other or one[0] != other[0] or not np.can_cast(other[1], one[1]):
                    kinds = ("nothing" if it is None else f"{it[1]} {it[0]}" for it in (one, other))
                    raise FormatError(
                        f"{shown(source)}: {what}: expected {next(kinds)}, as in "
                        f"{shown(sources[0])}, found {next(kinds)}; import it alone, or choose "
                        f"columns"
                    )
            yield from incoming.steps


def fields_of(incoming: Incoming) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and dtype of a dataset's columns by what they are."""
    fields = {"actions": incoming.action}
    fields |= {observation_name(key): one for key, one in incoming.frames.items()}
    fields |= {f"column {name}": one for name, one in incoming.extras.items()}
    out = {name: (one.shape, np.dtype(one.dtype)) for name, one in fields.items()}
    return out | {"rewards": ((), np.dtype(incoming.reward_dtype))}


def _of_episodes(incoming: Incoming) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """The same of the fields of episodes; texts may be of any length."""
    return {
        f"field {name} of episodes": (() if isinstance(one, Text) else one.shape, one.dtype)
        for name, one in incoming.episode.items()
    }


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
