"""Read a SavedModel's signatures and warm-up requests. Without TensorFlow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from timonel.data.records import frame, read_records
from timonel.errors import CorruptError
from timonel.models.schema import WARMUP_FILE
from timonel.serving.protos.messages import prediction_log_pb2, saved_model_pb2, types_pb2
from timonel.serving.protos.tensors import from_proto, to_proto
from timonel.serving.signature import DEFAULT_SIGNATURE, Array, Signature, TensorSpec
from timonel.serving.status import StatusError

_LOG = logging.getLogger(__name__)
MAX_SAMPLES = 32
"""Limit on requests read: enough to compare answers."""

Sample = tuple[str, Mapping[str, Array]]
"""A signature's name, and its inputs by name."""


def signature_of(
    name: str, proto: Any, value_of: Callable[[Any], Array] | None = None
) -> Signature:
    """Convert a ``SignatureDef``; without ``value_of``, omit default values of inputs."""
    return Signature(
        name=name,
        inputs={key: _spec(info) for key, info in sorted(proto.inputs.items())},
        outputs={key: _spec(info) for key, info in sorted(proto.outputs.items())},
        method_name=proto.method_name,
        defaults={key: value_of(each) for key, each in proto.defaults.items()} if value_of else {},
    )


def signatures_in(version: Path, tags: Collection[str]) -> dict[str, Signature]:
    """Return a SavedModel's signatures, without default values; none without such a graph."""
    graph = meta_graph_of(version, tags)
    protos = {} if graph is None else graph.signature_def
    return {name: signature_of(name, each) for name, each in protos.items()}


def meta_graph_of(version: Path, tags: Collection[str]) -> Any:
    """Return the ``MetaGraphDef`` with exactly these tags, or None."""
    model = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    graphs = (each for each in model.meta_graphs if set(each.meta_info_def.tags) == set(tags))
    return next(graphs, None)


def samples_of(version: Path, limit: int = MAX_SAMPLES) -> list[Sample]:
    """Return the Predict requests in a warm-up file; empty if unreadable."""
    path = version / WARMUP_FILE
    found: list[Sample] = []
    if not path.is_file():
        return found
    try:
        for record in read_records(path):
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if log.WhichOneof("log_type") == "predict_log":
                request = log.predict_log.request
                name = request.model_spec.signature_name or DEFAULT_SIGNATURE
                inputs = {alias: from_proto(alias, each) for alias, each in request.inputs.items()}
                found.append((name, inputs))
            if len(found) == limit:
                break
    except (CorruptError, DecodeError, StatusError) as error:
        # Warming up reports the problem.
        _LOG.debug("no samples in %s: %s", path, error)
    return found


def as_warmup_file(samples: Iterable[Sample]) -> bytes:
    """Return the content of a warm-up file, in TensorFlow Serving's format."""
    content = bytearray()
    for name, inputs in samples:
        log = prediction_log_pb2.PredictionLog()
        request = log.predict_log.request
        request.model_spec.signature_name = name
        for alias, array in inputs.items():
            request.inputs[alias].CopyFrom(to_proto(array))
        for part in frame(log.SerializeToString()):
            content += part
    return bytes(content)


def row_shapes(inputs: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shape of a row of each input."""
    return {name: array.shape[1:] for name, array in inputs.items()}


def _spec(info: Any) -> TensorSpec:
    shape = info.tensor_shape
    encoding = info.WhichOneof("encoding") or "name"
    return TensorSpec(
        tensor=info.name,
        dtype=types_pb2.DataType.Name(info.dtype),
        shape=None if shape.unknown_rank else tuple(dim.size for dim in shape.dim),
        encoding=encoding,
        parts=_parts(info, encoding),
    )


def _parts(info: Any, encoding: str) -> tuple[str, ...]:
    if encoding == "composite_tensor":
        return tuple(each.name for each in info.composite_tensor.components)
    if encoding == "coo_sparse":
        sparse = info.coo_sparse
        return (
            sparse.values_tensor_name,
            sparse.indices_tensor_name,
            sparse.dense_shape_tensor_name,
        )
    return ()
