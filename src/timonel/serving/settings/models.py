"""Settings of served models, and how their versions are found, loaded and replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from timonel.serving.settings.base import EVERY_MODEL, AbsolutePath, SettingsModel
from timonel.units import ByteSize, Seconds

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


class Aliased(SettingsModel):
    """Serve the version that has an alias."""

    kind: Literal["alias"] = "alias"
    alias: str = Field(min_length=1, description="The alias, such as champion.")


VersionPolicy = Annotated[Latest | Every | Specific | Aliased, Field(discriminator="kind")]


class RequestLogSettings(SettingsModel):
    """Settings for logging a sample of a model's requests, as TFRecords.

    Each record is a PredictionLog with a request and its response.
    """

    filename_prefix: str = Field(min_length=1, description="Prefix of each file's path.")
    sampling_rate: float = Field(ge=0, le=1, description="Fraction of requests to log.")


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


class LoadSettings(SettingsModel):
    """Settings for finding and loading versions.

    TensorFlow Serving's behaviour differs from the defaults of ``as_tfserving`` and
    ``labels_may_wait``.
    """

    poll_s: Seconds = Field(
        default=1.0,
        description="Seconds between checks for new versions. 0 checks only at the start and when "
        "the configuration changes.",
    )
    settle_s: Seconds = Field(
        default=1.0,
        description="Time that a version not published by timonel must stay unchanged.",
    )
    threads: int = Field(
        default=2, ge=1, description="Versions loaded at once, apart from slow loads."
    )
    load_timeout_s: Seconds | None = Field(
        default=300.0,
        gt=0,
        description="Maximum seconds of a load, with its warm-up. A version that takes longer has "
        "failed; if its load ends after all, it serves.",
    )
    fail_fast: bool = Field(
        default=False,
        description="Refuse to start if a model cannot be served. By default, the others are "
        "served, and the server is not ready.",
    )
    max_retries: int = Field(default=5, ge=0, description="Retries after a transient failure.")
    retry_s: Seconds = Field(default=5.0, description="Time between attempts.")
    resource_preserving: tuple[str, ...] = Field(
        default=(),
        description="Model that keeps one version in memory at a time; * for all. The old version "
        "is unloaded before the new one is loaded.",
    )
    as_tfserving: bool = Field(
        default=False,
        description="As in TensorFlow Serving, retry after every failure and report the version as "
        "LOADING meanwhile, serve no older version instead, wait at the start for models without a "
        "version, and do not keep versions in memory because they have labels.",
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
    model_cache: AbsolutePath | None = Field(
        default=None, description="Cache folder of versions from buckets."
    )
    model_cache_size: ByteSize = Field(
        default=20 * 2**30,
        ge=0,
        description="Maximum size of that cache, such as 50GB. Versions that no server uses are "
        "evicted, least recently used first.",
    )

    def unloads_first(self, name: str) -> bool:
        """Return whether a model's old version is unloaded before the new one is loaded.

        Only one is in memory then, but none serves while the new one is loaded.
        """
        return bool({name, EVERY_MODEL} & set(self.resource_preserving))
