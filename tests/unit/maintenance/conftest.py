"""Lanes of one environment or several, and what they must hold."""

import copy

import pytest

from tests.support.oracle.pair import FIELDS, of_writer


@pytest.fixture
def vector(make):
    """Make a lane: a `Pair` of 5 environments, whose `writer` is open."""

    def create(n=5, name="store.zarr", **changes):
        pair = of_writer(make(name, **(FIELDS | {"lanes": n} | changes)))
        pair.lane.capacity = changes.get("capacity")
        return pair

    return create


@pytest.fixture
def ended():
    """What a copy of a lane must hold: the same, with all episodes over."""

    def of(model):
        out = copy.deepcopy(model.model)
        out.end_session()
        return out

    return of
