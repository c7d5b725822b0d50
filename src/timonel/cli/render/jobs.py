"""Render jobs: a list, one job with its tasks, and JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from timonel.cli.render.tables import pairs, status, table
from timonel.cli.render.view import MOMENT, SECONDS, STATUS, Field, ValueKind, View

if TYPE_CHECKING:
    from timonel.engines import JobStatus, RoleSize, TaskStatus


def job_page(job: JobStatus, training: Sequence[Text] = ()) -> RenderableType:
    """Render one job and its tasks."""
    facts = JOB.facts(job) | {f"{size.role} tasks": sizes(size) for size in job.sizes}
    rows = [
        (
            task.task_id,
            status(task.state),
            task.attempt,
            task.pid,
            task.address,
            ending(task),
            task.message or "",
        )
        for task in job.tasks
    ]
    return Group(
        Text.assemble((job.job_id, "bold"), "  ", status(job.state.value)),
        pairs(facts),
        *((Text(), *training, Text()) if training else ()),
        table(("TASK", "STATE", "ATTEMPT", "PID", "ADDRESS", "EXIT", "REASON"), rows, wide=6),
    )


def sizes(size: RoleSize) -> str:
    """Describe an elastic role's size: ``1, 3 requested (0 to 7)``."""
    requested = "" if size.now == size.requested else f", {size.requested} requested"
    return f"{size.now}{requested} ({size.least} to {size.most})"


def duration_s(job: JobStatus) -> float:
    """Return the seconds from a job's creation to its end or now."""
    return max(0.0, (job.ended_at or time.time()) - job.created_at)


def ending(task: TaskStatus) -> str | None:
    """Return the exit code or signal that ended a task."""
    if task.signal is not None:
        return f"signal {task.signal}"
    return None if task.exit_code is None else str(task.exit_code)


_TASKS = ValueKind(
    json=lambda tasks: [{"id": each.task_id, **each.model_dump(mode="json")} for each in tasks]
)
JOB = View(
    Field("id", get=lambda job: job.job_id, column="JOB"),
    Field("state", STATUS, lambda job: job.state.value, column="STATE"),
    Field("created_at", MOMENT, line="created"),
    Field("started_at", MOMENT),
    Field("ended_at", MOMENT),
    Field(
        "tasks", _TASKS, column="TASKS", shown=lambda job: None if job.machine else len(job.tasks)
    ),
    Field("generation", line="generation"),
    Field("restarts", column="RESTARTS", line="restarts"),
    Field("duration_s", SECONDS, get=duration_s, column="TIME", line="took"),
    Field("machine", column="MACHINE", is_optional=True),
    Field("cause", get=lambda job: job.cause and job.cause.value, line="cause"),
    Field("message", column="REASON", line="reason", shown=lambda job: job.message or ""),
    Field("failed_task", line="failed task"),
    Field("sizes"),
    wide="REASON",
)
