"""What the tests of adapters share."""

import pytest

from tests.support.epoch_stores import record


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """The paths of closed stores by kind, of 300 steps of each environment."""
    known = {}

    def paths(kind):
        if kind not in known:
            known[kind] = record(tmp_path_factory.mktemp("stores"), kind, 300)
        return known[kind]

    return paths
