"""A request and its answer, for whoever keeps a record of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from timonel.serving.signature import Array, Signature


@dataclass(frozen=True)
class LoggedRequest:
    """One run of a signature that succeeded.

    Args:
        model: The model's name.
        version: The version that answered.
        signature: What ran.
        api: What the client asked for: ``Predict``, ``classify`` and so on; in any case.
        inputs: Arrays by input name, as the client sent them.
        outputs: Arrays by output name.
        output_filter: The outputs asked for; empty for all.
    """

    model: str
    version: int
    signature: Signature
    api: str
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    output_filter: Sequence[str] = ()


class Recorder(Protocol):
    """Takes some of the exchanges. Thread-safe; never blocks."""

    def wants(self, model: str) -> bool:
        """Return whether to record what this model is answering now."""

    def record(self, exchange: LoggedRequest) -> None:
        """Take an exchange; its arrays may change as soon as this returns."""
