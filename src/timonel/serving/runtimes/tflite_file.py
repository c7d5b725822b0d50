"""Signatures of a ``.tflite`` file. Pure: bytes in, signatures out.

A file can hold signatures in two places. TensorFlow's converter writes a table of names and
tensors, with one subgraph per signature. Older files have a metadata buffer with SignatureDefs,
which name tensors of the first subgraph; TensorFlow Serving reads only this buffer. A file may have
neither.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timonel.serving.protos.messages import meta_graph_pb2
from timonel.serving.signature import DEFAULT_SIGNATURE, NUMPY_TYPES, PREDICT, Signature, TensorSpec
from timonel.serving.status import invalid_argument

_METADATA = b"signature_defs_metadata"

# schema.fbs: enum TensorType, in numeric order.
_TYPE_NAMES = """
DT_FLOAT DT_HALF DT_INT32 DT_UINT8 DT_INT64 DT_STRING DT_BOOL DT_INT16 DT_COMPLEX64 DT_INT8
DT_DOUBLE DT_COMPLEX128 DT_UINT64 DT_RESOURCE DT_VARIANT DT_UINT32 DT_UINT16 DT_INT4
DT_BFLOAT16
"""
_TYPES = tuple(_TYPE_NAMES.split())


@dataclass(frozen=True)
class FlatbufferSignature:
    """A callable signature of the file.

    Args:
        signature: The signature as seen by clients.
        key: Its name in the file's own table; None if the first subgraph is called.
        inputs: Tensor numbers in the first subgraph, by the client's names.
        outputs: Likewise.
    """

    signature: Signature
    key: str | None
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def entries_in(
    content: bytes, *, as_tensorflow_serving: bool = False
) -> dict[str, FlatbufferSignature]:
    """Return the callable signatures of a file, by name.

    Args:
        content: The file.
        as_tensorflow_serving: Ignore the file's own table of signatures.

    Raises:
        StatusError: This is no such file, or clients cannot use its inputs or outputs.
    """
    from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 - slow to import

    if content[4:8] != b"TFL3":
        raise invalid_argument("the file is not a TensorFlow Lite model")
    try:
        model = schema.Model.GetRootAs(content, 0)
        tabled = {} if as_tensorflow_serving else _tabled(model)
        return _described(model) or tabled or _named(model)
    except (IndexError, TypeError, ValueError, AttributeError, struct.error) as error:
        # The reader follows offsets without checking them.
        raise invalid_argument(f"the TensorFlow Lite model is damaged: {error}") from error


def _tabled(model: Any) -> dict[str, FlatbufferSignature]:
    entries = {}
    for number in range(model.SignatureDefsLength()):
        table = model.SignatureDefs(number)
        graph = model.Subgraphs(table.SubgraphIndex())
        inputs, outputs = (
            {each.Name().decode(): each.TensorIndex() for each in map(get, range(length()))}
            for get, length in (
                (table.Inputs, table.InputsLength),
                (table.Outputs, table.OutputsLength),
            )
        )
        key = table.SignatureKey().decode()
        entries[key] = _entry(key, graph, inputs, outputs, key=key)
    return entries


def _described(model: Any) -> dict[str, FlatbufferSignature]:
    content = next(
        (
            model.Buffers(each.Buffer()).DataAsNumpy().tobytes()
            for each in map(model.Metadata, range(model.MetadataLength()))
            if each.Name() == _METADATA
        ),
        None,
    )
    if content is None:
        return {}
    from flatbuffers import flexbuffers  # noqa: PLC0415 - hardly ever needed

    graph = model.Subgraphs(0)
    numbers = {graph.Tensors(n).Name().decode(): n for n in range(graph.TensorsLength())}
    entries = {}
    found = flexbuffers.GetRoot(content).AsMap
    for name, value in zip((key.AsKey for key in found.Keys), found.Values, strict=True):
        proto = meta_graph_pb2.SignatureDef.FromString(value.AsStringBytes)
        inputs, outputs = (
            {alias: _number(numbers, info.name) for alias, info in sorted(infos.items())}
            for infos in (proto.inputs, proto.outputs)
        )
        entries[name] = _entry(name, graph, inputs, outputs, method=proto.method_name)
    return entries


def _number(numbers: Mapping[str, int], tensor: str) -> int:
    for name in (tensor, tensor.partition(":")[0]):
        if name in numbers:
            return numbers[name]
    raise invalid_argument(f"the TensorFlow Lite model has no tensor {tensor}")


def _named(model: Any) -> dict[str, FlatbufferSignature]:
    graph = model.Subgraphs(0)

    def by_name(numbers: Iterable[int]) -> dict[str, int]:
        return {graph.Tensors(n).Name().decode().partition(":")[0]: int(n) for n in numbers}

    inputs, outputs = by_name(graph.InputsAsNumpy()), by_name(graph.OutputsAsNumpy())
    return {DEFAULT_SIGNATURE: _entry(DEFAULT_SIGNATURE, graph, inputs, outputs)}


def _entry(
    name: str,
    graph: Any,
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    *,
    key: str | None = None,
    method: str = PREDICT,
) -> FlatbufferSignature:
    signature = Signature(
        name=name,
        inputs={alias: _spec(graph, number) for alias, number in sorted(inputs.items())},
        outputs={alias: _spec(graph, number) for alias, number in sorted(outputs.items())},
        method_name=method,
    )
    return FlatbufferSignature(signature, key, inputs, outputs)


def _spec(graph: Any, number: int) -> TensorSpec:
    tensor = graph.Tensors(number)
    name = tensor.Name().decode()
    dtype = _TYPES[tensor.Type()] if tensor.Type() < len(_TYPES) else f"type {tensor.Type()}"
    if dtype not in NUMPY_TYPES:
        raise invalid_argument(f"tensor {name} has type {dtype}, which clients cannot send")
    shape = tensor.ShapeSignatureAsNumpy() if tensor.ShapeSignatureLength() else None
    if shape is None:
        shape = tensor.ShapeAsNumpy() if tensor.ShapeLength() else ()
    return TensorSpec(tensor=name, dtype=dtype, shape=tuple(int(size) for size in shape))
