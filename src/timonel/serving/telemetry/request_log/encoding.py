"""Encode exchanges as serialized PredictionLogs. Pure."""

from __future__ import annotations

from typing import Any

from timonel.serving.inference import classification, conversion
from timonel.serving.inference.logged_request import LoggedRequest
from timonel.serving.protos.messages import example_pb2, prediction_log_pb2
from timonel.serving.protos.tensors import to_proto
from timonel.serving.signature import Array


def encode_exchange(exchange: LoggedRequest, sampling_rate: float) -> bytes:
    """Return an exchange as a PredictionLog of the called API.

    A task of MultiInference becomes a separate log, of Classify or Regress.
    """
    log = prediction_log_pb2.PredictionLog()
    log.log_metadata.sampling_config.sampling_rate = sampling_rate
    _name(log.log_metadata.model_spec, exchange)
    _ENCODERS[_kind(exchange)](log, exchange)
    return bytes(log.SerializeToString())


def _kind(exchange: LoggedRequest) -> str:
    api = exchange.api.lower()
    if api == "multiinference":
        is_regression = exchange.signature.method_name == classification.REGRESS
        return "regress" if is_regression else "classify"
    return api if api in _ENCODERS else "predict"


def _name(spec: Any, exchange: LoggedRequest) -> None:
    spec.name = exchange.model
    spec.version.value = exchange.version
    spec.signature_name = exchange.signature.name


def _predict(log: Any, exchange: LoggedRequest) -> None:
    request, response = log.predict_log.request, log.predict_log.response
    _name(request.model_spec, exchange)
    _name(response.model_spec, exchange)
    request.output_filter.extend(exchange.output_filter)
    for name, array in exchange.inputs.items():
        request.inputs[name].CopyFrom(to_proto(array))
    for name, array in exchange.outputs.items():
        response.outputs[name].CopyFrom(to_proto(array))


def _classify(log: Any, exchange: LoggedRequest) -> None:
    request, response = log.classify_log.request, log.classify_log.response
    _name(request.model_spec, exchange)
    _name(response.model_spec, exchange)
    _fill(request.input, exchange)
    outputs = exchange.outputs
    found = classification.Classes(outputs.get("classes"), outputs.get("scores"))
    conversion.fill_classes(response.result, found)


def _regress(log: Any, exchange: LoggedRequest) -> None:
    request, response = log.regress_log.request, log.regress_log.response
    _name(request.model_spec, exchange)
    _name(response.model_spec, exchange)
    _fill(request.input, exchange)
    conversion.fill_regressions(response.result, exchange.outputs["outputs"].reshape(-1))


def _fill(given: Any, exchange: LoggedRequest) -> None:
    examples: Array = exchange.inputs["inputs"]
    # Parsing has merged a common context into each example.
    given.example_list.examples.extend(
        example_pb2.Example.FromString(example) for example in examples.reshape(-1).tolist()
    )


_ENCODERS = {"predict": _predict, "classify": _classify, "regress": _regress}
