"""Where jobs run: the contract of an engine, and the engines by name."""

from timonel.engines.base import (
    EXIT_DONE,
    EXIT_RETRYABLE,
    CommandSpec,
    Engine,
    FailureCause,
    JobSpec,
    JobState,
    JobStatus,
    LogLine,
    RestartPolicy,
    RoleName,
    RoleSpec,
    TaskStatus,
)
from timonel.engines.registry import engine_names, get_engine

__all__ = [
    "EXIT_DONE",
    "EXIT_RETRYABLE",
    "CommandSpec",
    "Engine",
    "FailureCause",
    "JobSpec",
    "JobState",
    "JobStatus",
    "LogLine",
    "RestartPolicy",
    "RoleName",
    "RoleSpec",
    "TaskStatus",
    "engine_names",
    "get_engine",
]
