"""Job specification for engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from timonel.engines.resources import Placement, Requested, Resources, Volume
from timonel.units import Seconds

RoleName = Literal["chief", "worker", "ps", "evaluator"]
OnLoss = Literal["restart-job", "restart-task"]
Success = Literal["all", "leader"]
MAX_REPLICAS = 10_000
"""Maximum number of tasks of a role, against numbers that were mistyped."""


class RoleSpec(Requested):
    """Identical tasks of a role."""

    name: RoleName = Field(description="The role's name, as in TF_CONFIG.")
    replicas: int = Field(default=1, ge=1, le=MAX_REPLICAS, description="Maximum number of tasks.")
    min_replicas: int | None = Field(
        default=None,
        ge=0,
        description="Minimum number of tasks of a generation; None: always the maximum.",
    )
    on_loss: OnLoss = Field(
        default="restart-job",
        description="What restarts when a task is lost: all tasks as a new generation, or that "
        "task alone, in place: at its address, as its next attempt.",
    )
    essential: bool = Field(
        default=True,
        description="Whether the job fails once a task of this role cannot restart in place.",
    )
    serves: bool = Field(
        default=False,
        description="Its tasks do not exit by themselves; they are stopped after all others. "
        "Always true for parameter servers.",
    )
    env: Mapping[str, str] = Field(
        default_factory=dict, description="Environment of this role's tasks; overrides the job's."
    )
    resources: Resources = Field(default=Resources(), description="Resources of each task.")
    placement: Placement = Field(default=Placement(), description="Machines that may run them.")

    @model_validator(mode="after")
    def _check_min_replicas(self) -> Self:
        if self.min_replicas is not None and self.min_replicas > self.replicas:
            raise ValueError(
                f"min_replicas of {self.name} is {self.min_replicas}, more than its "
                f"{self.replicas} replicas"
            )
        if self.name == "chief" and self.is_elastic:
            raise ValueError("the chief cannot be elastic; remove its min_replicas")
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


class RestartPolicy(Requested):
    """Restart limits and delays of a job or a single task."""

    max_restarts: int = Field(default=3, ge=0, description="Restarts before the job fails.")
    reset_after_s: Seconds = Field(
        default=600.0,
        description="Run time with progress after which earlier restarts no longer count.",
    )
    rest_s: Seconds = Field(
        default=60.0,
        description="How long an elastic role continues without a task that was lost twice in a "
        "row; doubles each time.",
    )
    backoff_s: Seconds = Field(
        default=1.0, description="Delay before the second restart in a row; the first has none."
    )
    backoff_max_s: Seconds = Field(default=30.0, description="Maximum delay after doubling.")


class CommandSpec(Requested):
    """Command on the coordinator beside a job: ``python -m <module> <args>``."""

    module: str = Field(description="Python module to run.")
    args: tuple[str, ...] = Field(default=(), description="Arguments.")
    patience_s: Seconds = Field(
        default=15.0,
        description="How long a sidecar may run after the job's end before it is stopped.",
    )


class JobSpec(Requested):
    """Job specification: one program, run as tasks by role.

    A job has a folder, which its tasks, sidecars and epilogue share, and each task has one of its
    own. The engine owns them and names them in the environment: ``TIMONEL_JOB_DIR`` and
    ``TIMONEL_TASK_DIR``.
    """

    job_id: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", description="Unique name.")
    module: str = Field(description="Python module that each task runs with -m.")
    args: tuple[str, ...] = Field(default=(), description="Arguments of every task.")
    roles: tuple[RoleSpec, ...] = Field(
        min_length=1, description="Roles; the first one is the leader."
    )
    success: Success = Field(
        default="all",
        description="Which tasks must end for the job to succeed: all that exit by themselves, "
        "or only the first task of the first role.",
    )
    env: Mapping[str, str] = Field(default_factory=dict, description="Environment of every task.")
    source: str | None = Field(
        default=None,
        description="The program's files, in which tasks run: a folder, for engines that run on "
        "the submitting machine, or the URI of an archive (see `timonel.engines.source`); None: "
        "those of the image.",
    )
    image: str | None = Field(default=None, description="Container image of tasks.")
    volumes: tuple[Volume, ...] = Field(default=(), description="Storage mounted into tasks.")
    folders: tuple[str, ...] = Field(
        default=(),
        description="Folders of the workspace, relative to it, that all processes of the job "
        "share besides the job's own; engines of one machine share all.",
    )
    preload: tuple[str, ...] = Field(
        default=(), description="Modules that a zygote imports before it forks tasks."
    )
    restart: RestartPolicy = Field(default_factory=RestartPolicy, description="Restart policy.")
    max_runtime_s: Seconds | None = Field(
        default=None,
        gt=0,
        description="Time after which the job is stopped and fails, with all its restarts, from "
        "when all tasks were first ready; begins again when the job is resumed.",
    )
    start_timeout_s: Seconds = Field(
        default=180.0, description="Time in which all tasks of a generation must report ready."
    )
    hang_timeout_s: Seconds | None = Field(
        default=8.0,
        description="A ready task that does not touch its file 'alive' for this long is killed as "
        "hung; a task that never created the file is not watched. Roles that restart in place use "
        "three quarters of it, as other tasks may wait for a hung one and seem to hang too.",
    )
    stall_timeout_s: Seconds | None = Field(
        default=None,
        description="The same for changes of its file 'progress', once it exists.",
    )
    stop_grace_s: Seconds = Field(default=20.0, description="Time from SIGTERM to SIGKILL.")
    sidecars: tuple[CommandSpec, ...] = Field(
        default=(), description="Commands that run beside the job; their failures do not affect it."
    )
    epilogue: CommandSpec | None = Field(
        default=None,
        description="Command that runs once after the job has ended, whatever its outcome.",
    )

    @field_validator("roles")
    @classmethod
    def _roles_are_distinct(cls, roles: tuple[RoleSpec, ...]) -> tuple[RoleSpec, ...]:
        names = [role.name for role in roles]
        if len(set(names)) != len(names):
            raise ValueError(f"duplicate roles: {names}")
        return roles

    @field_validator("folders")
    @classmethod
    def _folders_are_relative(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if not all(part not in {"", ".", ".."} for part in folder.split("/")):
                raise ValueError(f"expected a folder relative to the workspace, got '{folder}'")
        return folders

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
