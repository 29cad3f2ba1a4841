"""Files of TensorFlow's records, and the examples in them, without TensorFlow.

Invariant: a record with a wrong checksum, or that is cut off, is refused.

The framing is eight bytes, for which TensorFlow would be a gigabyte; protobuf parses the examples.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import checked_name, open_file
from mmreplay.format.compression import crc32c
from mmreplay.ids import Array

_LENGTH, _SUM = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_WORD = 0xFFFFFFFF

_PROTO = """
name: "example.proto" package: "records" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature"
  field { name: "bytes_list" number: 1 type_name: ".records.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: ".records.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: ".records.Int64List" oneof_index: 0 }
  oneof_decl { name: "kind" } }
message_type { name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".records.Features.Entry" }
  nested_type { name: "Entry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: ".records.Feature" } } }
message_type { name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: ".records.Features" } }
"""
"""Source: TensorFlow, tensorflow/core/example/example.proto and feature.proto."""


def records(path: Path, kind: str) -> Iterator[bytes]:
    """The records of a file in order; raises FormatError for a damaged one."""
    if kind == "tfrecord":
        yield from _tf_records(path)
    elif kind == "array_record":
        module = need("array_record.python.array_record_module", None, "array-record")
        reader = module.ArrayRecordReader(checked_name(path))
        try:
            for number in range(reader.num_records()):
                yield reader.read([number])[0]
        finally:
            reader.close()
    else:
        raise FormatError(f"{path}: expected files of tfrecord or array_record, found {kind!r:.80}")


def _tf_records(path: Path) -> Iterator[bytes]:
    """Source: TensorFlow, tensorflow/core/lib/io/record_writer.h."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        while head := file.read(_LENGTH.size):
            where = f"{path}: the record at byte {file.tell() - len(head):,}"
            if len(head) < _LENGTH.size:
                raise FormatError(f"{where}: the file ends within it")
            length, checksum = _LENGTH.unpack(head)
            if _masked(head[:8]) != checksum:
                raise FormatError(f"{where}: the checksum of its length is wrong")
            if length + _SUM.size > size - file.tell():
                raise FormatError(f"{where}: the file ends within it")
            data = file.read(length)
            if _masked(data) != _SUM.unpack(file.read(_SUM.size))[0]:
                raise FormatError(f"{where}: its checksum is wrong")
            yield data


def _masked(data: bytes) -> int:
    """The checksum as these files have it."""
    found = crc32c(data)
    return (((found >> 15) | (found << 17)) + _MASK) & _WORD


class Example:
    """A ``tf.train.Example``: lists of numbers or bytes, by name. Raises FormatError."""

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        decode_error = need("google.protobuf.message", package="protobuf").DecodeError
        try:
            self._features = _message().FromString(data).features.feature
        except decode_error as error:
            raise FormatError(f"{where}: not a tf.train.Example: {error!s:.200}") from error

    def names(self) -> list[str]:
        """The features that it has."""
        return list(self._features)

    def _list(self, name: str) -> Any:
        if name not in self._features:
            raise FormatError(f"{self.where}: has no feature {name!r}, as features.json says")
        one = self._features[name]
        return getattr(one, one.WhichOneof("kind") or "float_list").value

    def blobs(self, name: str) -> list[bytes]:
        """A feature that is a list of bytes."""
        found = list(self._list(name))
        if found and not isinstance(found[0], bytes):
            raise FormatError(f"{self.where}: {name}: expected bytes, found numbers")
        return found

    def numbers(self, name: str, dtype: np.dtype[Any]) -> Array:
        """A feature that is a list of numbers, (n,), as `dtype`."""
        found = self._list(name)
        if len(found) and isinstance(found[0], bytes):
            raise FormatError(f"{self.where}: {name}: expected numbers, found bytes")
        is_float = len(found) > 0 and isinstance(found[0], float)
        rows = np.fromiter(found, np.float32 if is_float else np.int64, len(found))
        out: Array = rows.view(dtype) if dtype == np.uint64 else rows.astype(dtype, copy=False)
        return out


@functools.cache
def _message() -> Any:
    """The class of an example."""
    library = functools.partial(need, package="protobuf")
    file = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    pool.Add(library("google.protobuf.text_format").Parse(_PROTO, file))
    factory = library("google.protobuf.message_factory")
    return factory.GetMessageClass(pool.FindMessageTypeByName("records.Example"))
