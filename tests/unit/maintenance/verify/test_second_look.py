"""A writer at work beside `verify`."""

import random

from mmreplay import Field, verify
from tests.support.processes.threads import BackgroundThreads

ACTION = Field((), "uint8", chunk=8)


def test_a_writer_at_work_is_never_taken_for_damage(make, story, kinds):
    """It appends, seals, evicts, closes and opens again all the time."""
    writer = make(frame=kinds["dict"], action=ACTION, capacity=50, flush_s=0.02)
    path, n_reopened = writer.path, 0

    def write(going):
        nonlocal writer, n_reopened
        generator = random.Random(0)
        while going():
            story.play(writer, generator.randrange(1, 30), "terminated")
            if generator.random() < 0.03:
                writer.close()
                writer = make(append=True, flush_s=0.02)
                n_reopened += 1

    n_verified = 0
    with BackgroundThreads(write):
        while n_verified < 5 or n_reopened < 2:
            report = verify(path)
            assert (report.findings, report.warnings) == ([], [])
            n_verified += 1
    writer.close()
    assert verify(path).sound
