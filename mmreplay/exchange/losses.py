"""What could not be converted, with counts; which columns the caller wants, and as what.

Invariant: nothing is left out, invented or changed without an entry here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from mmreplay.errors import SchemaError, printable

_SHOWN = 8  # names that one loss lists


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """Something that could not be converted.

    Attributes:
        what: a description.
        count: how often.
    """

    what: str
    count: int

    to_json = dataclasses.asdict


class Losses:
    """Counts the losses of one import or export, and knows which columns to convert.

    `called` has the names of columns by their roles; None if the format has no such option.
    """

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        leave_out: Sequence[str] | None = None,
        called: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self._columns = _names("columns", columns)
        self._leave_out = _names("leave_out", leave_out) or ()
        self.called = {
            role: _names(role, given.split(",") if isinstance(given, str) else given) or ()
            for role, given in (called or {}).items()
        }
        self.has_roles = called is not None
        named = [*itertools.chain.from_iterable(self.called.values())]
        if len({*named}) < len(named):
            raise SchemaError(f"expected a column to be one thing, found {called!r:.200}")
        self._unseen = {*(self._columns or ()), *self._leave_out, *named}
        self._counts: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}

    def add(self, what: str, count: int = 1) -> None:
        """Count `count` more; 0 adds nothing. Several files share a loss: it names none of them."""
        if count:
            self._counts[what] = self._counts.get(what, 0) + count

    def add_names(self, what: str, names: Iterable[str]) -> None:
        """Count some names, and list the first ones."""
        found = [*names]
        self.add(what, len(found))
        self._names[what] = sorted({*found, *self._names.get(what, ())})[: _SHOWN + 1]

    def leaves_out(self, name: str) -> bool:
        """Whether `leave_out` names a column, or a group that it is in."""
        return not _and_above(name).isdisjoint(self._leave_out)

    def takes(self, name: str, *, needed: bool = False) -> bool:
        """Whether to convert a column, else counts it; `columns` may leave out a `needed` one."""
        above = _and_above(name)
        self._unseen -= above
        if above.intersection(self._leave_out):
            self.add(f"column {name}: left out, as leave_out says")
            return False
        if needed or self._columns is None or above.intersection(self._columns):
            return True
        self.add(f"column {name}: left out, as columns does not name it")
        return False

    def check_names(self, source: object) -> None:
        """Raise SchemaError for a chosen name that the source does not have."""
        if self._unseen:
            raise SchemaError(
                f"{source}: found no column {min(self._unseen)!r}, which an option names; without "
                f"these options an import lists what it leaves out"
            )

    def all(self) -> tuple[Loss, ...]:
        """All losses."""
        return tuple(Loss(self._described(what), count) for what, count in self._counts.items())

    def _described(self, what: str) -> str:
        names = self._names.get(what, [])
        shown = ": " * bool(names) + ", ".join([*names[:_SHOWN], *["..."] * (len(names) > _SHOWN)])
        return printable(what + shown).replace("\n", "\\n")


def _and_above(name: str) -> set[str]:
    """A column, and the groups that it is in, as options name them."""
    name = name.strip("/")
    return {name, *(name[:at] for at, one in enumerate(name) if one == "/")}


def _names(argument: str, given: object) -> tuple[str, ...] | None:
    if given is None:
        return None
    out = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not out or not all(isinstance(one, str) and one for one in out):
        raise SchemaError(f"{argument}: expected a list of names of columns, found {given!r:.80}")
    return tuple(one.strip("/") for one in out)
