"""A server's settings: frozen, built at the entry point, handed down, sent to the child as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from timonel.serving.access.settings import AccessSettings
from timonel.serving.batching_settings import AdaptiveBatching, BatchingSettings
from timonel.serving.dialect import DialectName
from timonel.serving.isolation import ComputeSettings, Isolation
from timonel.serving.python_settings import PythonSettings
from timonel.units import Seconds

TENSORFLOW = "tensorflow"
"""The one platform that models may name."""
AUTO = "auto"
"""The runtime that chooses another one for each version."""
EVERY_MODEL = "*"
"""What stands for all models where something is set by model."""
METRICS_PATH = "/monitoring/prometheus/metrics"
"""Where TensorFlow Serving has its metrics, unless told otherwise."""


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Latest(_Settings):
    """Serve the newest versions."""

    kind: Literal["latest"] = "latest"
    count: int = Field(default=1, ge=1, description="How many of the newest versions.")


class Every(_Settings):
    """Serve every version that is there."""

    kind: Literal["every"] = "every"


class Specific(_Settings):
    """Serve the named versions, whatever else is there."""

    kind: Literal["specific"] = "specific"
    versions: tuple[int, ...] = Field(description="The versions to serve.")


VersionPolicy = Annotated[Latest | Every | Specific, Field(discriminator="kind")]


class Transition(StrEnum):
    """In which order an old version gives way to a new one."""

    AVAILABILITY_PRESERVING = "availability_preserving"
    """Load the new one first: no gap, and two in memory for a while."""
    RESOURCE_PRESERVING = "resource_preserving"
    """Unload the old one first: never two in memory, and a gap while the new one loads."""


class RequestLogSettings(_Settings):
    """How a sample of a model's requests and answers is kept, as PredictionLogs in TFRecords."""

    filename_prefix: str = Field(min_length=1, description="What each file's path starts with.")
    sampling_rate: float = Field(ge=0, le=1, description="The share of requests that is kept.")
    max_bytes: int = Field(
        default=64 * 2**20, ge=1, description="The size at which a new file is begun."
    )
    max_age_s: Seconds = Field(
        default=60.0, description="The age at which a file is closed and gets its name."
    )


class ModelSettings(_Settings):
    """One model that a server serves."""

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


class LoadSettings(_Settings):
    """How versions are found and loaded.

    The last five are where TensorFlow Serving's ways and ours part; ours are the defaults.
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
        """Return in which order a model's versions are swapped."""
        if name in self.resource_preserving or "*" in self.resource_preserving:
            return Transition.RESOURCE_PRESERVING
        return Transition.AVAILABILITY_PRESERVING


class RuntimeSettings(_Settings):
    """How models compute."""

    name: str = Field(
        default="tensorflow",
        description="The runtime's entry-point name; 'auto' follows the evidence in each version.",
    )
    by_model: Mapping[str, str] = Field(
        default_factory=dict, description="The runtime of models that have another one."
    )
    prefer_tflite: bool = Field(
        default=False,
        description="Compute versions that have a model.tflite with LiteRT, as TensorFlow Serving "
        "reads them, and others with TensorFlow.",
    )
    interpreters: int = Field(
        default=0, ge=0, description="LiteRT's interpreters of a version; 0 for one a core."
    )
    tags: tuple[str, ...] = Field(default=("serve",), description="Tags of the graph to load.")
    intra_op_threads: int = Field(
        default=0, ge=0, description="Threads within an operation; 0 lets TensorFlow choose."
    )
    inter_op_threads: int = Field(
        default=0, ge=0, description="Operations at the same time; 0 lets TensorFlow choose."
    )
    batching: BatchingSettings = Field(
        default_factory=AdaptiveBatching,
        description="Whether requests are put together, and by which rules.",
    )
    frozen_graphs: bool = Field(
        default=False,
        description="Let TensorFlow compute the graph with constants for variables, where a "
        "version's evidence has found that faster.",
    )
    safe_loading: bool = Field(
        default=False,
        description="Refuse SavedModels with operations that could do more than compute.",
    )
    allow_ops: Mapping[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Operations that are trusted all the same, by model; under '*' for all.",
    )
    hooks: str | None = Field(
        default=None, description="A file of Python that prepares requests and finishes answers."
    )

    def of(self, model: str) -> RuntimeSettings:
        """Return how the versions of one model compute."""
        every, own = (self.allow_ops.get(name, ()) for name in (EVERY_MODEL, model))
        return self.model_copy(
            update={
                "name": self.by_model.get(model, self.name),
                "by_model": {},
                "frozen_graphs": self.by_model.get(model, self.name) == AUTO,
                "allow_ops": {EVERY_MODEL: (*every, *own)},
            }
        )

    @property
    def runtimes(self) -> frozenset[str]:
        """The names of all runtimes that are asked for."""
        return frozenset((self.name, *self.by_model.values()))


class MonitoringSettings(_Settings):
    """What a server tells about itself."""

    metrics_path: str | None = Field(
        default=METRICS_PATH, description="Where metrics are on the REST port; none: nowhere."
    )
    tracing: bool = Field(
        default=False,
        description="Send OpenTelemetry spans to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
    )


class RestSettings(_Settings):
    """The REST side of a server, beside its port."""

    page: bool = Field(default=True, description="Whether there is a page for people at '/'.")
    cors: bool = Field(
        default=False, description="Whether pages of other origins may use it from a browser."
    )
    timeout_s: float | None = Field(
        default=None, gt=0, description="Time that a request may compute; none for any."
    )
    check_method_names: bool = Field(
        default=False, description="Refuse signatures that are declared for another method."
    )


class GrpcSettings(_Settings):
    """The gRPC side of a server, beside its port."""

    socket_path: str | None = Field(
        default=None, description="A Unix socket to listen on as well; none for no such."
    )
    channel_arguments: tuple[tuple[str, int | str], ...] = Field(
        default=(), description="What gRPC calls channel arguments."
    )
    health: bool = Field(default=True, description="Whether grpc.health.v1 is offered.")
    reflection: bool = Field(
        default=True, description="Whether clients may ask for the services and their protos."
    )
    tensor_content: bool = Field(
        default=False, description="Answer with tensor_content instead of typed fields."
    )
    check_method_names: bool = Field(
        default=False, description="Refuse signatures that are declared for another method."
    )


class ServerSettings(_Settings):
    """Everything a server process needs to know."""

    models: tuple[ModelSettings, ...] = Field(description="What is served at first.")
    config_file: str | None = Field(
        default=None, description="A ModelServerConfig that replaces what is served as it changes."
    )
    config_poll_s: Seconds = Field(
        default=0.0, description="Time between two looks at `config_file`; 0 for none."
    )
    dialect: DialectName = Field(
        default="timonel", description="Whose answers it gives, where the two differ."
    )
    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    rest_port: int | None = Field(
        default=8501, ge=0, le=65535, description="REST port; 0 picks one, none turns it off."
    )
    rest_host: str | None = Field(
        default=None, description="The address to listen on for REST, if it is another one."
    )
    rest_is_optional: bool = Field(
        default=False, description="Go on without REST where its port cannot be taken."
    )
    rest: RestSettings = Field(default_factory=RestSettings, description="REST.")
    grpc_port: int | None = Field(
        default=8500, ge=0, le=65535, description="gRPC port; 0 picks one, none turns it off."
    )
    grpc: GrpcSettings = Field(default_factory=GrpcSettings, description="gRPC.")
    compute_threads: int = Field(
        default=2,
        ge=1,
        description="Threads that read large requests, and compute a version's where nothing is "
        "batched.",
    )
    workers: int = Field(
        default=1,
        ge=1,
        le=256,
        description="Processes that share the ports in front of those that compute.",
    )
    drain_s: Seconds = Field(
        default=30.0, description="Time that requests in flight have after a stop signal."
    )
    load: LoadSettings = Field(default_factory=LoadSettings, description="Loading.")
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings, description="Computing.")
    isolation: Isolation = Field(
        default="none",
        description="Whether each version computes in a process of its own, which may crash.",
    )
    compute: ComputeSettings = Field(
        default_factory=ComputeSettings, description="Processes of their own."
    )
    python: PythonSettings = Field(
        default_factory=PythonSettings, description="Which models may run Python of their own."
    )
    access: AccessSettings = Field(
        default_factory=AccessSettings, description="Who may ask, how much, and over which TLS."
    )
    monitoring: MonitoringSettings = Field(
        default_factory=MonitoringSettings, description="Metrics and traces."
    )
    servers_folder: str | None = Field(
        default=None, description="Where the running server's document is written."
    )

    @model_validator(mode="after")
    def _workers_share_what_is_apart(self) -> Self:
        if self.workers > 1 and self.isolation == "none":
            raise ValueError(
                f"expected isolation process where there are {self.workers} workers, got none: "
                "each of them would hold every model"
            )
        return self

    @field_validator("models")
    @classmethod
    def _names_are_distinct(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [model.name for model in models]
        if len(set(names)) != len(names):
            raise ValueError(f"expected each model once, got {names}")
        return models
