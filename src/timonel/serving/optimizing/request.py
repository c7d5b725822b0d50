"""What passes between the process that asks for measurements and the one that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from timonel.models.schema import Stored
from timonel.serving.runtimes.evidence import Choice, Measurement


class Request(Stored):
    """What is to be measured."""

    version: Path = Field(description="The folder of the SavedModel.")
    samples: Path = Field(description="A folder with a warm-up file of requests to compare on.")
    made: Path = Field(description="The folder for what is made of it.")
    litert: bool = Field(default=True, description="Whether LiteRT may have what it takes.")


class Findings(Stored):
    """What was found."""

    impossible: Mapping[Choice, str] = Field(
        default_factory=dict, description="Ways to compute that there are not, and why."
    )
    samples: int = Field(default=0, description="Requests whose answers were compared.")
    differences: Mapping[Choice, tuple[float, ...]] = Field(
        default_factory=dict, description="Of each output, by the way it was computed."
    )
    measurements: tuple[Measurement, ...] = Field(default=(), description="Times.")
    versions: Mapping[str, str] = Field(default_factory=dict, description="Packages.")
    cores: int = Field(default=0, description="Processors.")
