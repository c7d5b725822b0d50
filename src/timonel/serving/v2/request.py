"""What a request of the Open Inference Protocol asks for, whichever way it came. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from timonel.serving.runtimes.base import Array
from timonel.serving.servables import ModelSpec
from timonel.serving.status import not_found
from timonel.serving.v2.parameters import NO_PARAMETERS, RequestParameters


@dataclass(frozen=True)
class OutputForm:
    """How to write an output.

    Args:
        binary: Whether as raw bytes, or else as JSON.
        base64: Whether strings in JSON are written in base64, even if they are texts.
    """

    binary: bool = False
    base64: bool = False


@dataclass(frozen=True, eq=False)
class InferRequest:
    """A request for inference.

    Args:
        inputs: Arrays by input name.
        outputs: The outputs wanted and their forms, in this order; empty for all.
        request_id: The client's name for the request, given back; none if it has none.
        parameters: What its parameters say.
        is_raw: Whether a gRPC request had raw contents, and so shall its response.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, OutputForm]
    request_id: str | None = None
    parameters: RequestParameters = NO_PARAMETERS
    is_raw: bool = False

    def form(self, output: str) -> OutputForm:
        """Return how to write an output."""
        found = self.outputs.get(output)
        return found or OutputForm(binary=bool(self.parameters.binary_output))


@dataclass(frozen=True, eq=False)
class InferResult:
    """What a model answered.

    Args:
        model: The model's name as the client gave it.
        version: The version that answered.
        outputs: Arrays by output name.
    """

    model: str
    version: int
    outputs: Mapping[str, Array]


def spec_of(name: str, version: str = "") -> ModelSpec:
    """Return which version of a model a request means.

    Args:
        name: The model's name.
        version: A number, a label, or nothing for the latest.

    Raises:
        StatusError: The number is beyond 64 bits.
    """
    if not version:
        return ModelSpec(name)
    if not (version.isascii() and version.isdecimal()):
        return ModelSpec(name, label=version)
    digits = version.lstrip("0") or "0"
    # Converting digits takes time that grows with their square.
    if len(digits) > 19 or int(digits) >= 2**63:
        raise not_found(f"Could not find version {version[:40]} of model {name}")
    return ModelSpec(name, int(digits))
