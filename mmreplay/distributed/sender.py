"""The writer of an actor: it is used like a writer of `create`, and sends blocks to the receiver.

Invariants:
- One block is under way while the next one fills, so steps arrive in order, and the memory of a
  sender that waits is that of two blocks.
- The head of the lane counts what has arrived: after a loss, what is there is cut off the block
  under way, running episodes begin again with the frames they had, and the rest is sent again.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from mmreplay.distributed import blocks
from mmreplay.distributed.blocks import END, EPISODE, LIFE_LOST, MASK, RESET, Block, Event, State
from mmreplay.distributed.transport import Opened, Reply, Transport
from mmreplay.errors import ClosedError, FailedStoreError, LockedError, SchemaError
from mmreplay.format.episode_fields import STARTED
from mmreplay.format.layout import episode_path
from mmreplay.ids import Array
from mmreplay.schema import Field
from mmreplay.writing.episode_log import EpisodeValues
from mmreplay.writing.row_values import Overlap, RowValues, VectorValues

BLOCK_STEPS = 16
_BLOCK_BYTES = 32 << 20
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


class LaneSender:
    """What both senders share; a context manager: leaving it closes it."""

    _environments: int | None = None
    _advice: str | None = None  # of writers, for loops without RecordExperience

    def __init__(
        self,
        transport: Transport,
        name: str,
        *,
        steps: int = BLOCK_STEPS,
        newest_s: float = 0.25,
        patience_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._transport, self._name = transport, name
        self._newest_s, self._patience_s = newest_s, patience_s
        self._clock, self._sleep = clock, sleep
        self._n = n = self._environments or 1
        self._sent: Block | None = None  # under way
        self._reply: Reply | None = None
        self._closed = False
        self.n_steps = self.n_again = self._count = 0
        opened = self._open()
        self._token, self._head = opened.token, opened.head
        self.schema, self.path = opened.schema, Path(opened.path)
        blocks.check_size(self.schema, n)
        step_bytes = n * sum(field.row_bytes for field in self.schema.columns().values())
        self._most = max(1, min(steps, _BLOCK_BYTES // step_bytes))
        self._paths = tuple(self.schema.frame_paths.values())
        self._vectors, self._overlaps = VectorValues(self.schema, n), dict[int, Overlap]()
        self._values = RowValues(self.schema, functools.partial(self._newest_frame, 0))
        fields = self.schema.episode
        has_axis = self._environments is not None
        self._episodes = EpisodeValues(self.path, fields, n, has_axis=has_axis)
        columns = self.schema.columns() | {episode_path(key): one for key, one in fields.items()}
        self._begun = dict.fromkeys(episode_path(key) for key in fields)
        self._state = State(
            np.zeros(n, np.bool_),
            {
                path: np.zeros((n, *columns[path].shape), columns[path].dtype)
                for path in (*self._paths, *self._begun)
            },
        )
        self._stepped = np.zeros(n, np.bool_)
        self._fills = Block(self._state)
        self._began = 0.0

    # ------------------------------------------------------------ the calls of a writer

    @property
    def rows(self) -> int:
        """Steps of the lane that have arrived, with those of its writers before this one."""
        return self._head

    def reset(self, frame: Any, mask: npt.ArrayLike | None = None, **fields: Any) -> None:
        """Begin an episode; see `Writer.reset`."""
        self._guard()
        which = self._chosen_by(mask)
        self._reset(self._frames(frame, which, begins=True), which, fields)

    def episode(self, mask: npt.ArrayLike | None = None, **fields: Any) -> None:
        """Say something of the episode of the newest step; see `Writer.episode`."""
        self._guard()
        which = self._chosen_by(mask)
        values = self._episodes.checked(fields, which)
        if not self._stepped[which].all():
            raise SchemaError(f"{self.path}: episode(): no step was made since this writer opened")
        if values and which.size:
            self._call(EPISODE, which, values)

    def end_episodes(self, mask: npt.ArrayLike | None = None) -> None:
        """End running episodes with the newest step, as truncated."""
        self._guard()
        which = self._chosen_by(mask)
        which = which[self._state.running[which]]
        if which.size:
            self._call(END, which, {})

    def flush(self) -> None:
        """Send what was given so far, and return when it has arrived.

        It is durable after the receiver's next flush.
        """
        self._guard()
        self._ship()
        self._settle()

    def close(self) -> None:
        """End running episodes as truncated, and `flush`; a second call does nothing.

        The lane stays open in the receiver, until its run is closed.
        """
        if self._closed:
            return
        self.end_episodes()
        self.flush()
        self._closed = True

    # ------------------------------------------------------------ what is given, as columns

    def _guard(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: this writer is closed; make another one to write")

    def _begin_step(self) -> None:
        """Send what is due, before anything of the next step is written."""
        self._guard()
        block = self._fills
        is_old = block.steps > 0 and self._clock() - self._began >= self._newest_s
        if block.steps >= self._most or (is_old and self._is_settled):
            self._ship()

    @property
    def _is_settled(self) -> bool:
        """Whether `_settle` would return at once."""
        return self._sent is None or (self._reply is not None and self._reply.done())

    def _frames(self, frame: Any, which: Array, *, begins: bool) -> dict[str, Array]:
        """(N, *frame) by path; the newest one of `LazyFrames`."""
        raise NotImplementedError

    def _chosen_by(self, mask: npt.ArrayLike | None) -> Array:
        """The environments of a mask."""
        raise NotImplementedError

    def _newest_frame(self, environment: int, path: str, _row: int) -> Array:
        frame: Array = self._state.values[path][environment]
        return frame

    def _reset(self, frames: Mapping[str, Array], which: Array, fields: Mapping[str, Any]) -> None:
        values = self._episodes.checked({STARTED: time.time_ns(), **fields}, which)
        for path in self._begun.keys() - values.keys():
            values[path] = np.zeros_like(self._state.values[path][which])
        if which.size:
            new = {path: np.array(rows[which]) for path, rows in frames.items()}
            self._call(RESET, which, {**new, **values})

    def _call(self, call: str, which: Array, values: dict[str, Array]) -> None:
        mask = np.zeros(self._n, np.bool_)
        mask[which] = True
        event = Event(self._fills.steps, call, mask, values)
        self._fills.events.append(event)
        self._state = self._state.after(event)

    def _append(
        self,
        values: dict[str, Array],
        rewards: Any,
        terminated: Any,
        truncated: Any,
        life_lost: Any,
        chosen: Array | None,
    ) -> None:
        """Write a step into the block that fills; `chosen` are (N,) bool, None for all."""
        vectors, block = self._vectors, self._fills
        values["rewards"] = vectors.rewards(rewards)
        flags = {blocks.TERMINATED: terminated, blocks.TRUNCATED: truncated}
        if life_lost is not None:
            flags[LIFE_LOST] = life_lost
        for name, flag in flags.items():
            values[name] = vectors.flags(name, flag, chosen)
        if chosen is not None:
            values[MASK] = chosen
        block.put(values, self._most)
        if not block.steps:
            self._began = self._clock()
        self._state = self._state.after_step(block.columns, block.steps, self._paths)
        self._stepped |= True if chosen is None else chosen
        block.steps += 1
        self._count += 1
        self.n_steps += self._n if chosen is None else int(np.count_nonzero(chosen))

    # ------------------------------------------------------------ sending

    def _ship(self) -> None:
        """Send the block that fills, when the one before it has arrived."""
        self._settle()
        if self._fills.steps or self._fills.events:
            # One statement: an interrupt leaves a block in exactly one of the two places.
            self._sent, self._fills = self._fills.whole(), Block(self._state)
            with contextlib.suppress(ConnectionError):  # `_settle` sends it again
                self._send(self._sent)

    def _send(self, block: Block) -> None:
        packed = blocks.pack(block, self.schema)
        self._reply = self._transport.append(self._name, self._token, self._head, packed)

    def _settle(self) -> None:
        """Return when the block under way has arrived; what was lost is sent again."""
        end: float | None = None
        while (block := self._sent) is not None:
            head, lost = None, None
            try:
                if self._reply is None:
                    self._send(block)
                head = self._reply.result() if self._reply is not None else None
            except ConnectionError as error:
                lost = error
            except Exception:
                self._reply = None  # the next call sends it again
                raise
            self._reply = None
            if head == self._head + block.steps:
                self._head, self._sent = head, None
                return
            end = self._clock() + self._patience_s if end is None else end
            if lost is not None:
                self._wait(end, lost, _SHORTEST_WAIT_S)
            self._open_again(block, end)

    def _wait(self, end: float, error: Exception, wait_s: float) -> None:
        """Sleep before the next try; raises if it is too late for one."""
        if self._clock() < end:
            self._sleep(wait_s)
        elif isinstance(error, LockedError):
            raise error
        else:
            raise FailedStoreError(
                f"{self._name}: the receiver has not answered for {self._patience_s:g} s: {error}; "
                f"what it acknowledged is kept, the same call tries again"
            ) from error

    def _open_again(self, block: Block, end: float) -> None:
        opened = self._open(end)
        k = opened.head - self._head
        if k > block.steps:
            raise LockedError(
                f"{self.path}: expected at most step {self._head + block.steps:,}, found "
                f"{opened.head:,}: another sender has written this lane; give each actor its own"
            )
        self.n_again += 1
        # Fewer than there were: the receiver's machine lost what it had not flushed.
        rest = block.rest(max(k, 0), self._paths)
        self._sent, self._token, self._head = rest, opened.token, opened.head

    def _open(self, end: float | None = None) -> Opened:
        """Open the lane; asked again while the receiver does not answer."""
        end = self._clock() + self._patience_s if end is None else end
        wait_s = _SHORTEST_WAIT_S
        while True:
            try:
                return self._transport.open(self._name, self._environments)
            except (ConnectionError, LockedError) as error:  # a killed one may still hold its lock
                self._wait(end, error, wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def __getstate__(self) -> NoReturn:
        raise SchemaError(
            f"{self.path}: a {type(self).__name__} can be neither pickled nor copied, as a lane "
            f"has one writer; call run.writer(i) in the process that steps the environment"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mmreplay.{type(self).__name__} {self._name} of {self.path.parent}>"


class SendingWriter(LaneSender):
    """Sends the steps of one environment; used as the `Writer` of a lane, by one thread.

    Made by `Run.writer`. A step has arrived when a later call or `flush` returns after it; then it
    is in the receiver's store, and survives a kill of any process. A full block is sent by the next
    call of `step`, and one that is older than `newest_s` as well, if none is under way.

    Calls raise what those of a `Writer` raise, and:
        LockedError: another sender has opened this lane since.
        FailedStoreError: the receiver has not answered for `patience_s`. Nothing is lost, the same
            call tries again.

    Attributes:
        path: the lane's directory, on the receiver's machine.
        schema: what a step of one environment holds.
        n_steps: transitions given to this writer.
        n_again: how many times the lane was opened again after a loss.
    """

    @property
    def running(self) -> Any:
        """Whether an episode is running, so that the next call may be `step`."""
        return bool(self._state.running[0]) and not self._closed

    def step(
        self,
        action: Any,
        reward: Any,
        next_frame: Any,
        terminated: Any = False,
        truncated: Any = False,
        *,
        life_lost: Any = False,
        **extras: Any,
    ) -> None:
        """Append one step of the running episode; see `Writer.step`."""
        self._begin_step()
        if not self._state.running[0]:
            raise SchemaError(
                f"{self.path}: step(), but no episode is running; call reset(frame) first"
            )
        values = {
            **self._frames(next_frame, _EVERYONE, begins=False),
            "actions": np.asarray(self._values.action(action), self.schema.action.dtype)[None],
            **{path: value[None] for path, value in self._values.extras(extras).items()},
        }
        lost = [life_lost] if np.any(life_lost) else None
        self._append(values, [reward], [terminated], [truncated], lost, None)

    def _frames(self, frame: Any, which: Array, *, begins: bool) -> dict[str, Array]:  # noqa: ARG002 (of one)
        row = self._count + (not begins)
        found = self._values.frames(frame, row, begins=begins)
        return {path: value[None] for path, value in found.items()}

    def _chosen_by(self, mask: npt.ArrayLike | None) -> Array:
        if mask is not None:
            raise SchemaError(f"{self.path}: mask: expected None, as this lane has one environment")
        return _EVERYONE


class SendingVectorWriter(LaneSender):
    """Sends the steps of N environments; used as the `VectorWriter` of a lane, by one thread.

    See `SendingWriter`. Its length is the number of environments.
    """

    def __init__(self, transport: Transport, name: str, environments: int, **options: Any) -> None:
        self._environments = environments
        super().__init__(transport, name, **options)

    def __len__(self) -> int:
        """Environments."""
        return self._n

    @property
    def running(self) -> Array:
        """(N,) bool: the environments of which an episode runs."""
        running: Array = self._state.running & (not self._closed)
        return running

    def step(
        self,
        actions: Any,
        rewards: Any,
        frames: Any,
        terminated: Any,
        truncated: Any,
        *,
        life_lost: npt.ArrayLike | None = None,
        mask: npt.ArrayLike | None = None,
        **extras: Any,
    ) -> None:
        """Append one step of the environments; see `VectorWriter.step`."""
        self._begin_step()
        running = self._state.running
        chosen = np.ones(self._n, np.bool_)
        if mask is not None:
            chosen = self._vectors.flags(MASK, mask)
        if (odd := chosen != running).any():
            number = int(odd.argmax())
            raise SchemaError(
                f"{self.path}: step(): no episode is running in environment {number}; call "
                f"reset(frames, mask) first, or leave it out (mask=)"
                if chosen[number]
                else f"{self.path}: step(): environment {number} is left out, but its episode is "
                f"running and cannot skip a step; pass one, or reset it first"
            )
        if not chosen.any():
            return
        some = None if chosen.all() else chosen
        values = {
            **self._frames(frames, np.flatnonzero(chosen), begins=False),
            "actions": self._vectors.actions(actions),
            **self._vectors.extras(extras, some),
        }
        self._append(values, rewards, terminated, truncated, life_lost, some)

    def _frames(self, frame: Any, which: Array, *, begins: bool) -> dict[str, Array]:
        return self._vectors.frames(
            frame, functools.partial(self._of_stacks, which=which, begins=begins)
        )

    def _of_stacks(
        self, stacks: Any, path: str, field: Field, which: Array, *, begins: bool
    ) -> Array:
        """(N, *frame): the newest frames of `LazyFrames`, for environments `which`."""
        out = np.zeros((self._n, *field.shape), field.dtype)
        row = self._count + (not begins)
        for e in which.tolist():
            if e not in self._overlaps:
                self._overlaps[e] = Overlap(functools.partial(self._newest_frame, e))
            name = f"{path} of environment {e}"
            out[e] = self._overlaps[e].frame(stacks[e], field, path, name, row, begins=begins)
        return out

    def _chosen_by(self, mask: npt.ArrayLike | None) -> Array:
        everyone = np.arange(self._n)
        return everyone if mask is None else everyone[self._vectors.flags(MASK, mask)]


_EVERYONE = np.zeros(1, np.int64)
