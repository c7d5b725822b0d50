"""A request and its response, for the request log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from timonel.serving.signature import Array, Signature


@dataclass(frozen=True)
class LoggedRequest:
    """A successful execution of a signature.

    Args:
        model: The model's name.
        version: The version that computed it.
        signature: The signature.
        api: The API method, in any case: ``Predict``, ``classify`` and so on.
        inputs: Arrays by input name, as the client sent them.
        outputs: Arrays by output name.
        output_filter: The requested outputs; empty for all.
    """

    model: str
    version: int
    signature: Signature
    api: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    output_filter: Sequence[str] = ()


class Recorder(Protocol):
    """Recorder of a sample of requests. Thread-safe; never blocks."""

    def wants(self, model: str) -> bool:
        """Return whether to record this model's current request."""

    def record(self, exchange: LoggedRequest) -> None:
        """Record a request; its arrays may change as soon as this returns."""
