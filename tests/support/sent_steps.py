"""Actors whose blocks get lost: scripts of calls, a transport that fails by a plan, a comparison."""

from __future__ import annotations

import contextlib
import pickle

import numpy as np

import mmreplay
from mmreplay import Field, Text
from mmreplay.distributed.receiver import Receiver
from mmreplay.distributed.sender import SendingVectorWriter, SendingWriter

FIELDS = {
    "action": Field((2,), "float32"),
    "extras": {"value": Field((), "float64")},
    "episode": {"task": Text(6), "success": Field((), "int8")},
    "frame": {"image": Field((4, 4), "uint8"), "state": Field((3,), "float32")},
}
SMALL = {
    "frame": Field((40, 40), "uint8"),
    "action": Field((), "int64"),
    "episode": FIELDS["episode"],
}

FATES = ("done", "lost before", "lost after", "killed before", "killed after", "killed inside")


class Killed(BaseException):
    """The receiver's process ends here."""


class Clock:
    """Time that passes where it is told to, and in sleep."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Arrived:
    """A reply that is there."""

    def __init__(self, answer):
        self.answer = answer

    def done(self):
        return True

    def result(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class LossyTransport:
    """Calls a receiver of this process, and loses calls and receivers by a plan of fates.

    Attributes:
        opened: the steps that the lane had when it was opened, after the first time.
        receiver: the one that lives.
    """

    def __init__(self, path, fields, fates=(), limits=None):
        self.path, self.fields, self.limits = path, fields, limits
        self.fates, self.opened, self.n_blocks = iter(fates), [], 0
        self.start()

    def start(self):
        self.receiver = Receiver(self.path, self.fields, self.limits, flush_s=0)

    def kill(self):
        """Leave all lanes as a kill does, and begin with another receiver."""
        for lane in self.receiver._lanes.values():
            lane.writer._release_unclosed()
        self.start()

    def open(self, name, environments):
        fate = next(self.fates, "done")
        if fate in ("killed before", "killed inside"):
            self.kill()
        if fate in ("lost before", "killed before"):
            raise ConnectionError(fate)
        out = self.receiver.open(name, environments)
        self.opened.append(out.head)
        if fate == "killed after":
            self.kill()
        if fate in ("lost after", "killed after"):
            raise ConnectionError(fate)
        return pickle.loads(pickle.dumps(out))

    def append(self, name, token, start, block):
        self.n_blocks += 1
        fate = next(self.fates, "done")
        if fate == "lost before":
            return Arrived(ConnectionError(fate))
        if fate == "killed before":
            self.kill()
        arguments = pickle.loads(pickle.dumps((name, token, start, block)))
        if fate == "killed inside" and name in self.receiver._lanes:
            self._append_half(arguments)
            return Arrived(ConnectionError(fate))
        try:
            answer = self.receiver.append(*arguments)
        except mmreplay.MmreplayError as error:  # as it would come over a wire
            return Arrived(error)
        if fate == "killed after":
            self.kill()
        lost = fate in ("lost after", "killed after")
        return Arrived(ConnectionError(fate) if lost else answer)

    def _append_half(self, arguments):
        """Append half of the steps, and be killed."""
        writer = self.receiver._lanes[arguments[0]].writer
        step, left = writer.step, arguments[3][0] // 2

        def counted(*values, **more):
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            step(*values, **more)

        writer.step = counted
        with contextlib.suppress(Killed):
            self.receiver.append(*arguments)
        del writer.step
        self.kill()


def sender(transport, name, n, clock=None, **options):
    """A writer of one environment if n is None, else of n."""
    clock = clock or Clock()
    options = {"clock": clock, "sleep": clock.sleep, **options}
    if n is None:
        return SendingWriter(transport, name, **options)
    return SendingVectorWriter(transport, name, n, **options)


def script(seed, n, fields, n_steps=60):
    """Calls of a writer, (name, arguments, keywords), with everything that they may have."""
    rng = np.random.default_rng(seed)
    width = n or 1
    has_extras = "extras" in fields

    def shaped(values):
        return values[0] if n is None else values

    def frames():
        if isinstance(fields["frame"], dict):
            image = rng.integers(0, 255, (width, 4, 4), "uint8")
            return {
                "image": shaped(image),
                "state": shaped(rng.normal(size=(width, 3)).astype("float32")),
            }
        return shaped(rng.integers(0, 3, (width, 40, 40), "uint8"))

    def reset(which):
        mask = {} if n is None or which.all() else {"mask": which}
        texts = [f"task{t}" for t in rng.integers(0, 9, width)]
        told = {"started": int(rng.integers(1, 1 << 40)), "task": shaped(texts)}
        return ("reset", (frames(),), mask | (told if rng.random() < 0.8 else {"started": 7}))

    running = np.ones(width, bool)
    calls = [reset(running)]
    for _ in range(n_steps):
        over = (rng.random((2, width)) < 0.06) & running
        actions = rng.integers(0, 9, (width, *fields["action"].shape))
        actions = actions.astype(fields["action"].dtype)
        values = (shaped(actions), shaped(rng.normal(size=width).astype("float32")), frames())
        more = {"value": shaped(rng.normal(size=width))} if has_extras else {}
        if rng.random() < 0.1:
            more["life_lost"] = shaped((rng.random(width) < 0.5) & running)
        if n is not None and not running.all():
            more["mask"] = running.copy()
        if running.any():
            calls.append(("step", (*values, *map(shaped, over)), more))
        idle, ended = ~running, over.any(0)
        running &= ~ended
        if ended.any() and rng.random() < 0.7:
            mask = {} if n is None else {"mask": ended}
            calls.append(("episode", (), {"success": 1, **mask}))
        if n is not None and rng.random() < 0.03:
            which = rng.random(width) < 0.5
            calls.append(("end_episodes", (which,), {}))
            running &= ~which
        begin = idle | (ended & (rng.random(width) < 0.5 if n is not None else True))
        if n is not None and rng.random() < 0.03:
            begin |= rng.random(width) < 0.3  # in the middle of an episode
        if begin.any():
            calls.append(reset(begin))
            running |= begin
        if rng.random() < 0.05:
            calls.append(("flush", (), {}))
    return calls


def make_calls(writer, calls):
    for name, values, keywords in calls:
        getattr(writer, name)(*values, **keywords)


def write_directly(path, fields, n, calls, cuts):
    """What a writer of `create` stores, if all running episodes end and begin again at `cuts`."""
    writer = mmreplay.create(path, lane="actor", lanes=n, flush_s=0, **fields)
    newest, told, cuts = None, {}, {*cuts}
    done = 0
    for name, values, keywords in calls:
        if writer.rows in cuts:  # before the other calls at that step
            cuts.discard(writer.rows)
            _begin_again(writer, n, newest, told)
        if name == "flush":
            continue
        if name == "reset":
            mask = keywords.get("mask", np.ones(n or 1, bool))
            newest = _replaced(newest, values[0], mask, n)
            fields_of_it = {key: one for key, one in keywords.items() if key != "mask"}
            for e in np.flatnonzero(mask):
                told[e] = {
                    key: one[e] if n is not None and isinstance(one, list) else one
                    for key, one in fields_of_it.items()
                }
        getattr(writer, name)(*values, **keywords)
        if name == "step":
            newest = values[2]
            done += 1
    if writer.rows in cuts:
        _begin_again(writer, n, newest, told)
    writer.close()


def _begin_again(writer, n, newest, told):
    running = np.atleast_1d(writer.running).copy()
    writer.end_episodes()
    for e in np.flatnonzero(running):
        mask = () if n is None else (np.arange(n) == e,)
        writer.reset(newest, *mask, **told[e])


def _replaced(old, new, mask, n):
    if old is None or n is None:
        return new
    if isinstance(new, dict):
        return {key: _replaced(old[key], new[key], mask, n) for key in new}
    return np.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def assert_same_experience(found, expected, cuts=()):
    """Both stores have the same episodes, with all that is in them.

    What was told of an episode after its last step may be missing where the lane was cut there.
    """
    with mmreplay.open(found) as mine, mmreplay.open(expected) as other:
        assert mine.ids.tolist() == other.ids.tolist()
        names = [name for name in other.episodes.dtype.names if name != "success"]
        assert mine.episodes[names].tolist() == other.episodes[names].tolist()
        n = mine.live.readers[0].n
        last = mine.episodes["id"] // n + mine.episodes["length"]
        is_cut = np.isin(last, [*cuts])
        success = mine.episodes["success"], other.episodes["success"]
        assert ((success[0] == success[1]) | (is_cut & (success[0] == 0))).all()
        ids, settings = other.ids, {"stack": None, "n_step": 2}
        left, right = mine.transitions(ids, **settings), other.transitions(ids, **settings)
        for name in ("action", "reward", "discount", "non_terminal", "observation"):
            _assert_equal(getattr(left, name), getattr(right, name))
        _assert_equal(left.next_observation, right.next_observation)
        _assert_equal(left.extras, right.extras)
    assert mmreplay.verify(found).findings == []


def _assert_equal(left, right):
    if isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in right:
            _assert_equal(left[key], right[key])
    else:
        np.testing.assert_array_equal(left, right)
