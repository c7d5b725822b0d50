"""Inference requests and results, and their parameters, for REST and gRPC. Pure.

The protocol leaves parameters to each server. Unknown ones are ignored, as by other servers, but
those that request a missing feature are rejected.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from timonel.serving.manager.catalogue import ModelSpec
from timonel.serving.signature import Array
from timonel.serving.status import StatusError, invalid_argument, not_found

SIGNATURE_NAME: Final = "signature_name"
TIMEOUT: Final = "timeout"
BINARY_DATA: Final = "binary_data"
BINARY_DATA_OUTPUT: Final = "binary_data_output"
BINARY_DATA_SIZE: Final = "binary_data_size"
CONTENT_TYPE: Final = "content_type"
BASE64: Final = "base64"
_MICRO: Final = 1e-6
_REFUSED: Mapping[str, str] = {
    "sequence_id": "sequences of requests",
    "shared_memory_region": "shared memory with clients",
    "classification": "the classification extension",
}

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class RequestParameters:
    """Supported request parameters.

    Args:
        signature_name: The signature to run; empty for the default one.
        timeout_s: Seconds until the request expires; None for no limit.
        binary_output: Whether outputs are raw by default.
    """

    signature_name: str = ""
    timeout_s: float | None = None
    binary_output: bool = False


NO_PARAMETERS: Final = RequestParameters()


@dataclass(frozen=True)
class OutputForm:
    """Encoding of an output.

    Args:
        binary: Whether to write raw bytes instead of JSON.
        base64: Whether to write strings in JSON in base64, even if they are UTF-8.
    """

    binary: bool = False
    base64: bool = False


@dataclass(frozen=True, eq=False)
class InferRequest:
    """An inference request.

    Args:
        inputs: Arrays by input name.
        outputs: Requested outputs and their encodings, in order; empty for all.
        request_id: The client's request id, returned in the response; None if absent.
        parameters: The request's parameters.
        is_raw: Whether a gRPC request has raw contents, so that its response has them, too.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, OutputForm]
    request_id: str | None = None
    parameters: RequestParameters = NO_PARAMETERS
    is_raw: bool = False

    def form(self, output: str) -> OutputForm:
        """Return the encoding of an output."""
        return self.outputs.get(output) or OutputForm(binary=self.parameters.binary_output)


@dataclass(frozen=True, eq=False)
class InferResult:
    """The outputs of a version.

    Args:
        model: The model's name as given by the client.
        version: The version that answered.
        outputs: Arrays by output name.
    """

    model: str
    version: int
    outputs: Mapping[str, Array]


def spec_of(name: str, version: str = "") -> ModelSpec:
    """Return the model version of a request.

    Args:
        name: The model's name.
        version: A number, a label, or empty for the latest.

    Raises:
        StatusError: The number exceeds 64 bits.
    """
    if not version:
        return ModelSpec(name)
    if not (version.isascii() and version.isdecimal()):
        return ModelSpec(name, label=version)
    digits = version.lstrip("0") or "0"
    # Converting digits takes quadratic time.
    if len(digits) > 19 or int(digits) >= 2**63:
        raise not_found(f"Could not find version {version[:40]} of model {name}")
    return ModelSpec(name, int(digits))


def request_parameters(parameters: Parameters) -> RequestParameters:
    """Parse the parameters of a request.

    Raises:
        StatusError: A parameter has the wrong type or requests a missing feature.
    """
    if not parameters:
        return NO_PARAMETERS
    refuse_unsupported(parameters, "the request")
    name = parameters.get(SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise _wrong(SIGNATURE_NAME, "a string", name)
    timeout = parameters.get(TIMEOUT, 0)
    if type(timeout) is not int or not 0 <= timeout < 2**64:
        raise _wrong(TIMEOUT, "a number of microseconds", timeout)
    binary = parameters.get(BINARY_DATA_OUTPUT)
    is_binary = binary is not None and boolean(BINARY_DATA_OUTPUT, binary)
    return RequestParameters(name, timeout * _MICRO if timeout else None, is_binary)


def refuse_unsupported(parameters: Parameters, owner: str) -> None:
    """Reject parameters that request a missing feature.

    Args:
        parameters: Values by name.
        owner: Owner of the parameters, for the message.

    Raises:
        StatusError: A parameter requests a missing feature.
    """
    for name, what in _REFUSED.items():
        if parameters.get(name):
            raise invalid_argument(
                f"the parameter {name} of {owner} is not supported: this server does not have "
                f"{what}"
            )


def is_base64(parameters: Parameters) -> bool:
    """Whether a tensor's strings are in base64."""
    return parameters.get(CONTENT_TYPE) == BASE64


def boolean(name: str, value: Any) -> bool:
    """Return the value of the boolean parameter ``name``.

    Raises:
        StatusError: The value is not a boolean.
    """
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _wrong(name: str, expected: str, value: Any) -> StatusError:
    return invalid_argument(
        f"expected the parameter {name} to be {expected}, got {reprlib.repr(value)}"
    )
