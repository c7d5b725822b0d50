"""Engine interfaces for jobs and services, and the registry of engines by name."""

from timonel.engines.base import (
    EXIT_DONE,
    EXIT_RETRYABLE,
    ElasticEngine,
    Engine,
    FailureCause,
    JobState,
    JobStatus,
    LogLine,
    PreviewingEngine,
    ResumingEngine,
    RoleSize,
    TaskStatus,
)
from timonel.engines.registry import (
    DEFAULT_ENGINE,
    engine_names,
    get_engine,
    get_service_engine,
    service_engine_names,
    service_engine_type,
)
from timonel.engines.resources import Placement, Resources, Toleration, Volume
from timonel.engines.service_spec import (
    HealthCheck,
    ReplicaState,
    ReplicaStatus,
    ServiceSpec,
    ServiceState,
    ServiceStatus,
    Sidecar,
)
from timonel.engines.services import ServiceEngine
from timonel.engines.spec import CommandSpec, JobSpec, RestartPolicy, RoleName, RoleSpec

__all__ = [
    "DEFAULT_ENGINE",
    "EXIT_DONE",
    "EXIT_RETRYABLE",
    "CommandSpec",
    "ElasticEngine",
    "Engine",
    "FailureCause",
    "HealthCheck",
    "JobSpec",
    "JobState",
    "JobStatus",
    "LogLine",
    "Placement",
    "PreviewingEngine",
    "ReplicaState",
    "ReplicaStatus",
    "Resources",
    "RestartPolicy",
    "ResumingEngine",
    "RoleName",
    "RoleSize",
    "RoleSpec",
    "ServiceEngine",
    "ServiceSpec",
    "ServiceState",
    "ServiceStatus",
    "Sidecar",
    "TaskStatus",
    "Toleration",
    "Volume",
    "engine_names",
    "get_engine",
    "get_service_engine",
    "service_engine_names",
    "service_engine_type",
]
