"""The engine interface, and the registry of engines by name."""

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
from timonel.engines.registry import DEFAULT_ENGINE, engine_names, get_engine
from timonel.engines.spec import CommandSpec, JobSpec, RestartPolicy, RoleName, RoleSpec

__all__ = [
    "DEFAULT_ENGINE",
    "EXIT_DONE",
    "EXIT_RETRYABLE",
    "CommandSpec",
    "ElasticEngine",
    "Engine",
    "FailureCause",
    "JobSpec",
    "JobState",
    "JobStatus",
    "LogLine",
    "RestartPolicy",
    "ResumingEngine",
    "RoleName",
    "RoleSize",
    "RoleSpec",
    "TaskStatus",
    "engine_names",
    "get_engine",
]
