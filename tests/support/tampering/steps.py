"""Steps and ends that break a rule of docs/semantics.md, "Rows", with checksums that fit.

Invariant: no case makes a lane that somebody could have written; what `verify` calls sound is not
one of them.
"""

import json
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.tampering.hostile import Change, seal

Array = npt.NDArray[Any]


def _put(place, value):
    def store(rows):
        rows[place] = value

    return store


def _add(place, value):
    def store(rows):
        rows[place] += value

    return store


def _exchange(one, other):
    def store(rows):
        rows[one], rows[other] = rows[other].copy(), rows[one].copy()

    return store


# What `fixtures` plays: three environments, the first of which is left out of row 5, 11, ..., the
# second of 6, 13, ..., the third of 7, 15, ...
_HUGE, _LEAST = (1 << 63) - 1, -(1 << 63)
BROKEN_RULES = {
    "a number that jumps": ("step", _put((3, 1), 9)),
    "the largest number": ("step", _put((3, 1), _HUGE)),
    "the smallest number": ("step", _put((3, 1), _LEAST)),
    "a number below 0": ("step", _put((3, 1), -1)),
    "a step that is left out": ("step", _put((3, 1), 0)),
    "a step where there is none": ("step", _put((5, 0), 6)),
    "numbers of two environments exchanged": ("step", _exchange((9, 0), (9, 1))),
    "all environments are left out": ("step", _put(3, 0)),
    "the newest number": ("step", _put((38, 1), 1_000)),
    "a reset of 2": ("resets", _put((0, 1), 2)),
    "a reset that is none": ("resets", _put((3, 1), 1)),
    "a reset that is missing": ("resets", _put((0, 1), 0)),
    "a reset of nobody": ("resets", _put((5, 0), 1)),
    "an end of 2": ("ends", _put((4, 0), 2)),
    "an end that is not one": ("ends", _put((3, 1), 1)),
    "an end that is missing": ("ends", _put((4, 0), 0)),
    "an end of nobody": ("ends", _put((5, 0), 1)),
    "a flag of 2": ("non_terminals", _put((3, 1), 2)),
    "the end of another step": ("finals/id", _add(3, 3)),
    "the end of another environment": ("finals/id", _add(3, 1)),
    "an end past the last row": ("finals/id", _put(3, 1_000_000)),
    "the largest end": ("finals/id", _put(3, _HUGE)),
    "an end before the first row": ("finals/id", _put(3, -1)),
    "ends in another order": ("finals/id", _exchange(3, 5)),
    "ends of 0": ("finals/id", _put(np.s_[:9], 0)),
    "another first step": ("finals/first", _add(3, 3)),
    "the largest first step": ("finals/first", _put(3, _HUGE)),
    "a first step before the first row": ("finals/first", _put(3, -1)),
}
"""(array, what is stored in it) by what is wrong then."""


def broken_steps():
    """Each case with the store that it is made in."""
    for name, (array, store) in BROKEN_RULES.items():
        case = partial(_store, name=name, array=array, store=store)
        yield "vector", case
        yield "crashed vector", case
    for kind in ("vector", "crashed vector"):
        for number in (0, -1, 1, 2, 4, 4096, 1 << 40, "3", 3.0, None):
            yield kind, partial(_set_environments, number=number)
        yield kind, partial(_lose, path="finals")
        yield kind, partial(_lose, path="finals/zarr.json")
    yield "crashed vector", partial(_lose, path="finals/.live")


def _store(victim, name, array, store):
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


def _set_environments(victim, number):
    """Another number of environments in the lane's zarr.json."""
    document = victim.pristine.document("zarr.json")
    document["attributes"]["mmreplay"]["environments"] = number
    victim.put("zarr.json", json.dumps(document).encode())
    return Change(f"{number!r} environments", wrong=True)


def _lose(victim, path):
    """A file or directory less."""
    victim.spoil(path)
    return Change(f"{path} lost", wrong=True)
