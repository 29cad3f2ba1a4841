"""Kill everything that a run is made of, three times each, and count what is in the store.

Run by test_run.py in a process of its own, as Ray leaves threads behind. Each step has its number
in the lane as its action: so what is lost, written twice or out of order is seen.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}

import ray
from ray.cluster_utils import Cluster

import mmreplay
from mmreplay.distributed import Run
from mmreplay.distributed.limiter import Limiter

FRAME, ACTION = mmreplay.Field((84, 84), "uint8"), mmreplay.Field((), "int64")
N, RATIO = 4, 2.0
PATIENCE_S = 90
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "resources": {"actors": 1}}
NOTICED_SOON = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}

LEARNER = """
import sys
from mmreplay.distributed import buffer
with buffer(sys.argv[1], stack=4, n_step=3) as data:
    while True:
        batch = data.sample(32)
        assert (batch.action < 1 << 40).all()
"""


def player(folder):
    """An actor whose pid lies in a file; it goes on at the step that the lane has."""

    @ray.remote(num_cpus=0, resources={"actors": 1}, max_restarts=-1, max_task_retries=-1)
    class Player:
        def play(self, run, i):
            (folder / f"player-{i}").write_text(str(os.getpid()))
            frames = np.zeros((N, 84, 84), "uint8")
            with run.writer(i, patience_s=PATIENCE_S) as writer:
                t = writer.rows
                writer.reset(frames)
                while not (folder / "stop").exists():
                    frames[:] = t % 251
                    ends = (t + np.arange(N)) % 37 == 0
                    writer.step(np.full(N, t), np.ones(N), frames, ends, np.zeros(N, bool))
                    if ends.any():
                        writer.reset(frames, ends)
                    t += 1
                    time.sleep(0.004)
            return t

    return Player


def heads(path):
    with mmreplay.open(path) as store:
        return [store.live.rows(lane) for lane in range(2)]


def wait(what, until):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if until():
            return
        time.sleep(0.1)
    raise TimeoutError(what)


def at_work(path):
    """Return when both lanes have grown, past what was on its way before."""
    before = heads(path)
    wait(
        f"lanes at {before}",
        lambda: all(now > then + 48 for now, then in zip(heads(path), before, strict=True)),
    )


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Learner:
    """A process without Ray that samples."""

    def __init__(self, path):
        self.command = [sys.executable, "-c", LEARNER, str(path)]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command)

    def check(self):
        assert self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()


def main(folder, kinds, times):
    path = folder / "run.zarr"
    head = {"num_cpus": 1, "object_store_memory": 80 << 20, "_system_config": NOTICED_SOON}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    ray.init(cluster.address, log_to_driver=False)
    run = Run(
        path,
        frame=FRAME,
        action=ACTION,
        lanes=N,
        actors=2,
        samples_per_insert=RATIO,
        min_size=100,
    )
    players = [player(folder).remote() for _ in range(2)]
    tasks = [one.play.remote(run, i) for i, one in enumerate(players)]
    learner = Learner(path)
    try:
        at_work(path)
        for number in range(times):
            for kind in kinds:
                began = time.monotonic()
                if kind == "actor":
                    kill(int((folder / f"player-{number % 2}").read_text()))
                elif kind == "receiver":
                    kill(json.loads((path / "lane-00000" / ".live" / "writer").read_text())["pid"])
                elif kind == "learner":
                    learner.kill()
                    learner.start()
                else:
                    cluster.remove_node(nodes.pop(0), allow_graceful=False)
                    nodes.append(cluster.add_node(**NODE))
                at_work(path)
                learner.check()
                print(f"{kind}: at work after {time.monotonic() - began:.1f} s", flush=True)
        (folder / "stop").touch()
        last = ray.get(tasks, timeout=PATIENCE_S)
        limiter = Limiter(path)
        ahead = limiter.samples - RATIO * (limiter.inserts - limiter.limits.min_size)
        room = limiter.limits.margin + RATIO * N * 16 * (2 + times)
        assert -room <= ahead <= limiter.limits.margin, (ahead, room)
    finally:
        learner.kill()
    run.close()
    count(path, last)
    print(f"{sum(last) * N} rows", flush=True)
    ray.shutdown()
    cluster.shutdown()


def count(path, last):
    """Each step is there once, and in order; so are its frames."""
    report = mmreplay.verify(path)
    assert (report.state, report.findings) == ("closed", []), report
    with mmreplay.open(path) as store:
        for lane, n in zip(store.lanes, last, strict=True):
            expected = np.repeat(np.arange(n)[:, None], N, axis=1)
            np.testing.assert_array_equal(lane.actions[:], expected)
            after = np.arange(1, n)
            frames = lane.frames[1:]
            begun = lane.resets[1:] != 0
            continued = (frames[..., 0, 0] == (after[:, None] - 1) % 251) | begun
            assert continued.all()
        assert len(store) == N * sum(last)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:], int(sys.argv[2]))
