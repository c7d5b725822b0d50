"""Render jobs: a list, one job with its tasks, and JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from timonel.cli.render.output import clock, iso
from timonel.cli.render.tables import pairs, status, table
from timonel.units import format_seconds

if TYPE_CHECKING:
    from timonel.engines import JobStatus, RoleSize, TaskStatus


def job_list(jobs: Sequence[JobStatus]) -> Table:
    """Render jobs as a table, in the given order.

    The column MACHINE is left out if all are jobs of this machine.
    """
    several = any(job.machine is not None for job in jobs)
    rows = [
        (
            job.job_id,
            status(job.state.value),
            "-" if job.machine is not None else len(job.tasks),
            job.restarts,
            format_seconds(duration_s(job)),
            *((job.machine or "this one",) if several else ()),
            job.message or "",
        )
        for job in jobs
    ]
    machine = ("MACHINE",) if several else ()
    names = ("JOB", "STATE", "TASKS", "RESTARTS", "TIME", *machine, "REASON")
    return table(names, rows, wide=len(names) - 1)


def job_page(job: JobStatus, training: Sequence[Text] = ()) -> RenderableType:
    """Render one job and its tasks.

    Args:
        job: The job.
        training: Lines on the current state of the training.
    """
    facts = {
        "created": clock(job.created_at),
        "took": format_seconds(duration_s(job)),
        "generation": job.generation,
        "restarts": job.restarts,
        "cause": job.cause.value if job.cause else None,
        "reason": job.message,
        "failed task": job.failed_task,
        **{f"{size.role} tasks": sizes(size) for size in job.sizes},
    }
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
        pairs({name: value for name, value in facts.items() if value is not None}),
        *((Text(), *training, Text()) if training else ()),
        table(("TASK", "STATE", "ATTEMPT", "PID", "ADDRESS", "EXIT", "REASON"), rows, wide=6),
    )


def job_json(job: JobStatus) -> dict[str, Any]:
    """Return a job as JSON."""
    return {
        "id": job.job_id,
        "state": job.state.value,
        "machine": job.machine,
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "ended_at": iso(job.ended_at),
        "duration_s": round(duration_s(job), 3),
        "generation": job.generation,
        "restarts": job.restarts,
        "cause": job.cause.value if job.cause else None,
        "message": job.message,
        "failed_task": job.failed_task,
        "sizes": [size.model_dump(mode="json") for size in job.sizes],
        "tasks": [{"id": t.task_id, **t.model_dump(mode="json")} for t in job.tasks],
    }


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
