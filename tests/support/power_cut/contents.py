"""What the lane of a history must hold, and how it comes to it.

Invariant: a step or a reset is in the model before the writer is asked for it, for it may be
committed when the crash comes; what the crash leaves of the newest ones is cut off the model then.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from mmreplay.batches.runs import Steps
from mmreplay.schema import FRAME
from mmreplay.storage import chunk_files
from mmreplay.writing.create import AnyWriter
from mmreplay.writing.lane_files import LockedLane
from tests.support.oracle import checks
from tests.support.oracle.layout import Layout
from tests.support.oracle.model import FLAGS, LaneModel, Model, Played
from tests.support.power_cut.changing import Derived

_MOST = 24  # transitions to compare
_SETTINGS: Any = {"stack": 3, "n_step": 2, "gamma": 0.5}

Frames = dict[str, npt.NDArray[Any]]


class Contents:
    """Of a lane; its length is the number of its rows."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.lane = LaneModel(layout.schema, layout.environments, layout.capacity)
        self.n = self.lane.n
        self.derived = Derived(layout.derived, self.n)
        self.exact = True
        self._n_calls = 0
        self._before: dict[int, Played] = {}  # what ran before the newest call
        self._reset: list[int] = []  # the environments that it resets; none in a step

    def __len__(self) -> int:
        return len(self.lane.rows)

    @property
    def model(self) -> Model:
        """Of the store."""
        out = Model(self.layout.schema, [])
        out.lanes = [self.lane]
        return out

    def copy(self) -> Contents:
        """Contents that can be cut without changing these."""
        out = Contents(self.layout)
        out.lane, out._n_calls, out.exact = self.lane.copy(), self._n_calls, self.exact
        out.derived = self.derived.copy()
        return out

    def recovered(self, head: int) -> None:
        """A writer has opened it: rows from `head` on were lost, and all episodes are over."""
        self.lane.cut(head)
        self.exact, self._reset = True, []

    # ------------------------------------------------------------ what a writer does

    def step(
        self, writer: AnyWriter, luck: random.Random, number: int, *, calm: bool, again: bool
    ) -> None:
        """A step or a reset; what is written to stores of other numbers differs.

        No two calls give the same, so that what a lost one has left shows in the next one's place.
        `calm`: end no episode by a reset, as that may have to wait. `again`: reset some that runs.
        """
        self._n_calls += 1
        schema, n = self.layout.schema, self.n
        values = self._n_calls * 7 + number * 37 + np.arange(n) * 50
        frames: Frames = {
            key: np.stack([np.full(one.shape, v % 250 + 1, one.dtype) for v in values])
            for key, one in schema.frames.items()
        }
        self._before, self._reset = (
            dict(self.lane.running),
            self._to_reset(luck, calm=calm, again=again),
        )
        self.exact = False
        single = self.layout.environments is None
        given = frames if schema.is_dict else frames[FRAME]
        if self._reset:
            self.lane.reset({e: self._of(frames, e) for e in self._reset})
            if single:
                writer.reset(self._of(frames, 0))
            else:
                whole = len(self._reset) == n and luck.random() < 0.5
                mask = None if whole else np.isin(np.arange(n), self._reset)
                writer.reset(given, mask)  # type: ignore[call-arg]
            self._done()
            return
        if single and not calm and luck.random() < 0.05:
            self._extend(writer, luck, values)
            self._done()
            return
        running = sorted(self.lane.running)
        action = self.layout.action
        actions = np.stack([np.full(action.shape, v, action.dtype) for v in values])
        rewards = values.astype(self.layout.reward_dtype)
        often = 20 if n < 10 else 60
        picked = [luck.choice((*FLAGS, *("",) * often)) if e in running else "" for e in range(n)]
        flags = {name: np.array([one == name for one in picked]) for name in FLAGS}
        extras = {name: values.astype(one.dtype) for name, one in self.layout.extras.items()}
        derived = self.derived.some(luck, values)
        for e in running:
            self.derived.give(len(self) * n + e, {name: one[e] for name, one in derived.items()})
        extras |= derived
        self.lane.step(
            {
                e: (
                    actions[e],
                    rewards[e],
                    self._of(frames, e),
                    {name: bool(one[e]) for name, one in flags.items()},
                    {name: one[e] for name, one in extras.items()},
                )
                for e in running
            }
        )
        if single:
            more: Any = {name: one[0] for name, one in (flags | extras).items()}
            writer.step(actions[0], float(rewards[0]), self._of(frames, 0), **more)
        else:
            mask = None if len(running) == n and luck.random() < 0.7 else np.isin(range(n), running)
            writer.step(actions, rewards, given, **flags, **extras, mask=mask)
        self._done()

    def _done(self) -> None:
        self.exact, self._reset = True, []

    def _extend(self, writer: Any, luck: random.Random, values: npt.NDArray[Any]) -> None:
        """Some steps of the running episode in one call, which commits them in pieces."""
        schema, k, ends = self.layout.schema, luck.randrange(1, 8), luck.random() < 0.3
        numbers = values[0] + np.arange(k + 1)
        frames = {
            key: np.stack([np.full(one.shape, v % 250 + 1, one.dtype) for v in numbers])
            for key, one in schema.frames.items()
        }
        for key, one in self.lane.running[0].frames[-1].items():
            frames[key][0] = one
        action, rewards = self.layout.action, numbers[1:].astype(self.layout.reward_dtype)
        actions = np.stack([np.full(action.shape, v, action.dtype) for v in numbers[1:]])
        extras = {name: numbers[1:].astype(one.dtype) for name, one in self.layout.extras.items()}
        terminal = np.array([luck.random() < 0.1 for _ in range(k)])
        derived = self.derived.all(numbers[1:])
        extras |= derived
        for n in range(k):
            self.derived.give(len(self), {name: one[n] for name, one in derived.items()})
            flags = {"life_lost": bool(terminal[n]), "truncated": ends and n == k - 1}
            more = {name: one[n] for name, one in extras.items()}
            self.lane.step({0: (actions[n], rewards[n], self._of(frames, n + 1), flags, more)})
        steps = Steps(frames, actions, rewards, terminal, extras, begins=False, ends=ends)
        writer._extend(steps)

    def update(self, data: mmreplay.Dataset, luck: random.Random) -> None:
        """Other values of transitions, or of what was evicted."""
        self._n_calls += 1
        lane = self.lane
        entries = [
            row * self.n + env
            for row in range(max(lane.first - 2, 0), len(lane.rows))
            for env in lane.rows[row]
        ]
        ids = luck.choices(entries, k=luck.randrange(1, 6)) if entries else []
        values = self.derived.some(luck, self._n_calls * 7 + 3 + np.arange(len(ids)) * 50)
        kept = [n for n, entry in enumerate(ids) if entry // self.n >= lane.first]
        for n in kept:
            given = {name: one[n] for name, one in values.items()}
            self.derived.change(ids[n], given)
            for name, value in given.items():
                lane.update(ids[n], name, value)
        data.update(np.array(ids, np.int64), **values)
        self.derived.returned()

    def _of(self, frames: Frames, env: int) -> Any:
        if self.layout.schema.is_dict:
            return {key: one[env] for key, one in frames.items()}
        return frames[FRAME][env]

    def _to_reset(self, luck: random.Random, *, calm: bool, again: bool) -> list[int]:
        """The environments that the next call resets; a step of the others comes if none."""
        running = self.lane.running
        idle = [e for e in range(self.n) if e not in running]
        pick = luck.random()
        if pick < 0.06 or again or not running:  # in mid-episode, too, or once more before any step
            may = idle if calm and running else range(self.n)
            return luck.sample(may, luck.randrange(1, len(may) + 1)) if may else []
        if idle and pick < 0.6:
            return [e for e in idle if luck.random() < 0.8]
        return []

    @staticmethod
    def has_to_wait(writer: AnyWriter, n: int) -> bool:
        """Whether the next step or reset does, for a shard."""
        return any(
            one.log.head + more >= one._sealer.half_stop
            for one, more in ((writer._rows, 1), (writer._ends.finals, n))
        )

    def settle(self, writer: AnyWriter) -> None:
        """Go on from what an interrupted call has left."""
        head, lane = writer.files.rows.head, self.lane
        if not self._reset:
            while head < len(self):
                self._undo_step()
        else:
            over = writer._ends.ended(head - 1) if head else np.zeros(self.n, np.bool_)
            runs = np.atleast_1d(writer.running)
            for e in self._reset:
                old, new = self._before.get(e), lane.running.pop(e)
                if old is not None and old.steps and not over[e]:
                    old.over = False
                    lane.finals.remove(old)
                    lane.running[e] = old
                elif runs[e]:
                    lane.running[e] = self._fresh(writer, e, old, new)
        self._reset = []
        found = np.flatnonzero(np.atleast_1d(writer.running)).tolist()
        if head != len(self) or writer.rows != head or found != sorted(lane.running):
            raise AssertionError(
                f"after an interrupt: {head} rows, {writer.rows} by the writer, of which {found} "
                f"run; expected {len(self)}, of which {sorted(lane.running)} run"
            )
        self.check_finals(writer.files)

    def _undo_step(self) -> None:
        lane = self.lane
        for env, one in lane.rows.pop().items():
            one.steps.pop()
            one.frames.pop()
            if one.over:
                one.over = False
                lane.finals.remove(one)
            lane.running[env] = one
            if not one.steps:
                lane.episodes.remove(one)

    def _fresh(self, writer: AnyWriter, env: int, old: Played | None, new: Played) -> Played:
        """Which of two episodes without a step runs, by the pending row."""
        for one in (new, old):
            if one is not None and all(
                np.array_equal(self._pending(writer, path)[env], one.frames[0][key])
                for key, path in self.layout.schema.frame_paths.items()
            ):
                return one
        raise AssertionError(f"environment {env}: another first frame than it was given")

    def _pending(self, writer: AnyWriter, path: str) -> npt.NDArray[Any]:
        rows = writer._rows
        return rows.stored(path, rows.log.head).reshape(self.n, -1)

    # ------------------------------------------------------------ what is found

    def check(self, store: mmreplay.Store, luck: random.Random) -> None:
        """What a reader finds at any moment."""
        view, reader = store.lanes[0], store.live.readers[0]
        head, base = view.rows, view.base
        model = self._seen(head, base, runs=reader.is_live)
        lane = model.lanes[0]
        self.derived.take(view, lane)
        unsure = head - 1 if not self.exact or not (reader.is_live or reader.is_closed) else head
        if base > lane.next_base:
            raise AssertionError(f"base: expected at most {lane.next_base}, found {base}")
        arrays = lane.arrays()
        for path, column in checks.columns_of(view, model.schema).items():
            found, expected = column[:], arrays[path]
            expected[:base] = 0
            if path == "ends":
                found, expected = found[:unsure], expected[:unsure]
            checks.check_same(found, expected, f"{view.path}: {path}")
        checks.check_ids(store, model)
        if unsure == head:
            checks.check_episodes(store, model)
            if n := len(store.episodes):
                checks.check_trajectories(store, model, [luck.randrange(n)])
        entries = lane.transitions()
        newest = entries[-2 * self.n :]
        few = {*luck.sample(newest, min(_MOST // 2, len(newest)))}
        few |= {*luck.sample(entries, min(_MOST // 2, len(entries)))}
        self.check_batch(store, model, sorted(few), sure_below=unsure)

    @staticmethod
    def check_batch(
        store: mmreplay.Store, model: Model, ids: list[int], sure_below: int, **more: Any
    ) -> None:
        """Transitions; which episodes ended with a row from `sure_below` on is not asked."""
        settings: Any = _SETTINGS | more
        found = store.transitions(np.array(ids, np.int64), **settings)
        expected = model.batch(ids, **settings)
        lane = model.lanes[0]
        unsure = [
            (one := lane.find(i)[0]).last >= sure_below
            and i // lane.n + settings["n_step"] > one.last
            for i in ids
        ]
        for batch in (found, expected):
            batch.terminated[unsure] = batch.truncated[unsure] = False
        checks.check_batch(found, expected)

    def _seen(self, head: int, base: int, *, runs: bool) -> Model:
        """The model as of so many rows; `runs` says whether episodes go on."""
        lane, model = self.lane.copy(), Model(self.layout.schema, [])
        model.lanes = [lane]
        newest = lane.rows[head - 1] if head else {}
        over = {env: one.over and one.last == head - 1 for env, one in newest.items()}
        if not runs or head < len(lane.rows):
            lane.cut(head)
            for env, one in newest.items():
                one.over = over[env] or not runs
        lane.forget(base)
        return model

    def check_finals(self, files: LockedLane) -> None:
        """The log of final observations of a lane that was opened, or in which a call has settled.

        Which of two episodes that ended with one row stands first, the model learns.
        """
        n, log = self.n, files.finals
        ids, firsts = (
            chunk_files.read_rows(log, log.specs[path], log.base, log.head).tolist()
            for path in ("id", "first")
        )
        expected = sorted(
            (one.last * n + one.env, one.first * n + one.env) for one in self.lane.finals
        )
        found = sorted(zip(ids, firsts, strict=True))
        least = sum(last >= files.rows.base * n for last, _ in expected)
        if found != expected[len(expected) - len(found) :] or len(found) < least:
            raise AssertionError(f"finals: expected the last of {expected}, found {found}")
        if [i // n for i in ids] != sorted(i // n for i in ids):
            raise AssertionError(f"finals: not in the order of rows: {ids}")
        before = self.lane.began_before(files.rows.base)
        if files.rows.before != before:
            raise AssertionError(f"{before} episodes before base, found {files.rows.before}")
        places = {entry: place for place, entry in enumerate(ids)}
        self.lane.finals.sort(key=lambda one: places.get(one.last * n + one.env, -1))
