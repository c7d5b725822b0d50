"""Settings for finding, loading and replacing versions."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from timonel.serving.settings.base import Settings
from timonel.units import Seconds


class Transition(StrEnum):
    """Order of loading and unloading when a version is replaced."""

    AVAILABILITY_PRESERVING = "availability_preserving"
    """Load the new version first: no downtime, but two in memory."""
    RESOURCE_PRESERVING = "resource_preserving"
    """Unload the old version first: one in memory, but downtime while loading."""


class LoadSettings(Settings):
    """Settings for finding and loading versions.

    TensorFlow Serving's behaviour differs from the defaults of ``retry_all``, ``fall_back``,
    ``wait_for_versions``, ``keep_labelled`` and ``labels_may_wait``.
    """

    poll_s: Seconds = Field(
        default=1.0,
        description="Time between two looks at the disk; 0 looks only at the start and when the "
        "configuration is replaced.",
    )
    settle_s: Seconds = Field(
        default=1.0,
        description="How long a version that timonel did not publish must stay unchanged.",
    )
    threads: int = Field(default=2, ge=1, description="Versions that load at the same time.")
    unload_threads: int = Field(
        default=1, ge=1, description="Versions that are unloaded at the same time."
    )
    max_retries: int = Field(
        default=5, ge=0, description="Further attempts after a failure that may pass by itself."
    )
    retry_s: Seconds = Field(default=5.0, description="Time between two attempts.")
    resource_preserving: tuple[str, ...] = Field(
        default=(),
        description="Models whose old version is unloaded before the new one is loaded; '*' for "
        "all. A reload of the configuration does not change it.",
    )
    retry_all: bool = Field(
        default=False, description="Retry after every failure, and call the version LOADING."
    )
    fall_back: bool = Field(
        default=True, description="Serve an older version where the newest cannot be loaded."
    )
    wait_for_versions: bool = Field(
        default=False, description="Wait at the start for models that have no version yet."
    )
    keep_labelled: bool = Field(
        default=True, description="Load versions that a label names, and keep them in memory."
    )
    warm_up: bool = Field(
        default=True, description="Send a version's own warm-up requests to it before it serves."
    )
    warm_up_iterations: int = Field(
        default=1, ge=1, description="How often each warm-up request is sent."
    )
    labels_may_wait: bool = Field(
        default=True, description="Accept new labels for versions that are not loaded yet."
    )
    model_cache: str | None = Field(
        default=None,
        description="The folder that versions from buckets are kept in; none for "
        "timonel/models in the user's cache.",
    )
    model_cache_bytes: int = Field(
        default=20 * 2**30, ge=0, description="How much may be kept there that is not in use."
    )

    def transition_of(self, name: str) -> Transition:
        """Return the order of loading and unloading for a model."""
        if name in self.resource_preserving or "*" in self.resource_preserving:
            return Transition.RESOURCE_PRESERVING
        return Transition.AVAILABILITY_PRESERVING
