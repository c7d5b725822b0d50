"""TensorFlow.js graph models: ``model.json`` and shards of weights. TensorFlow processes only.

The format is that of the loader of ``@tensorflow/tfjs`` (``tf.loadGraphModel``): a frozen graph as
JSON, whose constants are moved to files of at most 4 MiB, which browsers cache.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf import json_format
from tensorflow.core.framework import types_pb2

from timonel.edge import _private
from timonel.edge.device_model import first_line
from timonel.edge.report import Quantization, TensorFacts
from timonel.errors import ModelError
from timonel.models.signatures import SERVING
from timonel.storage import write_bytes, write_text

TFJS_VERSION = "4.22.0"
MODEL_FILE = "model.json"
_SHARD_BYTES = 4 << 20
_INT32, _INT64 = types_pb2.DT_INT32, types_pb2.DT_INT64
_TYPES = (types_pb2.DT_FLOAT, _INT32, types_pb2.DT_BOOL, types_pb2.DT_VARIANT)
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp"}
_NO_ARITHMETIC = {"Placeholder", "Identity"}
_RANDOM = {
    *("Multinomial", "RandomStandardNormal", "RandomUniform", "RandomUniformInt"),
    "TruncatedNormal",
}
"""Operations that TensorFlow.js has, but with other numbers for the same seed."""
_SMALLEST_QUANTIZED = 16
"""Constants with fewer values, such as shapes and scales, keep all their digits."""


@dataclass(frozen=True)
class _Weight:
    entry: dict[str, Any]
    content: bytes


def write_tfjs(saved_model: Path, folder: Path, quantization: Quantization) -> tuple[str, ...]:
    """Write a SavedModel with one signature and a fixed batch as a graph model.

    Weights have 16 bits with ``float16``, 8 with ``dynamic``; the browser computes with floats.
    Returns the names of the files, ``model.json`` first.
    """
    graph, inputs, outputs = _frozen(saved_model)
    weights = [_weight(node, quantization) for node in graph.node if node.op == "Const"]
    for node in graph.node:
        if node.op == "Const":
            del node.attr["value"]
    shards = list(_shards(weight.content for weight in weights))
    names = [f"group1-shard{n}of{len(shards)}.bin" for n in range(1, len(shards) + 1)]
    model = {
        "format": "graph-model",
        "generatedBy": tf.__version__,
        "convertedBy": "timonel",
        "signature": {"inputs": inputs, "outputs": outputs},
        "modelTopology": json_format.MessageToDict(graph),
        "weightsManifest": [{"paths": names, "weights": [weight.entry for weight in weights]}],
    }
    write_text(folder / MODEL_FILE, json.dumps(model, separators=(",", ":")))
    for name, shard in zip(names, shards, strict=True):
        write_bytes(folder / name, shard)
    return (MODEL_FILE, *names)


def _frozen(saved_model: Path) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the graph that a browser computes, and its inputs and outputs by name."""
    loaded = tf.saved_model.load(str(saved_model))
    function = loaded.signatures[SERVING]
    _check_state(function.graph.as_graph_def())
    frozen = _private.frozen(function)
    given = function.structured_input_signature[1]
    returned = function.structured_outputs
    if not all(each.shape.is_fully_defined() for each in returned.values()):
        # Loops hide the shapes of their outputs until they are computed.
        returned = function(
            **{name: tf.zeros(each.shape, each.dtype) for name, each in given.items()}
        )
    inputs, outputs = _described(frozen.inputs, given), _described(frozen.outputs, returned)
    keep = [each["name"].partition(":")[0] for each in (*inputs.values(), *outputs.values())]
    graph = _private.optimized(frozen.graph.as_graph_def(), keep)
    _fold_shapes(graph)
    graph = _private.optimized(graph, keep)
    _clean_loops(graph, keep)
    _replace_erfc(graph)
    _check_operations(graph)
    _narrow_integers(graph)
    _check_types(graph)
    return graph, inputs, outputs


def _check_state(graph: Any) -> None:
    """Refuse tables and variables that change, which cannot become constants."""
    nodes = itertools.chain(graph.node, *(each.node_def for each in graph.library.function))
    users = {
        node.op: node.name
        for node in nodes
        if _private.takes_resource(node.op) and node.op not in _READS
    }
    if users:
        raise ModelError(
            f"TensorFlow.js keeps no tables and no variables that change, used by {_places(users)}",
            hint="do this step in the page",
        )


def _described(tensors: Sequence[Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a graph's tensors, with the names and shapes of ``like``."""
    # TensorFlow flattens dictionaries in the order of their keys.
    return {
        name: {
            "name": tensor.name,
            "dtype": types_pb2.DataType.Name(_narrow(tensor.dtype.as_datatype_enum)),
            "tensorShape": {"dim": [{"size": str(size)} for size in like[name].shape]},
        }
        for name, tensor in zip(sorted(like), tensors, strict=True)
    }


def _fold_shapes(graph: Any) -> None:
    """Turn known shapes into constants, and with them what is computed of shapes alone: masks."""
    with tf.Graph().as_default() as known:
        tf.import_graph_def(graph, name="")
    for node in list(graph.node):
        operation = known.get_operation_by_name(node.name)
        if node.op == "Shape" and (shape := operation.inputs[0].shape).is_fully_defined():
            kind = operation.outputs[0].dtype
            _set_constant(
                node, node.name, tf.make_tensor_proto(shape.as_list(), kind, [shape.rank])
            )
        elif node.op in {"Cumsum", "Cumprod"}:
            axis = tf.get_static_value(operation.inputs[1])
            if axis is not None and axis < 0:  # TensorFlow.js takes it for another axis
                node.input[1] = f"{node.name}/axis_from_first"
                node.attr["Tidx"].type = _INT32
                axis = tf.make_tensor_proto(operation.inputs[0].shape.rank + axis, tf.int32)
                _set_constant(graph.node.add(), node.input[1], axis)


def _set_constant(node: Any, name: str, value: Any) -> None:
    node.Clear()
    node.op, node.name = "Const", name
    node.attr["dtype"].type = value.dtype
    node.attr["value"].tensor.CopyFrom(value)


def _clean_loops(graph: Any, inputs: Collection[str]) -> None:
    """Remove what loops leave in a frozen graph and TensorFlow.js waits for in vain."""
    # Values that a loop does not use become inputs.
    kept = [each for each in graph.node if each.op != "Placeholder" or each.name in inputs]
    # TensorFlow.js takes "after this switch" for "after its false branch".
    switches = {f"^{node.name}" for node in kept if node.op == "Switch"}
    for node in kept:
        node.input[:] = [each for each in node.input if each not in switches]
    del graph.node[:]
    graph.node.extend(kept)


def _replace_erfc(graph: Any) -> None:
    """Compute Erfc, which TensorFlow.js lacks and GELU uses, as 1 - Erf."""
    for node in [each for each in graph.node if each.op == "Erfc"]:
        erf = graph.node.add(op="Erf", name=f"{node.name}/erf", input=node.input)
        erf.attr["T"].CopyFrom(node.attr["T"])
        one = graph.node.add()
        _set_constant(one, f"{node.name}/one", tf.make_tensor_proto(1, node.attr["T"].type))
        node.op, node.input[:] = "Sub", [one.name, erf.name]


def _check_operations(graph: Any) -> None:
    listed = resources.files(__package__).joinpath("tfjs_operations.txt").read_text()
    known = {line for line in listed.splitlines() if not line.startswith("#")}
    drawn = {node.op: node.name for node in graph.node if node.op in _RANDOM}
    if drawn:
        raise ModelError(
            f"TensorFlow.js draws other random numbers than TensorFlow: {_places(drawn)}",
            hint="remove the layer that uses it, or draw the numbers in the page",
        )
    missing = {node.op: node.name for node in graph.node if node.op not in known}
    if missing:
        raise ModelError(
            f"TensorFlow.js {TFJS_VERSION} has no operation {_places(missing)}",
            hint="replace the layer that uses it, or do this step in the page",
        )


def _narrow_integers(graph: Any) -> None:
    """Compute integers with 32 bits, as TensorFlow.js does, so that the comparison does, too."""
    wide: dict[str, str] = {}
    for node in list(graph.node):
        for attribute in node.attr.values():
            kind = attribute.WhichOneof("value")
            if kind == "type":
                attribute.type = _narrow(attribute.type)
            elif kind == "list":
                attribute.list.type[:] = [_narrow(each) for each in attribute.list.type]
            elif kind == "tensor" and attribute.tensor.dtype == _INT64:
                array = _int32(tf.make_ndarray(attribute.tensor), node.name)
                attribute.tensor.CopyFrom(tf.make_tensor_proto(array))
        for place in _private.wide_outputs(node.op):
            # TensorFlow's operation has 64 bits in any case.
            name = f"{node.name}/narrow_{place}"
            wide[f"{node.name}:{place}" if place else node.name] = name
            cast = graph.node.add(op="Cast", name=name, input=[f"{node.name}:{place}"])
            cast.attr["SrcT"].type, cast.attr["DstT"].type = _INT64, _INT32
    for node in graph.node:
        if node.name not in wide.values():
            node.input[:] = [wide.get(each, each) for each in node.input]


def _narrow(kind: int) -> int:
    return _INT32 if kind == _INT64 else kind


def _check_types(graph: Any) -> None:
    """Refuse types that TensorFlow.js replaces in silence, such as uint8 by int32."""
    for node in graph.node:
        if node.op in _NO_ARITHMETIC:
            continue
        for name, attribute in node.attr.items():
            if (
                attribute.WhichOneof("value") == "type"
                and attribute.type not in _TYPES
                and (node.op, name) != ("Cast", "SrcT")
            ):
                raise ModelError(
                    f"TensorFlow.js does not compute with the type "
                    f"{tf.as_dtype(attribute.type).name} ({node.op} at {_place(node.name)})",
                    hint="compute with float32 or int32 in the model",
                )


def _weight(node: Any, quantization: Quantization) -> _Weight:
    array = tf.make_ndarray(node.attr["value"].tensor)
    kind = array.dtype.name
    entry: dict[str, Any] = {"name": node.name, "shape": list(array.shape), "dtype": kind}
    if kind == "float32" and array.size >= _SMALLEST_QUANTIZED:
        array, stored = _quantized(array, quantization)
        if stored:
            entry["quantization"] = stored
    return _Weight(entry, np.ascontiguousarray(array).tobytes())


def _int32(array: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int32]:
    """Return integers as browsers have them; the largest of 64 bits mean "no limit"."""
    limits, longest = np.iinfo(np.int32), np.iinfo(np.int64)
    clipped = np.clip(array, limits.min, limits.max)
    if np.any((clipped != array) & (array != longest.max) & (array != longest.min)):
        raise ModelError(
            f"TensorFlow.js has no integers of 64 bits, but {_place(name)} holds "
            f"{np.abs(array).max()}",
            hint="compute with smaller integers in the model",
        )
    return clipped.astype(np.int32)


def _places(nodes: Mapping[str, str]) -> str:
    """Return operations, and for each the name of a node."""
    return ", ".join(f"{op} (at {_place(name)})" for op, name in sorted(nodes.items()))


def _place(node: str) -> str:
    """Return the name of a node without the calls around it."""
    return re.sub(r"^(ConstantFolding/)?((Stateful)?PartitionedCall/)+", "", node)


def _quantized(
    array: npt.NDArray[Any], quantization: Quantization
) -> tuple[npt.NDArray[Any], Mapping[str, Any] | None]:
    if quantization == "float16":
        # The comparison finds outputs with values that do not fit.
        with np.errstate(over="ignore"):
            return array.astype(np.float16), {"dtype": "float16", "original_dtype": "float32"}
    if quantization != "dynamic":
        return array, None
    low, high = min(0.0, float(array.min())), max(0.0, float(array.max()))
    if low == high:
        return array, None
    scale = (high - low) / 255
    # Zero is stored exactly: padding and sparse weights rely on it.
    zero = round(-low / scale)
    codes = np.clip(np.round(array / scale) + zero, 0, 255).astype(np.uint8)
    described = {
        "dtype": "uint8",
        "original_dtype": "float32",
        "min": -zero * scale,
        "scale": scale,
    }
    return codes, described


def _shards(contents: Iterator[bytes]) -> Iterator[bytes]:
    whole = b"".join(contents)
    for start in range(0, max(1, len(whole)), _SHARD_BYTES):
        yield whole[start : start + _SHARD_BYTES]


class TfjsModel:
    """A graph model as a browser reads it, computed by TensorFlow."""

    def __init__(self, folder: Path) -> None:
        model = json.loads((folder / MODEL_FILE).read_text())
        graph = json_format.ParseDict(model["modelTopology"], tf.compat.v1.GraphDef())
        weights = _read_weights(model["weightsManifest"], folder)
        for node in graph.node:
            if node.op == "Const":
                value = tf.make_tensor_proto(weights[node.name])
                node.attr["value"].tensor.CopyFrom(value)
        self._signature = model["signature"]
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            tf.import_graph_def(graph, name="")

    @property
    def inputs(self) -> tuple[TensorFacts, ...]:
        """The inputs."""
        return _facts(self._signature["inputs"])

    @property
    def outputs(self) -> tuple[TensorFacts, ...]:
        """The outputs."""
        return _facts(self._signature["outputs"])

    def run(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return outputs by name."""
        places, fetches = self._signature["inputs"], self._signature["outputs"]
        try:
            found: Mapping[str, Any] = self._session.run(
                {name: each["name"] for name, each in fetches.items()},
                {places[name]["name"]: value for name, value in inputs.items()},
            )
        except tf.errors.OpError as error:
            raise ModelError(
                f"the converted model fails on an example: {first_line(error)}"
            ) from error
        return found


def _read_weights(manifest: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    weights: dict[str, Any] = {}
    for group in manifest:
        content = b"".join((folder / name).read_bytes() for name in group["paths"])
        place = 0
        for entry in group["weights"]:
            stored = entry.get("quantization")
            dtype = np.dtype(stored["dtype"] if stored else entry["dtype"])
            size = int(np.prod(entry["shape"], dtype=np.int64))
            array = np.frombuffer(content, dtype, size, place).reshape(entry["shape"])
            place += array.nbytes
            if stored and "scale" in stored:
                array = array.astype(np.float32) * np.float32(stored["scale"]) + stored["min"]
            weights[entry["name"]] = array.astype(entry["dtype"])
    return weights


def _facts(tensors: Mapping[str, Any]) -> tuple[TensorFacts, ...]:
    return tuple(
        TensorFacts(
            name=name,
            dtype=tf.as_dtype(getattr(types_pb2, each["dtype"])).name,
            shape=tuple(int(size["size"]) for size in each["tensorShape"]["dim"]),
        )
        for name, each in tensors.items()
    )
