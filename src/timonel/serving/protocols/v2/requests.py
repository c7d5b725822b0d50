"""Inference requests and results, and views of the server, for REST and gRPC.

The protocol leaves parameters to each server. Unknown ones are ignored, as by other servers, but
those that request a missing feature are rejected.
"""

from __future__ import annotations

import abc
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from timonel._version import __version__
from timonel.serving.inference.flow import Call, Codec, SignatureRun
from timonel.serving.manager.catalogue import Catalogue, ModelSpec
from timonel.serving.manager.plan import VersionState
from timonel.serving.protocols.v2.tensors import check_types, datatype_named
from timonel.serving.signature import DEFAULT_SIGNATURE, INIT_OP, Array, TensorSpec
from timonel.serving.status import Code, StatusError, invalid_argument, not_found

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
T = TypeVar("T")


@dataclass(frozen=True)
class RequestParameters:
    """Supported request parameters; an empty ``signature_name`` is the default one."""

    signature_name: str = ""
    timeout_s: float | None = None
    binary_output: bool = False


NO_PARAMETERS: Final = RequestParameters()


@dataclass(frozen=True)
class OutputForm:
    """Encoding of an output: raw instead of JSON; strings in base64, even if they are UTF-8."""

    binary: bool = False
    base64: bool = False


@dataclass(frozen=True, eq=False)
class InferRequest:
    """An inference request.

    Args:
        outputs: Requested outputs and their encodings, in order; empty for all.
        request_id: The client's request id, returned in the response; None if absent.
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


def spec_of(name: str, version: str = "") -> ModelSpec:
    """Return the model version of a request."""
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
    """Parse the parameters of a request."""
    if not parameters:
        return NO_PARAMETERS
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
    """Reject parameters that request a missing feature."""
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
    """Return the value of the boolean parameter ``name``."""
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _wrong(name: str, expected: str, value: Any) -> StatusError:
    return invalid_argument(
        f"expected the parameter {name} to be {expected}, got {reprlib.repr(value)}"
    )


_EXTENSIONS: Final = ("binary_tensor_data",)
PROBES: Final = frozenset({"ServerLive", "ServerReady"})
"""Methods that are so frequent that they would dominate the monitored requests."""
View = Callable[[ModelSpec], dict[str, Any]]


class InferCodec(Codec[T]):
    """An inference request over REST or gRPC."""

    request: InferRequest
    """The decoded request."""

    @abc.abstractmethod
    def decode(self) -> tuple[ModelSpec, InferRequest]:
        """Return the requested version, and the decoded request."""

    def prepare(self, acquire: Callable[[ModelSpec], Call]) -> Sequence[SignatureRun]:
        """Decode the request and find its signature."""
        spec, request = self.decode()
        self.request = request
        self.timeout_s = request.parameters.timeout_s
        call = acquire(spec)
        signature = call.signature(request.parameters.signature_name)
        check_types(signature, request.inputs)
        return (SignatureRun(signature, request.inputs, tuple(request.outputs)),)


def views(catalogue: Catalogue, is_draining: Callable[[], bool]) -> dict[str, View]:
    """Return the methods that run no model, by their names over gRPC."""
    server = {"name": "timonel", "version": __version__, "extensions": list(_EXTENSIONS)}
    return {
        "ServerLive": lambda _: {"live": not catalogue.hung()},
        "ServerReady": lambda _: {"ready": not (catalogue.unready() or is_draining())},
        "ServerMetadata": lambda _: server,
        "ModelReady": lambda spec: {"ready": _is_ready(catalogue, spec)},
        "ModelMetadata": partial(_metadata, catalogue),
    }


def _metadata(catalogue: Catalogue, spec: ModelSpec) -> dict[str, Any]:
    """Return the metadata of a version and its default signature."""
    metadata = catalogue.metadata(spec)
    signature = metadata.signatures.get(DEFAULT_SIGNATURE)
    if signature is None:
        names = ", ".join(sorted(metadata.signatures.keys() - {INIT_OP})) or "none"
        raise StatusError(
            Code.FAILED_PRECONDITION,
            f"Model {metadata.name} has no signature {DEFAULT_SIGNATURE}. It has: {names}. Choose "
            "one with the request's parameter signature_name.",
        )
    known = catalogue.known(metadata.name)
    serving = [status.number for status in known if status.state is VersionState.AVAILABLE]
    return {
        "name": metadata.name,
        "versions": [str(number) for number in sorted(serving)],
        "platform": metadata.platform,
        "inputs": _tensors(signature.inputs),
        "outputs": _tensors(signature.outputs),
    }


def _is_ready(catalogue: Catalogue, spec: ModelSpec) -> bool:
    """Whether a version can answer now."""
    try:
        version = catalogue.metadata(spec).version
    except StatusError as error:
        known = catalogue.known(spec.name)
        if error.code is not Code.NOT_FOUND or spec.name not in catalogue.names:
            raise
        if spec.version is not None and all(s.number != spec.version for s in known):
            raise
        return False
    return catalogue.outage(spec.name, version) is None


def _tensors(specs: Mapping[str, TensorSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": datatype_named(spec.dtype),
            # The protocol cannot express an unknown rank.
            "shape": [-1] if spec.shape is None else list(spec.shape),
        }
        for name, spec in specs.items()
    ]
