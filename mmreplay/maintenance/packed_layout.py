"""How the frames of a packed lane are laid out: codec and lengths as asked for, else as they were.

Invariant: what nobody asked to change keeps its layout to the last byte, so that its chunk files
can be copied as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mmreplay.arguments import whole_number_or_none
from mmreplay.format import layout, plan
from mmreplay.format.layout import ArraySpec
from mmreplay.reading.joined_lanes import AnyReader
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.schema import FRAME, Codec, Field, Schema

__all__ = ["FrameLayout", "Logs"]

Logs = dict[str, dict[str, ArraySpec]]
"""The arrays of a lane by log and path; the sole log of a lane of one environment is ``""``."""


@dataclasses.dataclass(frozen=True, slots=True)
class FrameLayout:
    """What was asked for; None stays as it is.

    Attributes:
        codec: of all frames.
        chunk: frames an inner chunk, or of raw frames a chunk file.
        shard: frames a shard.
        codecs: by path, where no codec was asked for.
    """

    codec: Codec
    chunk: int | None
    shard: int | None
    codecs: Mapping[str, Codec] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, codec: object, chunk_frames: object, shard_frames: object) -> FrameLayout:
        """From the arguments of `pack`; raises SchemaError for one that is none."""
        return cls(
            Field((), "uint8", codec).codec,
            whole_number_or_none("chunk_frames", chunk_frames),
            whole_number_or_none("shard_frames", shard_frames),
        )

    def with_codecs_of(self, reader: AnyReader) -> FrameLayout:
        """The same for lanes that one store shall have, whose frames one reader takes together."""
        specs, paths = reader.log.specs, reader.schema.frame_paths.values()
        return dataclasses.replace(
            self, codecs={path: specs[path].codec or "raw" for path in paths}
        )

    def same_kind(self, reader: AnyReader) -> Logs:
        """The arrays of a lane of all rows of another; raises SchemaError if they do not fit."""
        if not isinstance(reader, VectorReader):
            return {"": self._changed(reader.schema, reader.specs, None, None)}
        capacity = reader.metadata["capacity"]
        return {
            layout.STARTS: self._changed(reader.schema, reader.starts.specs, 0, capacity),
            layout.TICKS: self._changed(reader.schema, reader.ticks.specs, reader.width, capacity),
        }

    def of_rows(self, reader: AnyReader, lanes: int | None) -> dict[str, ArraySpec]:
        """The arrays of a lane of one environment for rows of a lane of any kind.

        `lanes` as of `plan.plan_arrays`.
        """
        if not isinstance(reader, VectorReader):
            return self.same_kind(reader)[""]
        schema = self.schema(reader.schema, reader.ticks.specs)
        return plan.plan_arrays(schema, lanes, reader.metadata["capacity"])

    def schema(self, schema: Schema, specs: Mapping[str, ArraySpec]) -> Schema:
        """The fields of frames with their codecs, and the lengths that were asked for."""
        return _with_frames(
            schema,
            {
                key: Field(
                    field.shape,
                    field.dtype,
                    self._codec_of(specs[schema.frame_paths[key]]),
                    self.chunk,
                    self.shard,
                )
                for key, field in schema.frames.items()
            },
        )

    def _codec_of(self, spec: ArraySpec) -> Codec:
        if self.codec is not None:
            return self.codec
        return self.codecs.get(spec.path, spec.codec or "raw")

    def _changed(
        self,
        schema: Schema,
        specs: Mapping[str, ArraySpec],
        width: int | None,
        capacity: int | None,
    ) -> dict[str, ArraySpec]:
        """The arrays of a log; `width` is None of rows, 0 of starts, else that of ticks."""
        fields, same = {}, self.chunk is None and self.shard is None
        for key, path in schema.frame_paths.items():
            spec, field = specs[path], schema.frames[key]
            codec = self._codec_of(spec)
            chunk, shard = self.chunk, self.shard
            if codec != "raw" and not spec.is_raw:  # lengths stay as far as they can
                chunk = chunk or spec.inner_rows
                if shard is None and not spec.chunk_rows % chunk:
                    shard = spec.chunk_rows
            fields[key] = Field(field.shape, field.dtype, codec, chunk, shard)
            same &= plan.codec_of(fields[key], path) == spec.codec
        if same:
            return dict(specs)
        planned = _with_frames(schema, fields)
        if width is None:
            new = plan.plan_arrays(planned, None)
        elif width:
            new = plan.plan_ticks(planned, width, capacity)
        else:
            new = plan.plan_starts(planned)
        frames = set(schema.frame_paths.values())
        keeps = {
            path
            for path, spec in specs.items()
            if path not in frames or (spec.is_raw and new[path].is_raw and not self.chunk)
        }
        return {path: specs[path] if path in keeps else new[path] for path in specs}


def _with_frames(schema: Schema, fields: dict[str, Field]) -> Schema:
    return dataclasses.replace(schema, frame=fields if schema.is_dict else fields[FRAME])
