"""`LanesWriter`: all lanes of a store of one environment each, written together.

Invariant: a step is checked for all lanes before the first one is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mmreplay.schema import FRAME
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.threads import run_in_threads
from mmreplay.writing.finite_values import FiniteValues
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.session import refuse_copy
from mmreplay.writing.vector_values import VectorValues, has_stacks
from mmreplay.writing.writer import Writer

__all__ = ["LanesWriter"]


class LanesWriter:
    """Appends steps of many environments to a store in which each of them has a lane of its own.

    A step is checked for all lanes before the first one is written; a kill in between leaves it in
    some of them. New stores have one lane for all environments: see `VectorWriter`.

    Attributes:
        path: the store's directory.
        writers: one `Writer` a lane.
        files: the lanes' files, for the rest of the package.
    """

    __getstate__ = refuse_copy

    def __init__(self, path: AnyPath, writers: Sequence[Writer]) -> None:
        """Made by `mmreplay.create`."""
        self.path = path
        self._advice: str | None = None  # at the first masked reset
        self.writers = tuple(writers)
        self.schema = self.writers[0].schema
        self.files = _LanesFiles([writer.files for writer in self.writers])
        self._values = VectorValues(self.schema, len(self.writers))
        are_finite = [bool(writer.metadata.get("finite")) for writer in self.writers]
        self._finite = FiniteValues(self.schema, path, many=True) if any(are_finite) else None
        self._are_finite = np.array(are_finite)

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
        if self._finite is not None:
            self._finite.check_frames(frames, self._looked_at(chosen))
        if mask is not None and self._advice is not None:
            warnings.warn(self._advice, stacklevel=2)
            self._advice = None
        for number in chosen:
            self.writers[number]._prepare_reset()
        if has_stacks(frames):
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
        rows = self._rows(frames)
        acts = self._values.actions(actions)
        acts = acts if self.schema.action.shape else acts.tolist()
        gains = self._values.numbers("rewards", rewards).tolist()
        chosen = self._chosen(mask)
        stepping = np.zeros(len(self.writers), bool)
        stepping[chosen] = True
        if self._finite is not None:
            looked_at = self._looked_at(chosen)
            self._finite.check_step(actions, rewards, frames, extras, looked_at)
        ends, cuts, lost = (
            self._values.flags(name, value, stepping).tolist()
            for name, value in (
                ("terminated", terminated),
                ("truncated", truncated),
                ("life_lost", np.zeros_like(stepping) if life_lost is None else life_lost),
            )
        )
        more = self._extras(extras, chosen) if extras or self.schema.extras else None
        for number in chosen:
            self.writers[number]._prepare()
        if has_stacks(frames):
            rows = self._newest_frames(rows, chosen, begins=False)
        for n in chosen:
            one = {} if more is None else more[n]
            self.writers[n].step(
                acts[n], gains[n], rows[n], ends[n], cuts[n], life_lost=lost[n], **one
            )

    def _looked_at(self, chosen: Sequence[int]) -> npt.NDArray[np.bool_]:
        """(lanes,) of `chosen` those that take finite values only."""
        out = np.zeros_like(self._are_finite)
        out[chosen] = self._are_finite[chosen]
        return out

    def _chosen(self, mask: npt.ArrayLike | None) -> list[int]:
        if mask is None:
            return list(range(len(self.writers)))
        return np.flatnonzero(self._values.flags("mask", mask)).tolist()

    def _rows(self, frames: Any) -> Any:
        """Frames lane by lane, each checked as far as a whole array can be."""
        whole = self._values.frames(frames)
        if not self.schema.is_dict:
            return whole["frames"]
        paths = self.schema.frame_paths
        return [
            {key: whole[path][n] for key, path in paths.items()} for n in range(len(self.writers))
        ]

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

    def _extras(
        self, extras: Mapping[str, Any], chosen: Sequence[int]
    ) -> dict[int, dict[str, npt.NDArray[Any]]]:
        """Lane by lane, what `Writer.step` takes by keyword."""
        self._values.check_extras(extras)
        fields = self.schema.extras
        return {
            n: {name: one.coerce_loosely(extras[name][n], name) for name, one in fields.items()}
            for n in chosen
        }

    def flush(self) -> None:
        """Make all rows of all lanes durable."""
        for writer in self.writers:
            writer.flush()

    def close(self) -> None:
        """Close every lane, also after one of them failed to."""
        _, failures = run_in_threads(Writer.close, self.writers)
        if failures:
            raise failures[0]

    def _release_unclosed(self) -> None:
        """Let go of all lanes as they are."""
        run_in_threads(Writer._release_unclosed, self.writers)

    def __enter__(self) -> Self:
        """Return the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and lanes."""
        return f"<mmreplay.LanesWriter {self.path} lanes={len(self.writers)}>"


class _LanesFiles:
    """What the rest of the package needs of all lanes, as `LockedLane` has it of one."""

    is_new = False  # such a store gets its lanes one by one

    def __init__(self, lanes: Sequence[LockedLane]) -> None:
        self._lanes = lanes

    @property
    def path(self) -> AnyPath:
        """The store's directory."""
        return self._lanes[0].path.parent

    @property
    def directories(self) -> tuple[AnyPath, ...]:
        """What holds the rows of steps, one directory a lane."""
        return tuple(path for lane in self._lanes for path in lane.directories)

    @property
    def widths(self) -> tuple[int | None, ...]:
        """None of each: its rows are of one environment."""
        return tuple(width for lane in self._lanes for width in lane.widths)

    @property
    def capacity(self) -> int | None:
        """Most transitions kept, over all lanes."""
        shares = [lane.capacity for lane in self._lanes if lane.capacity is not None]
        return sum(shares) if len(shares) == len(self._lanes) else None

    def generator(self) -> str | None:
        """The random state that was saved with a flush of the first lane."""
        return self._lanes[0].generator()

    @property
    def on_flush(self) -> Callable[[], str | None] | None:
        """Gives the random state to keep with a flush of the first lane."""
        return self._lanes[0].on_flush

    @on_flush.setter
    def on_flush(self, state: Callable[[], str | None] | None) -> None:
        self._lanes[0].on_flush = state
