"""Settings of a server process."""

from __future__ import annotations

from pydantic import Field, field_validator

from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.base import Settings
from timonel.serving.settings.dialect import DialectName
from timonel.serving.settings.isolation import ComputeSettings, Isolation
from timonel.serving.settings.loading import LoadSettings
from timonel.serving.settings.models import ModelSettings
from timonel.serving.settings.python import PythonSettings
from timonel.serving.settings.runtime import RuntimeSettings
from timonel.units import Seconds

METRICS_PATH = "/monitoring/prometheus/metrics"
"""TensorFlow Serving's default metrics path."""


class MonitoringSettings(Settings):
    """Metrics and traces."""

    metrics_path: str | None = Field(
        default=METRICS_PATH, description="Where metrics are on the REST port; none: nowhere."
    )
    tracing: bool = Field(
        default=False,
        description="Send OpenTelemetry spans to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
    )


class RestSettings(Settings):
    """REST settings other than the port."""

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


class GrpcSettings(Settings):
    """gRPC settings other than the port."""

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


class ServerSettings(Settings):
    """All settings of a server process."""

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

    @field_validator("models")
    @classmethod
    def _names_are_distinct(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [model.name for model in models]
        if len(set(names)) != len(names):
            raise ValueError(f"expected each model once, got {names}")
        return models
