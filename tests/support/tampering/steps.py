"""Ticks and starts that break a rule of docs/format.md, "Vector lanes", with checksums that fit.

Invariant: no case makes a lane that somebody could have written; what `verify` calls sound is not
one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.tampering.fixtures import Victim
from tests.support.tampering.hostile import Change, seal

__all__ = ["BROKEN_RULES", "broken_steps"]

Array = npt.NDArray[Any]
Store = Callable[[Array], None]
"""Stores other values into the rows of an array."""


def _put(place: Any, value: Any) -> Store:
    def store(rows: Array) -> None:
        rows[place] = value

    return store


def _add(place: Any, value: int) -> Store:
    def store(rows: Array) -> None:
        rows[place] += value

    return store


def _exchange(one: Any, other: Any) -> Store:
    def store(rows: Array) -> None:
        rows[one], rows[other] = rows[other].copy(), rows[one].copy()

    return store


# What `fixtures` plays: three environments, the first of which is left out of tick 5, 11, ..., the
# second of 6, 13, ..., the third of 7, 15, ...; in tick 5 cell 0 has the partner 2.
_HUGE, _LEAST = (1 << 63) - 1, -(1 << 63)
BROKEN_RULES: dict[str, tuple[str, Store]] = {
    "an episode that has no start": ("ticks/episode", _put((3, 1), 1_000_000)),
    "the largest episode": ("ticks/episode", _put((3, 1), _HUGE)),
    "the newest episode has no start": ("ticks/episode", _put((39, 1), 1_000)),
    "an episode of another environment": ("ticks/episode", _put((3, 1), 0)),
    "an episode that is over": ("ticks/episode", _put((9, 0), 0)),
    "episodes of two environments exchanged": ("ticks/episode", _exchange((3, 0), (3, 1))),
    "a step that is left out": ("ticks/episode", _put((3, 1), -1)),
    "a partner that is itself left out": ("ticks/episode", _put((5, 0), -1)),
    "a partner past the last environment": ("ticks/episode", _put((5, 0), -4)),
    "a partner that another one has": ("ticks/episode", _put((5, 0), -2)),
    "the smallest partner": ("ticks/episode", _put((5, 0), _LEAST)),
    "a partner where there is none": ("ticks/episode", _put((7, 2), -2)),
    "all environments are left out": ("ticks/episode", _put(3, -1)),
    "a count that jumps": ("ticks/count", _add(np.s_[9:], 1)),
    "a count that goes back": ("ticks/count", _add(9, -20)),
    "counts below 0": ("ticks/count", _add(np.s_[:40], -1000)),
    "the largest count": ("ticks/count", _put(39, _HUGE)),
    "the largest count in the middle": ("ticks/count", _put(9, _HUGE)),
    "counts from the smallest on": ("ticks/count", _put(np.s_[:40], _LEAST)),
    "counts of 0": ("ticks/count", _put(np.s_[:40], 0)),
    "an end of 2": ("ticks/ends", _put((4, 0), 2)),
    "an end that is not one": ("ticks/ends", _put((3, 1), 1)),
    "an end that is missing": ("ticks/ends", _put((4, 0), 0)),
    "a flag of 2": ("ticks/non_terminals", _put((3, 1), 2)),
    "an action of nobody": ("ticks/actions", _put((5, 0), 1)),
    "a reward of nobody": ("ticks/rewards", _put((5, 0), 1)),
    "a priority of nobody": ("ticks/priorities", _put((5, 0), 0.5)),
    "an end of nobody": ("ticks/ends", _put((5, 0), 1)),
    "a start in another tick": ("starts/tick", _add(3, 1)),
    "a start past the last tick": ("starts/tick", _put(3, 1_000_000)),
    "a start in the largest tick": ("starts/tick", _put(3, _HUGE)),
    "a start before the first tick": ("starts/tick", _put(3, -1)),
    "the newest start in another tick": ("starts/tick", _add(17, -1)),
    "a start of another environment": ("starts/env", _put(3, 1)),
    "a start of an environment that is not there": ("starts/env", _put(3, 3)),
    "a start of an environment below 0": ("starts/env", _put(3, -1)),
    "starts exchanged": ("starts/tick", _exchange(3, 4)),
}
"""(array, what is stored in it) by what is wrong then."""


def broken_steps() -> Iterator[tuple[str, Callable[[Victim], Change]]]:
    """Each case with the store that it is made in."""
    for name, (array, store) in BROKEN_RULES.items():
        case = partial(_store, name=name, array=array, store=store)
        yield "vector", case
        if array != "ticks/priorities":
            yield "crashed vector", case
    for width in (0, -1, 1, 2, 4, 4096, 1 << 40, "3", 3.0, None):
        yield "vector", partial(_set_width, width=width)
        yield "crashed vector", partial(_set_width, width=width)
    for log in ("ticks", "starts"):
        for kind in ("vector", "crashed vector"):
            yield kind, partial(_lose, path=log)
            yield kind, partial(_lose, path=f"{log}/zarr.json")
        yield "crashed vector", partial(_lose, path=f"{log}/.live")
        yield "vector", partial(_other_log, log=log)
    yield "vector", _exchange_logs


def _store(victim: Victim, name: str, array: str, store: Store) -> Change:
    """Other values in an array of numbers, none of whose chunk files was evicted."""
    document = victim.pristine.document(f"{array}/zarr.json")
    shape = document["chunk_grid"]["configuration"]["chunk_shape"]
    files = sorted(
        (one for one in victim.pristine.files if one.startswith(f"{array}/c.")),
        key=lambda one: int(one.rpartition("/")[2].split(".")[1]),
    )
    whole = b"".join(victim.get(file) for file in files)
    rows = np.frombuffer(whole, document["data_type"]).reshape(-1, *shape[1:]).copy()
    store(rows)
    for place, file in enumerate(files):
        part = rows[place * shape[0] : (place + 1) * shape[0]].tobytes()
        if part != victim.get(file):
            victim.put(file, part)
            seal(victim, file)
    return Change(f"{name}: {array}", wrong=True)


def _set_width(victim: Victim, width: Any) -> Change:
    """Another number of environments in the lane's zarr.json."""
    document = victim.pristine.document("zarr.json")
    document["attributes"]["mmreplay"]["width"] = width
    victim.put("zarr.json", json.dumps(document).encode())
    return Change(f"a width of {width!r}", wrong=True)


def _lose(victim: Victim, path: str) -> Change:
    """A file or directory less."""
    victim.spoil(path)
    return Change(f"{path} lost", wrong=True)


def _other_log(victim: Victim, log: str) -> Change:
    """A log of another lane, which has another uuid."""
    document = victim.pristine.document(f"{log}/zarr.json")
    document["attributes"]["mmreplay"]["uuid"] = "0" * 32
    victim.put(f"{log}/zarr.json", json.dumps(document).encode())
    return Change(f"{log} of another lane", wrong=True)


def _exchange_logs(victim: Victim) -> Change:
    """Each log's documents in the place of the other's."""
    for log, other in (("ticks", "starts"), ("starts", "ticks")):
        victim.put(f"{log}/zarr.json", victim.pristine.files[f"{other}/zarr.json"])
    return Change("zarr.json of ticks and starts exchanged", wrong=True)
