"""Settings that hold for every test, and what tests in several folders need."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from mmreplay.system import durable_writes, threads
from tests.support.disks.scratch import scratch_root
from tests.support.effort import EFFORT, THOROUGH, by_effort
from tests.support.leftovers import PASSED, leftovers, settled_leftovers

# Child processes import tests.support and benchmarks too.
ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
# A hundred small processes that each start a thread for every core, and let them spin, only wait.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # those of torch
# A shell starts what runs in its background with Ctrl-C ignored, which children inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The folders of `tmp_path`. A test whose subject is a disk mounts one.
os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(scratch_root()))

# Nothing here looks at the clock: an example may wait for a disk, a child process or a busy
# neighbour, and a test that has really stopped is ended by the timeout in pyproject.toml.
settings.register_profile(
    "mmreplay",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=by_effort(25, 50, 2_000),
)
settings.register_profile(
    "ci",
    settings.get_profile("mmreplay"),
    derandomize=True,  # a red run is red again on the next machine
    print_blob=True,
    database=None,
)
settings.load_profile("ci" if os.environ.get("CI") and not THOROUGH else "mmreplay")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """`make test-deep` runs what is marked deep, and every hypothesis test is, with more examples.

    What is marked `deep(only=True)` is left out of a quick run.
    """
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("deep")
    if EFFORT == "quick":
        later = [
            one for one in items if any(m.kwargs.get("only") for m in one.iter_markers("deep"))
        ]
        config.hook.pytest_deselected(items=later)
        items[:] = [one for one in items if one not in later]


def pytest_collection_finish():
    """Thousands of tests and what they import are no garbage: a collection leaves them out."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def nothing_left(request, caplog):
    """Every test closes what it opens: no thread, descriptor or map of a store outlives it."""
    before = leftovers()
    yield
    request.node.funcargs.clear()  # which holds what fixtures gave
    for when in ("setup", "call"):
        caplog.get_records(when).clear()  # whose tracebacks hold more
    if request.node.stash.get(PASSED, False):  # else the traceback holds more
        assert settled_leftovers(before) == []


@pytest.fixture
def quick_disk(monkeypatch):
    """Nothing here cuts the power, so nothing has to wait for the disk."""
    monkeypatch.setattr(durable_writes, "_fsync", lambda descriptor: None)
    monkeypatch.setattr(durable_writes, "_fdatasync", lambda descriptor: None)
    monkeypatch.setattr(threads, "_THREADS", 1)  # to start one takes longer than what it would do
