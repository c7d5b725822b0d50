"""Server settings: frozen, built at the entry point, sent as JSON."""

from timonel.serving.settings.base import EVERY_MODEL
from timonel.serving.settings.models import (
    TENSORFLOW,
    Every,
    Latest,
    LoadSettings,
    ModelSettings,
    RequestLogSettings,
    Specific,
    VersionPolicy,
)
from timonel.serving.settings.runtime import AUTO, RuntimeSettings, default_op_threads
from timonel.serving.settings.server import (
    METRICS_PATH,
    GrpcSettings,
    MonitoringSettings,
    RestSettings,
    ServerSettings,
)

__all__ = [
    "AUTO",
    "EVERY_MODEL",
    "METRICS_PATH",
    "TENSORFLOW",
    "Every",
    "GrpcSettings",
    "Latest",
    "LoadSettings",
    "ModelSettings",
    "MonitoringSettings",
    "RequestLogSettings",
    "RestSettings",
    "RuntimeSettings",
    "ServerSettings",
    "Specific",
    "VersionPolicy",
    "default_op_threads",
]
