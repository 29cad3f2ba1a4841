"""What a recording says while it goes on."""

from itertools import pairwise

import pytest

from mmreplay.recording import progress, recorder
from mmreplay.recording.progress import RecordProgress
from mmreplay.recording.recorder import record
from tests.support.counter_env import Counter

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_an_error_in_the_progress_callback_passes_unchanged(tmp_path):
    def broken(progress):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match=r"^mine$"):
        record(Counter, tmp_path / "s", 100, progress=broken)


def test_progress_is_reported_four_times_a_second(tmp_path, monkeypatch):
    """By a clock that goes on by 10 ms with each step."""
    now = 0.0

    class Timed(Counter):
        def step(self, action):
            nonlocal now
            now += 0.01
            return super().step(action)

    for module in (progress, recorder):
        monkeypatch.setattr(module, "perf_counter", lambda: now)
    told: list[RecordProgress] = []
    record(Timed, tmp_path / "s", 400, progress=told.append)
    steps = [report.steps for report in told]
    assert {after - before for before, after in pairwise(steps[:-1])} <= {25, 26}
    assert (steps[0], steps[-1]) == (1, 400)
    assert steps[-2] > 400 - 27
    assert told[-1].seconds == pytest.approx(4)
    assert told[-1].steps_per_s == pytest.approx(100)
    assert told[-1].episodes == 57
