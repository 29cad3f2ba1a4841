"""Settings that hold for every test."""

import os

from hypothesis import HealthCheck, settings

# No deadlines: an example may wait for a disk, a child process or a busy neighbour, and a test
# that has really stopped is ended by the timeout in pyproject.toml.
settings.register_profile("dev", deadline=None, max_examples=50)
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,  # a red run is red again on the next machine
    print_blob=True,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
# HYPOTHESIS_PROFILE=soak make test: look longer, for faults that fifty examples do not reach.
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
)
_default = "ci" if os.environ.get("CI") else "dev"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", _default))
