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
)
from timonel.engines.services import (
    HealthCheck,
    ReplicaState,
    ReplicaStatus,
    ServiceEngine,
    ServiceSpec,
    ServiceState,
    ServiceStatus,
)
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
    "ReplicaState",
    "ReplicaStatus",
    "RestartPolicy",
    "ResumingEngine",
    "RoleName",
    "RoleSize",
    "RoleSpec",
    "ServiceEngine",
    "ServiceSpec",
    "ServiceState",
    "ServiceStatus",
    "TaskStatus",
    "engine_names",
    "get_engine",
    "get_service_engine",
    "service_engine_names",
]
