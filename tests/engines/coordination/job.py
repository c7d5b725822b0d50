"""A coordinator with a clock of its own, for tests of what it decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from timonel.engines.base import TaskStatus
from timonel.engines.coordination.coordinator import advance, initial
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.coordination.lifecycle import (
    Action,
    Begin,
    CoordinatorState,
    Event,
    TaskExited,
    TaskReady,
    TaskStarted,
    Tick,
)
from timonel.engines.spec import JobSpec, RoleSpec


@dataclass
class Job:
    """A coordinator with a clock of its own."""

    spec: JobSpec
    now: float = 1000.0
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state: CoordinatorState = initial(self.spec, self.now)

    def tell(self, *events: Event) -> list[Action]:
        new: list[Action] = []
        for event in events:
            self.state, actions = advance(self.state, event, self.now)
            new.extend(actions)
        self.actions.extend(new)
        return new

    @property
    def generation(self) -> int:
        return self.state.status.generation

    def task(self, name: str) -> TaskStatus:
        return next(task for task in self.state.status.tasks if task.task_id == name)

    def run(self) -> None:
        """Begin, and get all tasks up."""
        self.tell(Begin())
        self.all_ready()

    def all_ready(self) -> None:
        for task in self.state.status.tasks:
            self.ready(task.task_id)

    def ready(self, name: str) -> list[Action]:
        attempt = self.task(name).attempt
        return self.tell(
            TaskStarted(name, self.generation, 7, None, attempt),
            TaskReady(name, self.generation, attempt),
        )

    def exit(self, name: str, task_exit: TaskExit) -> list[Action]:
        attempt = self.task(name).attempt
        return self.tell(TaskExited(name, self.generation, task_exit, attempt))

    def exit_all(self, task_exit: TaskExit) -> None:
        for task in self.state.status.tasks:
            self.exit(task.task_id, task_exit)

    def wait(self) -> list[Action]:
        """Let the time pass at which the coordinator wants to be told of it."""
        assert self.state.wake_at is not None
        self.now = max(self.now, self.state.wake_at)
        return self.tell(Tick())


def spec_of(*roles: tuple[str, int] | RoleSpec, **fields: object) -> JobSpec:
    """Return a job of roles, which are names and numbers or whole ones."""
    return JobSpec.model_validate(
        {
            "job_id": "job",
            "module": "module",
            "roles": [_role(role) for role in roles],
            **fields,
        }
    )


def _role(role: tuple[str, int] | RoleSpec) -> RoleSpec:
    if isinstance(role, RoleSpec):
        return role
    return RoleSpec.model_validate({"name": role[0], "replicas": role[1]})
