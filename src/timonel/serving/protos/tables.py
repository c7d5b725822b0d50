"""Build messages from tables, without generated code.

In descriptor pools of their own: other libraries may define the same names in another file, which
one pool cannot hold twice, and a model's Python code may import such a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Messages = Mapping[str, tuple[str, ...]]
"""Fields by message, in the order of their numbers and in the syntax of proto files.

Nested messages follow the outer one. Messages as types have their full names. The keys of maps are
strings: ``map Value parameters``. Fields with ``oneof`` exclude each other.
"""
_Field = descriptor_pb2.FieldDescriptorProto
_ENTRY = "ParametersEntry"


def pool_of(
    name: str,
    package: str,
    messages: Messages,
    *,
    imported: Sequence[Any] = (),
    services: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> descriptor_pool.DescriptorPool:
    """Return a descriptor pool with a file of messages and services, and the files it imports.

    The method ``Predict`` of a service takes ``PredictRequest`` and returns ``PredictResponse``.
    """
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    for other in imported:
        file.dependency.append(other.name)
        pool.AddSerializedFile(other.serialized_pb)
    made: dict[str, descriptor_pb2.DescriptorProto] = {}
    for path, fields in messages.items():
        parent, _, short = path.rpartition(".")
        made[path] = made[parent].nested_type.add() if parent else file.message_type.add()
        made[path].name = short
        for number, field in enumerate(fields, 1):
            _add_field(made[path], f"{package}.{path}", number, field)
    for service, methods in services.items():
        added = file.service.add(name=service)
        for method in methods:
            kinds = (f".{package}.{method}{role}" for role in ("Request", "Response"))
            added.method.add(name=method, input_type=next(kinds), output_type=next(kinds))
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def class_of(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    """Return the class of a message by its full name."""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _add_field(message: descriptor_pb2.DescriptorProto, path: str, number: int, text: str) -> None:
    *label, kind, name = text.split()
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if label in (["repeated"], ["map"]):
        field.label = _Field.LABEL_REPEATED
    if label == ["oneof"]:
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if label == ["map"]:
        entry = message.nested_type.add(name=_ENTRY)
        entry.options.map_entry = True
        _add_field(entry, f"{path}.{_ENTRY}", 1, "string key")
        _add_field(entry, f"{path}.{_ENTRY}", 2, f"{kind} value")
        kind = f"{path}.{_ENTRY}"
    if "." in kind:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{kind}"
    else:
        field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
