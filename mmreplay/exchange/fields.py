"""Foreign columns as fields: what a store can hold of rows and of episodes, and under which names.

Invariant: a column keeps its dtype and its values; one that cannot is refused, or left out and
counted, and never cast silently. Columns called ``episodes/NAME`` are fields of episodes: they have
a value per episode, or one per step, where the first step of each episode counts.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.errors import FormatError, MissingExtraError, SchemaError
from mmreplay.exchange.columns import RowShape
from mmreplay.exchange.losses import Losses
from mmreplay.format.episode_fields import MOST_BYTES, STARTED, EpisodeField, field_name
from mmreplay.ids import Array, Ids
from mmreplay.schema import Field
from mmreplay.texts import Text

PREFIX = "episodes/"

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]")
_ARGUMENTS = frozenset(
    "self action actions reward rewards next_frame frames".split()
    + "terminated truncated life_lost mask".split()
)
_LONGEST = 100
_MOST_BYTES = 8


def need(module: str, extra: str | None = "exchange", package: str | None = None) -> Any:
    """An optional library, `package` for pip; MissingExtraError says how to install the `extra`."""
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


def key_name(name: str) -> str:
    """A foreign name as the key of an observation: ``pixels/left`` is ``pixels.left``."""
    out = _UNFIT.sub("_", name.strip("/").replace("/", ".")).lstrip(".")[:_LONGEST] or "_"
    return "zarr.json_" if out == "zarr.json" else out


def extra_name(name: str) -> str:
    """The same for an extra column, whose name is also an argument of ``step``."""
    out = key_name(name)
    return f"{out}_" if out in _ARGUMENTS else out


def has_values(rows: Array) -> Array:
    """(n,) bool: which rows are not all 0."""
    return np.asarray(rows.any(axis=tuple(range(1, rows.ndim))))


def flags(values: Array, name: str) -> Array:
    """(n,) bool of flags (n,) or (n, 1); FormatError for one that is neither 0 nor 1."""
    given = np.asarray(values).reshape(len(values))
    out: Array = given != 0
    if (other := given[out & (given != 1)]).size:
        raise FormatError(
            f"{name}: expected flags, each 0 or 1, found {other[0]!s:.40}; make them 0 and 1, or "
            f"leave that column out"
        )
    return out


class EpisodeColumns:
    """Those of a table; `fields` by their names in a store, `used` by those in the table."""

    def __init__(
        self, columns: Mapping[str, RowShape], n_rows: int, where: object, losses: Losses
    ) -> None:
        self._where = where
        self.fields: dict[str, EpisodeField] = {}
        self.used: dict[str, str] = {}
        self._values: dict[str, Array] = {}
        for name, one in columns.items():
            if name.startswith(PREFIX):
                self._add(name, one, n_rows, losses)

    def _add(self, name: str, column: RowShape, n_rows: int, losses: Losses) -> None:
        own, problem = field_name(name.removeprefix(PREFIX)), ""
        try:
            field = _field(column)
        except SchemaError as error:
            problem = str(error)
        else:
            if own in self.fields:
                problem = f"another one is called {own} already"
            elif own != STARTED or field == Field((), "int64"):
                self.fields[own] = field
                if column.shape[0] == n_rows:
                    self.used[own] = name
                else:
                    self._values[own] = column.read(0, column.shape[0])  # type: ignore[union-attr]
            else:
                problem = "expected int64, ns since 1970"
        losses.add(f"field {name.removeprefix(PREFIX)} of episodes: {problem}", bool(problem))

    @property
    def declared(self) -> dict[str, EpisodeField]:
        """As `create` takes them."""
        return {name: one for name, one in self.fields.items() if name != STARTED}

    def rows(self, block: Mapping[str, Array], numbers: Ids) -> dict[str, Array]:
        """(n, ...) by name, of n steps of the episodes with these numbers."""
        out = {own: block[name] for own, name in self.used.items()}
        for own, values in self._values.items():
            if len(values) <= numbers[-1]:
                raise FormatError(
                    f"{self._where}: {PREFIX}{own}: expected a value for each episode, found "
                    f"{len(values):,}"
                )
            out[own] = values[numbers]
        return out


def _field(column: RowShape) -> EpisodeField:
    """The field of a column; raises SchemaError if a store has none like that."""
    if column.dtype.kind in "SU":
        return Text(max(column.dtype.itemsize, 1))
    if column.dtype.kind not in "biuf":
        raise SchemaError(f"expected numbers or a text, found {column.dtype}")
    field = Field(tuple(column.shape[1:]), column.dtype)
    if field.row_bytes > MOST_BYTES:
        raise SchemaError(f"expected at most {MOST_BYTES:,} bytes, found {field.row_bytes:,}")
    return field


def common_type(values: Sequence[Any]) -> np.dtype[Any] | None:
    """The dtype of a column with these values, (u)int64 of integers; None if none holds all."""
    arrays = [np.asarray(one) for one in values]
    kinds = {one.dtype.kind for one in arrays}
    if kinds <= {"U", "S", "O"} and all(isinstance(one, (str, bytes)) for one in values):
        texts = [one if isinstance(one, bytes) else one.encode() for one in values]
        longest = max(map(len, texts), default=0)
        return np.dtype(f"S{max(longest, 1)}") if longest <= MOST_BYTES else None
    if kinds <= {"i", "u"}:
        fitting = (np.dtype(name) for name in ("int64", "uint64"))
        return next((d for d in fitting if all((v.astype(d) == v).all() for v in arrays)), None)
    if len(kinds) != 1 or not kinds <= set("bf"):
        return None
    return np.result_type(*(one.dtype for one in arrays))


def is_text(feature: Mapping[str, Any]) -> bool:
    """Whether a feature of TensorFlow Datasets is one text."""
    tensor = feature.get("tensor") or {}
    is_tensor = tensor.get("dtype") == "string" and not tensor.get("shape", {}).get("dimensions")
    return "text" in feature or is_tensor
