"""Settings of a server process."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.base import EVERY_MODEL, SettingsModel
from timonel.serving.settings.batching import cores
from timonel.serving.settings.models import LoadSettings, ModelSettings
from timonel.serving.settings.runtime import PythonSettings, RuntimeSettings
from timonel.units import Seconds

METRICS_PATH = "/monitoring/prometheus/metrics"
"""TensorFlow Serving's default metrics path."""
ANSWERS_PATH = "/monitoring/answers"
"""Path of the answers to compared requests; `timonel.serving.telemetry.answers`."""
COMPARISON_HEADER = "x-timonel-comparison"
"""Request header with the ID of a request that two versions compute, to compare their answers."""
NOT_STARTED_HEADER = "x-timonel-not-started"
"""Response header of requests that nothing has begun to compute: they may be sent elsewhere."""


class MonitoringSettings(SettingsModel):
    """Metrics and traces."""

    metrics_path: str | None = Field(
        default=METRICS_PATH, description="Path of the metrics on the REST port; none: no metrics."
    )
    tracing: bool = Field(
        default=False,
        description="Send OpenTelemetry spans of requests. OTEL_EXPORTER_OTLP_ENDPOINT is the "
        "receiver; requires the extra 'otel'.",
    )


class RestSettings(SettingsModel):
    """REST settings other than the port."""

    extensions: bool = Field(
        default=True,
        description="Whether to list the models, and to read images and texts as requests, unlike "
        "TensorFlow Serving.",
    )
    page: bool = Field(default=True, description="Serve a page at / with models, plots and a form.")
    cors: bool = Field(
        default=False, description="Whether browsers may send requests from pages of other origins."
    )
    timeout_s: float | None = Field(
        default=None, gt=0, description="Time limit for computing a request; none: unlimited."
    )
    check_method_names: bool = Field(
        default=False, description="Refuse signatures declared for another method."
    )


class GrpcSettings(SettingsModel):
    """gRPC settings other than the port."""

    socket_path: str | None = Field(
        default=None, description="Unix socket to listen on as well; none: no socket."
    )
    channel_arguments: tuple[tuple[str, int | str], ...] = Field(
        default=(), description="gRPC channel arguments."
    )
    health: bool = Field(default=True, description="Whether to offer grpc.health.v1.")
    reflection: bool = Field(default=True, description="Whether to offer server reflection.")
    tensor_content: bool = Field(
        default=False, description="Respond with tensor_content instead of typed fields."
    )
    check_method_names: bool = Field(
        default=False, description="Refuse signatures declared for another method."
    )


def _port(value: Any) -> Any:
    return None if value == -1 else value


class ServerSettings(SettingsModel):
    """All settings of a server process."""

    models: tuple[ModelSettings, ...] = Field(description="Models to serve at the start.")
    config_file: str | None = Field(
        default=None, description="ModelServerConfig file; its changes replace the served models."
    )
    config_poll_s: Seconds = Field(
        default=0.0, description="Time between checks of `config_file`; 0: no checks."
    )
    host: str = Field(
        default="127.0.0.1",
        description="Listen address; 0.0.0.0 for all interfaces. unix:FOLDER listens on the Unix "
        "sockets http.sock and grpc.sock in a private folder instead of ports.",
    )
    rest_port: int | None = Field(
        default=8501,
        ge=0,
        le=65535,
        description="REST port; 0 picks a free one.",
    )
    rest_host: str | None = Field(default=None, description="Listen address of REST, if different.")
    rest_is_optional: bool = Field(
        default=False, description="Continue without REST if its port is in use."
    )
    rest: RestSettings = Field(default_factory=RestSettings, description="REST.")
    grpc_port: Annotated[int | None, BeforeValidator(_port)] = Field(
        default=8500,
        ge=0,
        le=65535,
        description="gRPC port; 0 picks a free one, -1 turns gRPC off. In Python, None also turns "
        "it off.",
    )
    grpc: GrpcSettings = Field(default_factory=GrpcSettings, description="gRPC.")
    compute_threads: int = Field(
        default_factory=lambda: min(8, max(2, cores())),
        ge=1,
        description="Threads for large and unbatched requests. They parse large requests, and "
        "compute requests without batching.",
    )
    drain_s: Seconds = Field(
        default=30.0, description="Seconds to finish pending requests at shutdown."
    )
    load: LoadSettings = Field(default_factory=LoadSettings, description="Loading.")
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings, description="Computing.")
    python: PythonSettings = Field(
        default_factory=PythonSettings, description="Python code of models."
    )
    access: AccessSettings = Field(
        default_factory=AccessSettings, description="Authentication, limits and TLS."
    )
    monitoring: MonitoringSettings = Field(
        default_factory=MonitoringSettings, description="Metrics and traces."
    )
    servers_folder: str | None = Field(
        default=None, description="Folder of the running server's document."
    )

    @field_validator("models")
    @classmethod
    def _names_are_distinct(cls, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
        names = [model.name for model in models]
        if len(set(names)) != len(names):
            raise ValueError(f"each model can be served only once, got {names}")
        return models

    @property
    def trusted(self) -> frozenset[str]:
        """Names of models that may run code or operations of their own; `EVERY_MODEL` for all."""
        return frozenset((*self.python.allow, *(self.runtime.allow_ops.keys() - {EVERY_MODEL})))
