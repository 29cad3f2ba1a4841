"""Files of TensorFlow's records, and the examples in them, without TensorFlow.

Invariant: a record whose checksum is wrong, or that the file ends in, is refused.

TensorFlow Datasets itself would read these files, with TensorFlow, of which a gigabyte would be
installed for eight bytes of framing, or without it for array_record only. What an example is, is
parsed by protobuf.
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
from mmreplay.exchange.source_files import open_file
from mmreplay.format.compression import crc32c
from mmreplay.ids import Array

__all__ = ["Example", "records"]

_LENGTH, _SUM = struct.Struct("<QI"), struct.Struct("<I")
_MASK = 0xA282EAD8
_WORD = 0xFFFFFFFF


def records(path: Path, kind: str) -> Iterator[bytes]:
    """The records of a file of that kind in order; raises FormatError for one that is damaged."""
    if kind == "tfrecord":
        yield from _tf_records(path)
    elif kind == "array_record":
        module = need("array_record.python.array_record_module", None, "array-record")
        reader = module.ArrayRecordReader(str(path))
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
                raise FormatError(f"{where}: the file ends in it; it was cut off")
            length, checksum = _LENGTH.unpack(head)
            if _masked(head[:8]) != checksum:
                raise FormatError(f"{where}: the checksum of its length is wrong")
            if length + _SUM.size > size - file.tell():
                raise FormatError(f"{where}: the file ends in it; it was cut off")
            data = file.read(length)
            if _masked(data) != _SUM.unpack(file.read(_SUM.size))[0]:
                raise FormatError(f"{where}: its checksum is wrong")
            yield data


def _masked(data: bytes) -> int:
    """The checksum as it is kept: a sum of data that has sums in it would be a poor one."""
    found = crc32c(data)
    return (((found >> 15) | (found << 17)) + _MASK) & _WORD


class Example:
    """A ``tf.train.Example``: lists of numbers or of bytes, by name. Raises FormatError."""

    def __init__(self, data: bytes, where: str) -> None:
        self.where = where
        decode_error = need("google.protobuf.message", package="protobuf").DecodeError
        try:
            self._features = _message().FromString(data).features.feature
        except decode_error as error:
            raise FormatError(f"{where}: not a tf.train.Example: {error!s:.200}") from error

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
    """The class of an example.

    Source: TensorFlow, tensorflow/core/example/example.proto and feature.proto.
    """
    pb = need("google.protobuf.descriptor_pb2", package="protobuf")
    kinds = pb.FieldDescriptorProto
    file = pb.FileDescriptorProto(name="example.proto", package="records", syntax="proto3")

    def add(name: str, *fields: Any) -> Any:
        out = file.message_type.add(name=name)
        for number, (label, label_kind, kind) in enumerate(fields, 1):
            one = out.field.add(name=label, number=number, label=label_kind)
            if isinstance(kind, str):
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".records.{kind}"
            else:
                one.type = kind
        return out

    many, single = kinds.LABEL_REPEATED, kinds.LABEL_OPTIONAL
    add("BytesList", ("value", many, kinds.TYPE_BYTES))
    add("FloatList", ("value", many, kinds.TYPE_FLOAT))
    add("Int64List", ("value", many, kinds.TYPE_INT64))
    feature = add(
        "Feature",
        ("bytes_list", single, "BytesList"),
        ("float_list", single, "FloatList"),
        ("int64_list", single, "Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for one in feature.field:
        one.oneof_index = 0
    features = add("Features", ("feature", many, "Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=single, type=kinds.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=single, type=kinds.TYPE_MESSAGE, type_name=".records.Feature"
    )
    add("Example", ("features", single, "Features"))
    pool = need("google.protobuf.descriptor_pool", package="protobuf").DescriptorPool()
    pool.Add(file)
    factory = need("google.protobuf.message_factory", package="protobuf")
    return factory.GetMessageClass(pool.FindMessageTypeByName("records.Example"))
