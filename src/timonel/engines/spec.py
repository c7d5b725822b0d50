"""Job specification for engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from timonel.units import Seconds

RoleName = Literal["chief", "worker", "ps", "evaluator"]
OnLoss = Literal["restart-job", "restart-task"]
Success = Literal["all", "leader"]


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleSpec(_Spec):
    """Identical tasks of a role."""

    name: RoleName = Field(description="The role's name, as in TF_CONFIG.")
    replicas: int = Field(default=1, ge=1, description="How many tasks have this role at most.")
    min_replicas: int | None = Field(
        default=None,
        ge=0,
        description="The fewest that a generation starts with; None: always all of them.",
    )
    on_loss: OnLoss = Field(
        default="restart-job",
        description="What is started again when one is lost: all tasks as a new generation, or "
        "that task alone, in place: on its address, under its next attempt.",
    )
    essential: bool = Field(
        default=True,
        description="Whether the job fails once a task of it cannot be started again in place.",
    )
    serves: bool = Field(
        default=False,
        description="Its tasks do not end by themselves: they are ended after all others. "
        "Parameter servers always do.",
    )
    env: Mapping[str, str] = Field(
        default_factory=dict, description="Environment of this role's tasks, over the job's."
    )

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(
                f"expected at most {self.replicas} for min_replicas of {self.name}, "
                f"got {self.min_replicas}"
            )
        if self.name == "chief" and self.is_elastic:
            raise ValueError("expected the chief to be there always, got min_replicas of it")
        return self

    @property
    def least(self) -> int:
        """Minimum number of tasks of this role."""
        return self.replicas if self.min_replicas is None else self.min_replicas

    @property
    def is_elastic(self) -> bool:
        """Whether a generation may start with fewer tasks of this role."""
        return self.least < self.replicas

    @property
    def is_serving(self) -> bool:
        """Whether the coordinator stops its tasks, after all others."""
        return self.serves or self.name == "ps"


class RestartPolicy(_Spec):
    """Restart limits and delays of a job or a single task."""

    max_restarts: int = Field(default=3, ge=0, description="Restarts before the job fails.")
    reset_after_s: Seconds = Field(
        default=600.0,
        description="Restarts do not count any more once tasks ran so long and got further.",
    )
    rest_s: Seconds = Field(
        default=60.0,
        description="How long a task of an elastic role that was lost twice in a row is left out "
        "at first.",
    )
    backoff_s: Seconds = Field(
        default=1.0, description="Delay before the second restart in a row; the first has none."
    )
    backoff_max_s: Seconds = Field(default=30.0, description="The longest delay, after doubling.")


class CommandSpec(_Spec):
    """Command on the coordinator beside a job: ``python -m <module> <args>``."""

    module: str = Field(description="The Python module to run.")
    args: tuple[str, ...] = Field(default=(), description="Its arguments.")
    patience_s: Seconds = Field(
        default=15.0, description="Time a sidecar has to end by itself after the job's end."
    )


class JobSpec(_Spec):
    """Job specification: one program, run as tasks by role."""

    job_id: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="Unique name.")
    module: str = Field(description="The Python module each task runs with -m.")
    args: tuple[str, ...] = Field(default=(), description="Arguments of every task.")
    roles: tuple[RoleSpec, ...] = Field(min_length=1, description="Roles; the first one leads.")
    success: Success = Field(
        default="all",
        description="Which tasks the job's end waits for: all that end by themselves, or the first "
        "task of the first role alone.",
    )
    env: Mapping[str, str] = Field(default_factory=dict, description="Environment of every task.")
    working_dir: str = Field(description="The folder in which tasks run.")
    job_dir: str = Field(description="The job's folder, which the engine makes and owns.")
    preload: tuple[str, ...] = Field(
        default=(), description="Modules that a zygote imports before it forks tasks."
    )
    restart: RestartPolicy = Field(default_factory=RestartPolicy, description="Restart policy.")
    start_timeout_s: Seconds = Field(
        default=180.0, description="Time for all tasks of a generation to report ready."
    )
    hang_timeout_s: Seconds | None = Field(
        default=8.0,
        description="A task that is ready and then leaves its file 'alive' untouched for so long "
        "is killed as hung; one that never made the file is not watched. Of a role that is "
        "restarted in place three quarters of it, as others may wait for it and seem to hang.",
    )
    stall_timeout_s: Seconds | None = Field(
        default=None,
        description="The same for the content of its file 'progress', from its first on.",
    )
    stop_grace_s: Seconds = Field(default=20.0, description="Time from SIGTERM to SIGKILL.")
    sidecars: tuple[CommandSpec, ...] = Field(
        default=(), description="Commands that run beside the job; they do not decide its end."
    )
    epilogue: CommandSpec | None = Field(
        default=None, description="Run once by the coordinator after the job ended, however it did."
    )

    @field_validator("roles")
    @classmethod
    def _roles_are_distinct(cls, roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
        names = [role.name for role in roles]
        if len(set(names)) != len(names):
            raise ValueError(f"expected each role once, got {names}")
        return roles

    @property
    def size(self) -> int:
        """Number of tasks of all roles."""
        return sum(role.replicas for role in self.roles)

    @property
    def task_ids(self) -> tuple[str, ...]:
        """Names of all tasks, such as ``worker-1``, role by role."""
        return tuple(
            f"{role.name}-{index}" for role in self.roles for index in range(role.replicas)
        )


def hang_timeout_s(spec: JobSpec, role: RoleSpec) -> float | None:
    """Return a role's hang timeout in seconds; None: unlimited.

    Shorter for roles that restart in place: tasks that wait for a hung one, perhaps while holding
    Python's lock, must not time out before it.
    """
    if spec.hang_timeout_s is None or role.on_loss == "restart-job":
        return spec.hang_timeout_s
    return 0.75 * spec.hang_timeout_s
