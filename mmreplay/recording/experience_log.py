"""The log that `RecordExperience` writes: a store without gaps inside an episode.

Invariant: after a call that is not recorded, a reset is recorded next.
"""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mmreplay.env_fields import (
    AnyEnv,
    EnvFields,
    Frame,
    advice_on_stacks,
    env_metadata,
    warn_caller,
)
from mmreplay.errors import DiskFullError, FailedStoreError, MmreplayError, SchemaError
from mmreplay.recording.autoreset import Mask, by_key, final_info
from mmreplay.writing.create import create

Call = tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]

_turns: weakref.WeakKeyDictionary[Any, list[object]] = weakref.WeakKeyDictionary()
"""Writer -> the tag of the `Log` whose episodes run in it."""


class Log:
    """Writes calls to `to` in order.

    A context manager around a call of the environment and its writing: after an exception in
    between, `check` demands a reset.
    """

    def __init__(
        self,
        env: AnyEnv,
        fields: EnvFields,
        to: Any,
        options: Mapping[str, Any],
        *,
        life_loss: bool,
        finite: bool,
    ) -> None:
        self.fields = fields
        self.life_loss = life_loss
        self._finite = finite
        self._has_gap = False
        self._unwritten: list[Call] = []
        if getattr(env.unwrapped, "is_async", False) is True:
            raise SchemaError(
                f"{env}: it returns only some of its environments per step, and a row needs all of "
                f"them; create it with batch_size equal to num_envs"
            )
        if (advice := advice_on_stacks(env)) is not None:
            warn_caller(advice)
        self._owned = isinstance(to, (str, os.PathLike))
        if self._owned:
            self._check_lanes(env, options.get("lanes", fields.lanes), to)
            self.writer = _create(env, to, options, life_loss=life_loss)
        elif options:
            raise SchemaError(
                f"{', '.join(options)}: for a new store at a path only, but this one is already "
                f"open: {to!r:.80}"
            )
        else:
            self.writer = to
        inner = getattr(self.writer, "writer", self.writer)  # a buffer has one
        schema = getattr(inner, "schema", None)
        if schema is None or not hasattr(inner, "step"):
            raise SchemaError(
                f"to: expected a ReplayBuffer, a writer of mmreplay.create, or a path, found "
                f"{to!r:.80}"
            )
        lanes = len(inner) if hasattr(inner, "__len__") else None
        try:
            self._check_lanes(env, lanes, inner.path)
        except SchemaError:
            self.close()
            raise
        # A tag, as a reference to this log would keep the writer alive.
        self._tag, self._turn = object(), _turns.setdefault(inner, [None])
        self.names = tuple(schema.extras)
        if lanes is not None:
            inner._advice = None  # noqa: SLF001 (for loops without this wrapper)

    def _check_lanes(self, env: AnyEnv, found: int | None, path: object) -> None:
        if found != self.fields.lanes:
            raise SchemaError(
                f"to: {env} is {words(self.fields.lanes)}, but the store at {path} is for "
                f"{words(found)}"
            )

    def extras(self, info: Mapping[str, Any], ended: Mask | None = None) -> dict[str, Any]:
        """The declared extras, by name, from the info of a step."""
        return {
            name: value
            for name in self.names
            if (value := final_info(name, info, ended)) is not None
        }

    def begin(self) -> None:
        """Before a reset of all environments: the next episodes belong to this log."""
        if self._turn[0] is self._tag:
            self.write()
        else:
            self._unwritten.clear()  # another log has ended that episode
            self._turn[0] = self._tag

    def check(self) -> None:
        """Before a step: raise if something is missing since the step before."""
        if (of := self._turn[0]) is not self._tag and of is not None:
            raise SchemaError(
                f"{self.writer!r}: the running episode belongs to another environment, whose "
                f"RecordExperience was reset after this one; call reset(){self._how} next, or give "
                f"each environment its own store or lane"
            )
        if self._has_gap:
            raise MmreplayError(
                f"{self.writer!r}: the last call was interrupted and is not recorded; call "
                f"reset(){self._how} next"
            )
        if self._unwritten:
            self.write()

    @property
    def _how(self) -> str:
        return "" if self.fields.lanes is None else " without a mask"

    def write(self, *calls: Call) -> None:
        """Write these calls, after those that could not be written before."""
        self._unwritten += calls
        try:
            while self._unwritten:
                function, values, named = self._unwritten[0]
                function(*values, **named)
                del self._unwritten[0]
        except (DiskFullError, FailedStoreError):  # they may succeed later
            # The environment may reuse its arrays.
            self._unwritten = [
                (function, copy.deepcopy(values), copy.deepcopy(named))
                for function, values, named in self._unwritten
            ]
            raise
        except BaseException:
            self._unwritten.clear()
            self._has_gap = True
            raise

    def check_finite(self, mask: Mask | None, frames: Frame, **values: Any) -> None:
        """Refuse a NaN or infinity in the environments of the mask, if `finite` is set."""
        if not self._finite:
            return
        values |= by_key(frames)
        for name, value in values.items():
            array = np.asarray(value)
            array = array if mask is None else array[mask]
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise SchemaError(
                    f"{self.writer!r}: {name}: expected finite numbers because of finite=True, "
                    f"found a NaN or an infinity; this step was not stored; call reset() next"
                )

    def __enter__(self) -> None:
        self._has_gap = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Unwritten calls are not a gap: they are written first the next time.
        self._has_gap = kind is not None and not self._unwritten

    def close(self) -> None:
        """Close the store if it was created here."""
        if self._owned:
            self.writer.close()


def _create(env: AnyEnv, path: Any, options: Mapping[str, Any], *, life_loss: bool) -> Any:
    metadata = {**env_metadata(env), "life_loss": life_loss}
    return create(path, **{"env": env, "metadata": metadata, **options})


def words(lanes: int | None) -> str:
    """The kind of environments, for messages."""
    return "a single environment" if lanes is None else f"a vector environment of {lanes}"
