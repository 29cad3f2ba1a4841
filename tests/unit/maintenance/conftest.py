"""Lanes of many environments, and what they must hold."""

import copy

import pytest

from tests.support.ticks import FIELDS, TickModel


@pytest.fixture
def vector(make):
    """Make a vector lane: a `TickModel` of 5 environments, whose `writer` is open."""

    def create(n=5, name="store.zarr", **changes):
        return TickModel(make(name, **(FIELDS | {"lanes": n} | changes)), n)

    return create


@pytest.fixture
def ended():
    """What a copy of a lane must hold: the same, with all episodes over."""

    def of(model):
        out = copy.copy(model)
        out.ticks = copy.deepcopy(model.ticks)
        out.starts, out.current = list(model.starts), list(model.current)
        out.end(range(out.n))
        return out

    return of
