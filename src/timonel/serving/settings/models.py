"""Settings of served models and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from timonel.serving.settings.base import Settings
from timonel.units import Seconds

TENSORFLOW = "tensorflow"
"""The only platform that models may name."""


class Latest(Settings):
    """Serve the newest versions."""

    kind: Literal["latest"] = "latest"
    count: int = Field(default=1, ge=1, description="How many of the newest versions.")


class Every(Settings):
    """Serve every available version."""

    kind: Literal["every"] = "every"


class Specific(Settings):
    """Serve the named versions only."""

    kind: Literal["specific"] = "specific"
    versions: tuple[int, ...] = Field(description="The versions to serve.")


VersionPolicy = Annotated[Latest | Every | Specific, Field(discriminator="kind")]


class RequestLogSettings(Settings):
    """Settings for logging a sample of a model's requests, as TFRecords.

    Each record is a PredictionLog with a request and its response.
    """

    filename_prefix: str = Field(min_length=1, description="What each file's path starts with.")
    sampling_rate: float = Field(ge=0, le=1, description="The share of requests that is kept.")
    max_bytes: int = Field(
        default=64 * 2**20, ge=1, description="The size at which a new file is begun."
    )
    max_age_s: Seconds = Field(
        default=60.0, description="The age at which a file is closed and gets its name."
    )


class ModelSettings(Settings):
    """Settings of a served model."""

    name: str = Field(min_length=1, description="The name clients ask for.")
    base_path: str = Field(
        description="The folder that holds the numbered versions, or its URI in a bucket."
    )
    policy: VersionPolicy = Field(default=Latest(), description="Which versions are served.")
    labels: Mapping[str, int] = Field(
        default_factory=dict, description="Names for versions, such as 'stable'."
    )
    platform: str = Field(
        default=TENSORFLOW, description="The platform, as a ModelServerConfig names it."
    )
    request_log: RequestLogSettings | None = Field(
        default=None, description="Where a sample of its requests is kept; none keeps none."
    )
