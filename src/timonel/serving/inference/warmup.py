"""Run warm-up requests before a version serves.

The first clients then do not wait for initialization. The requests are in
``assets.extra/tf_serving_warmup_requests`` of the version: PredictionLogs in a TFRecord file, as
TensorFlow Serving and the request log write them. Rules and messages are TensorFlow Serving's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf import message

from timonel.data.records import read_records
from timonel.errors import CorruptError
from timonel.models.schema import WARMUP_FILE
from timonel.serving.batching.scheduled_model import ScheduledModel
from timonel.serving.inference import classification, conversion
from timonel.serving.inference.classification import PreparedRun
from timonel.serving.inference.flow import Call
from timonel.serving.manager.catalogue import Servable
from timonel.serving.protos.messages import prediction_log_pb2
from timonel.serving.protos.tensors import from_proto
from timonel.serving.signature import CLASSIFY, REGRESS
from timonel.serving.status import Code, StatusError, invalid_argument

_LOG = logging.getLogger(__name__)
MAX_RECORDS = 1000


def warm_up(
    model: ScheduledModel,
    folder: Path,
    iterations: int = 1,
    observe: Callable[[Code, float, int], None] = lambda *_: None,
) -> None:
    """Send a version's own warm-up requests to it, if it has any.

    Args:
        observe: Called with the status, the seconds and the number of requests read, also after a
            failure; not called if there is no file.
    """
    path = folder / WARMUP_FILE
    if not path.is_file():
        return
    began = time.monotonic()
    count = 0
    code = Code.OK
    call = Call(Servable("", 0, model))
    try:
        for record in read_records(path):
            if count == MAX_RECORDS:
                raise invalid_argument(
                    f"Number of warmup records exceeds the maximum ({MAX_RECORDS}) at {path}"
                )
            log = _parsed(record, path)
            for _ in range(max(1, iterations)):
                replay(call, log)
            count += 1
    except CorruptError as error:
        code = Code.DATA_LOSS
        raise StatusError(
            code, f"{error.message}. Please verify your warmup data is in TFRecord format."
        ) from error
    except StatusError as error:
        code = error.code
        raise
    finally:
        seconds = time.monotonic() - began
        observe(code, seconds, count)
    _LOG.info("warmed up with %d requests in %.2f s: %s", count, seconds, path)


def replay(call: Call, log: Any) -> None:
    """Send the request of a PredictionLog to a version, whatever model and version it names."""
    kind = log.WhichOneof("log_type")
    if kind is None:
        return
    replayer = _REPLAYERS.get(kind)
    if replayer is None:
        number = log.DESCRIPTOR.fields_by_name[kind].number
        raise StatusError(Code.UNIMPLEMENTED, f"Unsupported log_type for warmup: {number}")
    replayer(call, getattr(log, kind).request)


def _parsed(record: bytes, path: Path) -> Any:
    try:
        return prediction_log_pb2.PredictionLog.FromString(record)
    except message.DecodeError as error:
        shown = record[:256].decode(errors="replace")
        raise invalid_argument(f"Failed to parse warmup record: {shown} from {path}") from error


def _predict(call: Call, request: Any) -> None:
    inputs = {alias: from_proto(alias, proto) for alias, proto in request.inputs.items()}
    call.predict(call.signature(request.model_spec.signature_name), inputs, request.output_filter)


def _examples(method: str, call: Call, request: Any) -> None:
    name, examples = request.model_spec.signature_name, conversion.examples_from(request.input)
    _run(call, classification.prepare(call, method, name, *examples))


def _infer(call: Call, request: Any) -> None:
    tasks = conversion.tasks_from(request.tasks)
    if not tasks:
        raise invalid_argument("ModelSpec has no name specified.")
    for prepared in classification.infer(call, tasks, *conversion.examples_from(request.input)):
        _run(call, prepared)


def _run(call: Call, prepared: PreparedRun) -> None:
    prepared.read(call.predict(*prepared.run))


_REPLAYERS: dict[str, Callable[[Call, Any], None]] = {
    "predict_log": _predict,
    "classify_log": partial(_examples, CLASSIFY),
    "regress_log": partial(_examples, REGRESS),
    "multi_inference_log": _infer,
}
