"""A job's tasks in one line per role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from timonel.styles import STATUS_STYLES
from timonel.tracking.pace import Paces, TaskPace, format_ms

if TYPE_CHECKING:
    from timonel.engines import JobStatus, TaskStatus

_NAMED = 2
"""Up to this many deviating tasks are named; more are counted."""
_FINAL = frozenset({"succeeded", "failed", "stopped"})
_NOT_STARTED = frozenset({"pending", "starting"})
_STATE_WIDTH = 24
"""Column where details begin, unless the states are longer."""
_EVEN = 1.1
"""Values within this ratio are shown as one number."""


def role_lines(job: JobStatus, paces: Paces, width: int = 120) -> list[Text]:
    """Return one line per role with its tasks' states, and speed as far as it fits."""
    known = {pace.task: pace for pace in paces.tasks}
    roles = [list(tasks) for _, tasks in groupby(job.tasks, key=lambda task: task.role)]
    states = [_states(tasks) for tasks in roles]
    if states and job.restarts:
        states[0].append(f"  {_restarts(job)}", style="yellow")
    wide = max((len(_label(tasks)) for tasks in roles), default=0)
    wide_state = min(_STATE_WIDTH, max((state.cell_len for state in states), default=0))
    lines = []
    for tasks, state in zip(roles, states, strict=True):
        line = Text.assemble((f"{_label(tasks):<{wide}}", "dim"), "  ", state)
        line.append(" " * (wide_state - state.cell_len))
        for detail in _details(tasks, known):
            if line.cell_len + 2 + len(detail) <= width:
                line.append(f"  {detail}", style="dim")
        line.rstrip()
        lines.append(line)
    return lines


def roles_line(job: JobStatus) -> Text:
    """Return the states of all tasks in one line, for a pipe."""
    parts = []
    for _, found in groupby(job.tasks, key=lambda task: task.role):
        tasks = list(found)
        parts.append(Text.assemble((_label(tasks), "dim"), " ", _states(tasks)))
    if job.restarts:
        parts.append(Text(_restarts(job), style="yellow"))
    return Text("  ").join(parts)


def waiting_line(job: JobStatus) -> Text | None:
    """Return why a job has not started yet; None if it has, or the cause is unknown."""
    # After a restart the message is the reason of the restart, which is shown as an event.
    # With a cause, the job is about to fail with this message.
    is_new = job.state.value in _NOT_STARTED and not job.restarts and job.cause is None
    return Text(job.message, style="yellow") if is_new and job.message else None


def _label(tasks: Sequence[TaskStatus]) -> str:
    return tasks[0].role if len(tasks) == 1 else f"{tasks[0].role} x{len(tasks)}"


def _restarts(job: JobStatus) -> str:
    return f"{job.restarts} restart{'s' if job.restarts > 1 else ''}"


def _states(tasks: Sequence[TaskStatus]) -> Text:
    """Return the most common state and the exceptions: ``running, worker-3 restarting``."""
    # A role has not succeeded while one of its tasks runs.
    active = [task for task in tasks if task.state not in _FINAL] or tasks
    (usual, _), *_ = Counter(task.state for task in active).most_common()
    text = Text(usual, style=STATUS_STYLES.get(usual, ""))
    if len(tasks) == 1:
        return text.append(_again(tasks[0]), style="yellow")
    others = [task for task in tasks if task.state != usual or task.attempt > 1]
    if others:
        text.append(", ", style="dim")
        text.append(Text(", ").join(_exceptions(others, usual)))
    return text


def _exceptions(tasks: Sequence[TaskStatus], usual: str) -> list[Text]:
    if len(tasks) <= _NAMED:
        return [
            Text.assemble(
                f"{task.role}-{task.index} ",
                (task.state, STATUS_STYLES.get(task.state, "")),
                (_again(task), "yellow"),
            )
            for task in tasks
        ]
    counts = Counter(task.state for task in tasks if task.state != usual).most_common()
    found = [
        Text.assemble(f"{count} ", (state, STATUS_STYLES.get(state, ""))) for state, count in counts
    ]
    again = [task.attempt for task in tasks if task.attempt > 1]
    if again:
        found.append(Text(f"{len(again)} started again, {max(again)} times at most", "yellow"))
    return found


def _again(task: TaskStatus) -> str:
    return f" (attempt {task.attempt})" if task.attempt > 1 else ""


def _details(tasks: Sequence[TaskStatus], known: Mapping[str, TaskPace]) -> list[str]:
    paces = [known[task.task_id] for task in tasks if task.task_id in known]
    rates = [pace.examples_per_s for pace in paces if pace.examples_per_s is not None]
    works = [pace.step_ms for pace in paces if pace.step_ms is not None]
    waits = [pace.wait_ms for pace in paces if pace.wait_ms is not None]
    each = " each" if len(tasks) > 1 and rates and _is_even(rates) else ""
    parts = [
        # In synchronous training it is equal for all tasks, and the line above shows the sum.
        f"{_range(rates, '{:,.0f}'.format)} examples/s{each}" if rates and not waits else "",
        f"{_range(works, format_ms)} a step" if works else "",
        f"{_range(waits, format_ms)} waiting" if waits else "",
    ]
    return list(filter(None, parts))


def _range(values: Sequence[float], shown: Callable[[float], str]) -> str:
    if _is_even(values):
        return shown(sum(values) / len(values))
    return f"{shown(min(values)).removesuffix(' ms')} to {shown(max(values))}"


def _is_even(values: Sequence[float]) -> bool:
    return max(values) <= _EVEN * min(values)
