"""What a learner samples from, beside a receiver: limited, and by priority."""

import itertools

import numpy as np
import pytest

import mmreplay
from mmreplay.distributed import buffer
from mmreplay.distributed.limiter import Limits
from mmreplay.errors import LockedError, SchemaError
from tests.support.sent_steps import SMALL, LossyTransport, sender

LIMITS = Limits(1.0, 10, 2000)


def play(writer, n, running=False):
    frame = np.zeros((40, 40), "uint8")
    if not running:
        writer.reset(frame)
    for t in range(n):
        writer.step(t, 0, frame, False, False)
    writer.flush()


@pytest.mark.parametrize("prioritized", [False, True])
def test_each_kind_of_batch_waits_and_counts(tmp_path, monkeypatch, prioritized):
    path = tmp_path / "x.zarr"
    transport = LossyTransport(path, SMALL, itertools.repeat("done"), LIMITS)
    play(sender(transport, "a", None), 20)
    with buffer(path, rank=3, prioritized=prioritized, stack=None) as data:
        limiter, waits = data.limiter, []
        monkeypatch.setattr(limiter, "wait", waits.append)
        before = limiter.samples
        data.sample(4)
        data.sample_sequences(5, 2)
        data.sample_windows(6, {"reward": [0]})
        assert waits == [4, 5, 6]
        assert limiter.samples == before + 15
        next(data.batches(7))
        assert limiter.samples == before + 15
        monkeypatch.undo()
        with pytest.raises(SchemaError, match="batch_size"):
            data.sample(5000)
    transport.receiver.close()


def test_priorities_stay_through_kills_of_the_receiver(tmp_path):
    path, known = tmp_path / "x.zarr", {}
    fates = itertools.cycle(["done", "lost after", "done", "done"])
    transport = LossyTransport(path, SMALL, fates, Limits())
    writers = [sender(transport, name, None, patience_s=1e9) for name in "ab"]
    random = np.random.default_rng(0)
    with buffer(path, prioritized={"alpha": 1.0}, stack=None) as data:
        for round_ in range(12):
            for writer in writers:
                play(writer, 30, running=writer.running)
            if round_ % 4 == 3:
                transport.kill()
            batch = data.sample(16)
            errors = random.random(16)
            data.update_priorities(batch.id, errors)
            known |= dict(zip(batch.id.tolist(), (errors + 1e-6).tolist(), strict=True))
        ids = data.ids
        found = dict(zip(ids.tolist(), data.priorities(ids).tolist(), strict=True))
        assert len(found) == len(writers) * 12 * 30
        assert {i: found[i] for i in known} == known
        assert {found[i] for i in found.keys() - known.keys()} == {1.0}
        with pytest.raises(LockedError):
            buffer(path, prioritized=True)
        transport.receiver.close()
    assert mmreplay.verify(path).findings == []
