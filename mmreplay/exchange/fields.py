"""Foreign columns as fields: which arrays a store can hold, and under which names.

Invariant: a column keeps its dtype and its values; one that cannot is refused, or left out and
counted, and never cast in silence.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Container, Iterable
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, MissingExtraError, SchemaError
from mmreplay.exchange.losses import Losses
from mmreplay.ids import Array
from mmreplay.schema import Field

__all__ = [
    "check_key",
    "check_names",
    "extra_field",
    "extra_name",
    "field",
    "is_new",
    "key_name",
    "key_names",
    "need",
    "reward_dtype",
]

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_ARGUMENTS = frozenset(
    "self action actions reward rewards next_frame frames".split()
    + "terminated truncated life_lost mask".split()
)
_LONGEST = 100
_MOST_BYTES = 8
_DOUBLES = ("float64", "int32", "uint32", "int64", "uint64")


def need(module: str, extra: str | None = "exchange", package: str | None = None) -> Any:
    """An optional library; raises MissingExtraError with the command that helps.

    `package` is what pip calls it, if that is not the module's name; `extra` None means that no
    extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = package or module.partition(".")[0]
        install = f'"mmreplay[{extra}]"' if extra else name
        raise MissingExtraError(f"this format needs {name}: pip install {install}") from error


def is_numeric(dtype: Any) -> bool:
    """Whether a store can hold it."""
    kind = np.dtype(dtype)
    return kind.kind in "biuf" and kind.itemsize <= _MOST_BYTES


def field(shape: Any, dtype: Any, name: str) -> Field:
    """The field of a foreign column of rows of this shape; raises FormatError if there is none."""
    if not is_numeric(dtype):
        raise FormatError(
            f"{name}: expected numbers of at most 64 bits, found {np.dtype(dtype)}; a store cannot "
            f"hold these"
        )
    return Field(tuple(shape), dtype)


def key_name(name: str) -> str:
    """A foreign name as the key of an observation: ``pixels/left`` is ``pixels.left``."""
    return _UNFIT.sub("_", name.strip("/").replace("/", ".")).lstrip(".")[:_LONGEST] or "_"


def extra_name(name: str) -> str:
    """The same as that of an extra column, which is an argument of ``step``, too."""
    out = key_name(name)
    return f"{out}_" if out in _ARGUMENTS else out


def is_new(name: str, foreign: str, known: Container[str], losses: Losses) -> bool:
    """Whether no extra column has this name yet; if one has, that of the `foreign` is a loss."""
    if name in known:
        losses.add(f"column {foreign}: another one is called {name} already")
    return name not in known


def key_names(names: Iterable[str], where: object) -> dict[str, str]:
    """Foreign names by the keys that observations get; raises FormatError if two get the same."""
    out: dict[str, str] = {}
    for name in names:
        if (other := out.setdefault(key_name(name), name)) != name:
            raise FormatError(
                f"{where}: observations {other!r} and {name!r}: both would be called "
                f"{key_name(name)!r} in a store; rename one of them"
            )
    return out


def check_names(names: Iterable[str], is_own: Callable[[str], bool], what: str) -> None:
    """Raise SchemaError for a column of a store that has the name of one of the format's own."""
    if clash := [name for name in names if is_own(name)]:
        raise SchemaError(
            f"{what}: {clash[0]!r} is the name of a column of the format's own; record them under "
            f"another name, or export to a format that keeps them apart, as arrays and minari do"
        )


def check_key(key: object, is_own: Callable[[str], bool] | None = None) -> None:
    """Raise SchemaError if observations cannot have the name that the option `key` gives them."""
    fits = isinstance(key, str) and key_name(key) == key and key != "zarr.json"
    if not fits or (is_own is not None and is_own(str(key))):
        raise SchemaError(
            f"key: expected a name of up to 100 letters, digits, '_', '-' and '.', not starting "
            f"with '.', and none of the format's own columns, found {key!r:.80}"
        )


def extra_field(shape: Any, dtype: Any, name: str, losses: Losses) -> Field | None:
    """The field of an extra column; None, and a loss, if a store cannot hold it."""
    if not is_numeric(dtype) or not all(shape):
        losses.add(f"column {name}: no store holds rows of {np.dtype(dtype)} {tuple(shape)}")
        return None
    return Field(tuple(shape), dtype)


def reward_dtype(dtype: Any, name: str) -> np.dtype[Any]:
    """float32 for what it holds exactly, else float64; raises FormatError if it is no number."""
    if not is_numeric(dtype):
        raise FormatError(f"{name}: expected numbers, found {np.dtype(dtype)}")
    return np.dtype("float64" if np.dtype(dtype).name in _DOUBLES else "float32")


def flags(values: Array, name: str) -> Array:
    """(n,) bool of flags that are bools, numbers or (n, 1) of these.

    Raises FormatError for any that is neither 0 nor 1: whether NaN or 2 ends an episode, nobody
    knows.
    """
    given = np.asarray(values).reshape(len(values))
    out: Array = given != 0
    if (other := given[out & (given != 1)]).size:
        raise FormatError(
            f"{name}: expected flags, each 0 or 1, found {other[0]!s:.40}; make them 0 and 1, or "
            f"leave that column out"
        )
    return out
