"""What the tests of the buffers of baselines share."""

import random

import pytest


@pytest.fixture
def seeded():
    random.seed(1)  # what the buffer takes its seed from, as the original
