"""What `create` was asked for: the rows and attributes of a store, made or compared.

Invariant: a store that is there is opened only for rows that are the same as its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mmreplay._version import __version__
from mmreplay.errors import SchemaError
from mmreplay.format import layout, plan
from mmreplay.format.episode_fields import EpisodeField, episode_fields, with_started
from mmreplay.format.layout import ArraySpec
from mmreplay.schema import Field, Schema
from mmreplay.system.held_directories import AnyPath

Resume = bool | Literal["auto"]
"""True needs a store at the path, False a free path, "auto" takes either."""

_MAX_NAME = 255
_MAX_METADATA_BYTES = layout.MAX_METADATA_BYTES // 2


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The arguments of `create`."""

    path: Path
    frame: Field | Mapping[str, Field] | None
    action: Field | None
    extras: Mapping[str, Field] | None
    derived: Mapping[str, Field] | None
    reward_dtype: npt.DTypeLike | None
    codec: str | Mapping[str, Any] | None
    padding: str | None
    metadata: Mapping[str, Any] | None
    flush_s: float
    capacity: int | None
    lanes: int | None
    lane: str | None
    resume: Resume
    stack_padding: str | None  # of the environment's stacks; counts in a new store
    env_metadata: Mapping[str, Any] | None  # what it says of itself; counts in a new store
    of_one: bool  # `env` is a single environment
    episode: Mapping[str, EpisodeField] | None

    def __post_init__(self) -> None:
        if not (isinstance(self.resume, bool) or self.resume == "auto"):
            raise SchemaError(f"resume: expected True, False or 'auto', found {self.resume!r:.80}")
        if self.padding not in (None, "reset", "zero"):
            raise SchemaError(f"padding: expected 'reset' or 'zero', found {self.padding!r}")
        name: object = "a lane" if self.lane is None else self.lane
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise SchemaError(
                f"lane: expected a name of 1 to {_MAX_NAME} letters, found {name!r:.80}"
            )
        merged({}, self.metadata or {})
        episode_fields(self.episode)
        self.check_capacity(self.lanes)

    def check_capacity(self, lanes: int | None) -> None:
        """Raise SchemaError for a capacity that is less than one step of all of `lanes`."""
        if self.capacity is not None and lanes is not None and self.capacity < lanes:
            raise SchemaError(
                f"capacity: expected one transition or more for each of {lanes} environments, "
                f"found {self.capacity}"
            )

    def schema(self) -> Schema:
        """The rows of a new store; SchemaError: a field is missing, or cannot be stored."""
        if self.frame is None or self.action is None:
            missing = "frame" if self.frame is None else "action"
            example = '(84, 84), "uint8"' if missing == "frame" else '(), "int64"'
            raise SchemaError(
                f"{self.path}: {missing}: a new store needs one, for example "
                f"{missing}=mmreplay.Field({example}), or env="
            )
        return Schema.make(
            self.frame,
            self.action,
            self.extras,
            self.reward_dtype or "float32",
            self.codec,
            episode=with_started(episode_fields(self.episode)),
            derived=self.derived,
        )

    def attributes(self) -> dict[str, Any]:
        """The attributes of a new store or lane."""
        return {
            "capacity": self.capacity,
            "padding": self.padding or self.stack_padding or "reset",
            "env": merged(self.env_metadata or {}, self.metadata or {}),
            "versions": {"mmreplay": __version__, "numpy": np.__version__},
        }

    def changes(self) -> dict[str, Any]:
        """The attributes to change of a lane that exists; `env` is merged with what is there."""
        given = {"capacity": self.capacity, "env": self.metadata, "padding": self.padding}
        return {name: value for name, value in given.items() if value is not None}

    def completed(self, there: Schema) -> Schema:
        """The requested rows; what was left open is as in the store."""
        return Schema.make(
            self.frame if self.frame is not None else there.frame,
            self.action or there.action,
            self.extras if self.extras is not None else there.extras,
            self.reward_dtype or there.reward_dtype,
            self.codec,
            derived={**there.derived, **(self.derived or {})},  # some may have been added since
        )

    def check_env(self, path: AnyPath, about: object) -> None:
        """Raise SchemaError if a lane whose metadata is `about` has another environment's rows."""
        there = about.get("id") if isinstance(about, dict) else None
        if there is None or self.env_metadata is None:
            return
        given = self.env_metadata["id"]
        if there not in (given, (self.metadata or {}).get("id")):
            raise SchemaError(
                f"{path}: expected {there}, which this store was recorded from, found env {given}; "
                f"choose another path"
            )

    def compare(self, path: AnyPath, there: Schema, specs: Mapping[str, ArraySpec]) -> None:
        """Raise SchemaError if requested rows or codecs differ from those of the lane at `path`."""
        asked = self.completed(there)
        if not asked.same_data(there):
            raise SchemaError(
                f"{path}: expected {_words(there)}, found {_words(asked)}; leave the fields "
                f"out to take the store's, or choose another path"
            )
        for name, one in (self.episode or {}).items():
            known = there.episode.get(name)
            if known != one:
                raise SchemaError(
                    f"{path}: episode: {name}: expected {known or 'no such field'}, found {one}; "
                    f"leave it out to take the store's; mmreplay.tag adds fields to a closed store"
                )
        for name, field in asked.extras.items():
            stored = there.extras[name].fill
            if field.fill is not None and repr(field.fill) != repr(stored):  # a NaN equals itself
                raise SchemaError(
                    f"{path}: extras/{name}: expected fill {stored}, found {field.fill}; leave it "
                    f"out to take the store's"
                )
        for name, field in asked.frames.items():
            spec = specs[asked.frame_paths[name]]
            if field.codec is not None and spec.codec != plan.codec_of(field, spec.path):
                raise SchemaError(
                    f"{path}: {spec.path}: expected codec {spec.codec_name!r}, found "
                    f"{field.codec!r}; leave it out to take the store's"
                )


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with `new` put into `old`, dicts key by key; SchemaError if it is too long."""
    out: dict[str, Any] = _merged(old, new)
    if len(layout.dump({"env": out})) > _MAX_METADATA_BYTES:
        raise SchemaError(
            f"metadata: expected at most {_MAX_METADATA_BYTES:,} bytes of JSON, with what is in "
            f"the store; keep large things in files of their own"
        )
    return out


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return new


def _words(schema: Schema) -> str:
    return ", ".join(f"{path} {one.shape} {one.dtype}" for path, one in schema.columns().items())
