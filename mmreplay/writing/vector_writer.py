"""`VectorWriter`: all lanes of a store, written together.

Invariant: a step is checked for all lanes before the first one is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from mmreplay.errors import SchemaError
from mmreplay.lazy_frames import LazyFrames
from mmreplay.schema import FRAME, Field, as_array
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.writer import Writer

__all__ = ["VectorWriter", "run_in_threads"]

T = TypeVar("T")

_THREADS = 8


class VectorWriter:
    """Appends steps of a vector environment, one lane for each of its environments.

    A step is checked for all lanes before the first one is written.

    Attributes:
        path: the store's directory.
        writers: one `Writer` a lane.
    """

    def __init__(self, path: AnyPath, writers: Sequence[Writer]) -> None:
        """Made by `mmreplay.create`."""
        self.path = path
        self.writers = tuple(writers)
        self.schema = self.writers[0].schema

    def __len__(self) -> int:
        """Lanes."""
        return len(self.writers)

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay of the first lane."""
        return self.writers[0].metadata

    @property
    def n_steps(self) -> int:
        """Transitions committed by this writer since it was opened."""
        return sum(writer.n_steps for writer in self.writers)

    def reset(self, frames: Any, mask: npt.ArrayLike | None = None) -> None:
        """Begin an episode in every lane, or in those where `mask` is True.

        Args:
            frames: (lanes, *frame), or a list with the `LazyFrames` of each lane; or a dict of
                these.
            mask: (lanes,) bool.

        Raises:
            As `Writer.reset`.
        """
        rows = self._rows(frames)
        chosen = self._chosen(mask)
        for number in chosen:
            self.writers[number]._prepare_reset()
        if _has_stacks(frames):
            rows = self._newest_frames(rows, chosen, begins=True)
        for number in chosen:
            self.writers[number].reset(rows[number])

    def step(
        self,
        actions: Any,
        rewards: npt.ArrayLike,
        frames: Any,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        *,
        life_lost: npt.ArrayLike | None = None,
        mask: npt.ArrayLike | None = None,
        **extras: Any,
    ) -> None:
        """Append one step in every lane, or in those where `mask` is True.

        Args:
            actions: (lanes, *action).
            rewards: (lanes,).
            frames: (lanes, *frame), or a list with the `LazyFrames` of each lane; or a dict of
                these: the observations after the step, the final ones where an episode ended.
            terminated: (lanes,) bool.
            truncated: (lanes,) bool.
            life_lost: (lanes,) bool.
            mask: (lanes,) bool.
            extras: (lanes, ...) each.

        Raises:
            As `Writer.step`; then no lane was changed.
        """
        lanes = len(self.writers)
        rows = self._rows(frames)
        acts = self._actions(actions)
        gains, ends, cuts = (
            self._flags(name, value).tolist()
            for name, value in (
                ("rewards", rewards),
                ("terminated", terminated),
                ("truncated", truncated),
            )
        )
        lost = (
            [False] * lanes if life_lost is None else self._flags("life_lost", life_lost).tolist()
        )
        chosen = self._chosen(mask)
        more = self._extras(extras, chosen) if extras or self.schema.extras else None
        for number in chosen:
            self.writers[number]._prepare()
        if _has_stacks(frames):
            rows = self._newest_frames(rows, chosen, begins=False)
        for n in chosen:
            one = {} if more is None else more[n]
            self.writers[n].step(
                acts[n], gains[n], rows[n], ends[n], cuts[n], life_lost=lost[n], **one
            )

    def _chosen(self, mask: npt.ArrayLike | None) -> Sequence[int]:
        if mask is None:
            return range(len(self.writers))
        return np.flatnonzero(self._flags("mask", mask)).tolist()

    def _rows(self, frames: Any) -> Any:
        """Frames lane by lane, each checked as far as a whole array can be."""
        lanes = len(self.writers)
        if self.schema.is_dict:
            fields = self.schema.frames
            if not isinstance(frames, Mapping) or frames.keys() != fields.keys():
                raise SchemaError(f"frames: expected a dict with the keys {sorted(fields)}")
            whole = {key: self._of_lanes(frames[key], one, key) for key, one in fields.items()}
            return [{key: value[n] for key, value in whole.items()} for n in range(lanes)]
        return self._of_lanes(frames, self.schema.frames[FRAME], "frames")

    def _of_lanes(self, frames: Any, one: Field, name: str) -> Any:
        lanes = len(self.writers)
        if _has_stacks(frames):
            if len(frames) != lanes:
                raise self._unfit(name, (len(frames),))
            return frames
        return one.coerce_many(frames, lanes, name)

    def _newest_frames(self, rows: Any, chosen: Sequence[int], *, begins: bool) -> Any:
        """Rows with plain frames in the lanes to be written, checked before one of them is."""
        out = list(rows)
        for n in chosen:
            out[n] = self._plain(n, self.writers[n]._newest_frames(rows[n], begins=begins))
        return out

    def _plain(self, lane: int, row: Any) -> Any:
        fields = self.schema.frames
        if self.schema.is_dict:
            return {
                key: one.coerce(row[key], f"{key} of lane {lane}") for key, one in fields.items()
            }
        return fields[FRAME].coerce(row, f"frames of lane {lane}")

    def _actions(self, actions: Any) -> Any:
        one = self.schema.action
        whole = as_array(actions, "actions")
        if whole.shape != (len(self.writers), *one.shape):
            raise self._unfit("actions", whole.shape)
        if whole.dtype != one.dtype:
            whole = Field(whole.shape, one.dtype).coerce_loosely(whole, "actions")
        return whole if one.shape else whole.tolist()

    def _extras(
        self, extras: Mapping[str, Any], chosen: Sequence[int]
    ) -> dict[int, dict[str, npt.NDArray[Any]]]:
        """Lane by lane, what `Writer.step` takes by keyword."""
        fields = self.schema.extras
        for name, value in extras.items():
            shape = as_array(value, name).shape
            if shape[:1] != (len(self.writers),):
                raise self._unfit(name, shape)
        if extras.keys() != fields.keys():
            raise SchemaError(f"extras: expected {sorted(fields)}, found {sorted(extras)}")
        return {
            n: {name: one.coerce_loosely(extras[name][n], name) for name, one in fields.items()}
            for n in chosen
        }

    def _flags(self, name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
        out = as_array(value, name)
        if out.dtype.kind not in "biuf":
            raise SchemaError(f"{name}: expected numbers or bools, found {out.dtype}")
        if out.shape != (len(self.writers),):
            raise self._unfit(name, out.shape)
        return out

    def _unfit(self, name: str, found: object) -> SchemaError:
        return SchemaError(
            f"{name}: expected one for each of {len(self.writers)} lanes, found shape {found}"
        )

    def flush(self) -> None:
        """Make all rows of all lanes durable."""
        for writer in self.writers:
            writer.flush()

    def close(self) -> None:
        """Close every lane, also after one of them failed to."""
        _, failures = run_in_threads(Writer.close, self.writers)
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and lanes."""
        return f"<mmreplay.VectorWriter {self.path} lanes={len(self.writers)}>"


def _has_stacks(frames: Any) -> bool:
    """Whether `LazyFrames` are among what was given for the lanes."""
    if isinstance(frames, Mapping):
        return any(_has_stacks(one) for one in frames.values())
    return isinstance(frames, (list, tuple)) and any(isinstance(f, LazyFrames) for f in frames)


def run_in_threads(
    call: Callable[..., T], *arguments: Sequence[Any]
) -> tuple[list[T], list[Exception]]:
    """Call for every lane, in threads: most of it is waiting for the disk.

    Returns:
        what came back, in order, and what was raised.
    """
    todo = enumerate(zip(*arguments, strict=True))
    out: dict[int, T] = {}
    failures: list[Exception] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number, each = next(todo, (-1, ()))
            if number < 0:
                return
            try:
                out[number] = call(*each)
            except Exception as error:  # noqa: BLE001 (the other lanes go on)
                failures.append(error)

    threads: list[threading.Thread] = []
    for _ in range(min(_THREADS, len(arguments[0])) - 1):
        thread = threading.Thread(target=work, name="mmreplay-lanes")
        try:
            thread.start()
        except RuntimeError:  # no more are to be had, or the interpreter is ending: with fewer then
            break
        threads.append(thread)
    try:
        work()
    finally:
        for thread in threads:
            thread.join()
    return [out[number] for number in sorted(out)], failures
