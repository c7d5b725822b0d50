"""Settings of served models, and how their versions are found, loaded and replaced."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from timonel.serving.settings.base import EVERY_MODEL, SettingsModel
from timonel.units import Seconds

TENSORFLOW = "tensorflow"
"""The only platform that models may name."""


class Latest(SettingsModel):
    """Serve the newest versions."""

    kind: Literal["latest"] = "latest"
    count: int = Field(default=1, ge=1, description="Number of newest versions.")


class Every(SettingsModel):
    """Serve every available version."""

    kind: Literal["every"] = "every"


class Specific(SettingsModel):
    """Serve the named versions only."""

    kind: Literal["specific"] = "specific"
    versions: tuple[int, ...] = Field(description="The versions to serve.")


VersionPolicy = Annotated[Latest | Every | Specific, Field(discriminator="kind")]


class RequestLogSettings(SettingsModel):
    """Settings for logging a sample of a model's requests, as TFRecords.

    Each record is a PredictionLog with a request and its response.
    """

    filename_prefix: str = Field(min_length=1, description="Prefix of each file's path.")
    sampling_rate: float = Field(ge=0, le=1, description="Fraction of requests to log.")
    max_bytes: int = Field(
        default=64 * 2**20, ge=1, description="Size in bytes at which a new file starts."
    )
    max_age_s: Seconds = Field(
        default=60.0, description="Age at which a file is closed and gets its name."
    )


class ModelSettings(SettingsModel):
    """Settings of a served model."""

    name: str = Field(min_length=1, description="Name in requests.")
    base_path: str = Field(description="Folder of numbered versions, or its URI in a bucket.")
    policy: VersionPolicy = Field(default=Latest(), description="Versions to serve.")
    labels: Mapping[str, int] = Field(
        default_factory=dict, description="Names for versions, such as 'stable'."
    )
    platform: str = Field(default=TENSORFLOW, description="Platform, as in a ModelServerConfig.")
    request_log: RequestLogSettings | None = Field(
        default=None, description="Where to log a sample of requests; none: nowhere."
    )


class Transition(StrEnum):
    """Order of loading and unloading when a version is replaced."""

    AVAILABILITY_PRESERVING = "availability_preserving"
    """Load the new version first: no downtime, but two in memory."""
    RESOURCE_PRESERVING = "resource_preserving"
    """Unload the old version first: one in memory, but downtime while loading."""


class LoadSettings(SettingsModel):
    """Settings for finding and loading versions.

    TensorFlow Serving's behaviour differs from the defaults of ``retry_all``, ``fall_back``,
    ``wait_for_versions``, ``keep_labelled`` and ``labels_may_wait``.
    """

    poll_s: Seconds = Field(
        default=1.0,
        description="Time between checks for new versions; 0 checks only at the start and after"
        " a change of the configuration.",
    )
    settle_s: Seconds = Field(
        default=1.0,
        description="Time that a version not published by timonel must stay unchanged.",
    )
    threads: int = Field(default=2, ge=1, description="Versions loaded at the same time.")
    unload_threads: int = Field(default=1, ge=1, description="Versions unloaded at the same time.")
    max_retries: int = Field(default=5, ge=0, description="Retries after a transient failure.")
    retry_s: Seconds = Field(default=5.0, description="Time between attempts.")
    resource_preserving: tuple[str, ...] = Field(
        default=(),
        description="Models whose old version is unloaded before the new one is loaded; '*' for"
        " all. Not changed by a reload of the configuration.",
    )
    retry_all: bool = Field(
        default=False, description="Retry after every failure, and report the version as LOADING."
    )
    fall_back: bool = Field(
        default=True, description="Serve an older version if the newest cannot be loaded."
    )
    wait_for_versions: bool = Field(
        default=False, description="Wait at the start for models without a version."
    )
    keep_labelled: bool = Field(
        default=True, description="Load versions with labels, and keep them in memory."
    )
    warm_up: bool = Field(
        default=True, description="Send a version's warm-up requests to it before it serves."
    )
    warm_up_iterations: int = Field(
        default=1, ge=1, description="Repetitions of each warm-up request."
    )
    labels_may_wait: bool = Field(
        default=True, description="Accept labels for versions that are not loaded yet."
    )
    model_cache: str | None = Field(
        default=None,
        description="Cache folder of versions from buckets; none: timonel/models in the user's "
        "cache.",
    )
    model_cache_bytes: int = Field(
        default=20 * 2**30, ge=0, description="Maximum bytes of unused versions in the cache."
    )

    def transition_of(self, name: str) -> Transition:
        """Return the order of loading and unloading for a model."""
        if name in self.resource_preserving or EVERY_MODEL in self.resource_preserving:
            return Transition.RESOURCE_PRESERVING
        return Transition.AVAILABILITY_PRESERVING
