"""The parameters of a request that mean something here. Pure.

The protocol leaves parameters to each server. Those that this one does not know are ignored, as
by others, but those by which a client counts on something that is not there are refused.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from timonel.serving.status import StatusError, invalid_argument

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
    """What a request's own parameters say.

    Args:
        signature_name: The signature to run; empty for the default one.
        timeout_s: Seconds after which the answer is of no use; none for no such limit.
        binary_output: Whether outputs are raw unless they say otherwise; none if not said.
    """

    signature_name: str = ""
    timeout_s: float | None = None
    binary_output: bool | None = None


NO_PARAMETERS: Final = RequestParameters()


def request_parameters(given: Parameters) -> RequestParameters:
    """Return what a request's parameters say.

    Raises:
        StatusError: One is of the wrong type, or asks for what is not there.
    """
    if not given:
        return NO_PARAMETERS
    refuse_unsupported(given, "the request")
    name = given.get(SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise _wrong(SIGNATURE_NAME, "a string", name)
    timeout = given.get(TIMEOUT, 0)
    if type(timeout) is not int or not 0 <= timeout < 2**64:
        raise _wrong(TIMEOUT, "a number of microseconds", timeout)
    binary = given.get(BINARY_DATA_OUTPUT)
    if binary is not None:
        binary = boolean(BINARY_DATA_OUTPUT, binary)
    return RequestParameters(name, timeout * _MICRO if timeout else None, binary)


def refuse_unsupported(given: Parameters, owner: str) -> None:
    """Refuse parameters that ask for what this server does not have.

    Args:
        given: The parameters.
        owner: Whose they are, for the message.

    Raises:
        StatusError: There is one.
    """
    for name, what in _REFUSED.items():
        if given.get(name):
            raise invalid_argument(
                f"the parameter {name} of {owner} is not supported: this server does not have "
                f"{what}"
            )


def is_base64(given: Parameters) -> bool:
    """Tell whether strings are, or shall be, written in base64."""
    return given.get(CONTENT_TYPE) == BASE64


def boolean(name: str, value: Any) -> bool:
    """Return the value of the parameter ``name``.

    Raises:
        StatusError: It is neither true nor false.
    """
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _wrong(name: str, expected: str, value: Any) -> StatusError:
    return invalid_argument(
        f"expected the parameter {name} to be {expected}, got {reprlib.repr(value)}"
    )
