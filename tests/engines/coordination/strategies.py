"""Hypothesis strategies for the values of engines."""

from __future__ import annotations

import signal

from hypothesis import strategies as st

from timonel.engines.base import FailureCause
from timonel.engines.coordination.failures import Failure, TaskExit, TaskReport
from timonel.engines.spec import JobSpec, RestartPolicy, RoleSpec

causes = st.sampled_from(FailureCause)
reports = st.builds(TaskReport, cause=causes, message=st.text(min_size=1, max_size=5))

coded_exits = st.builds(
    TaskExit,
    exit_code=st.integers(0, 255),
    report=st.none() | reports,
    progress=st.none() | st.floats(0, 100),
)
signalled_exits = st.builds(
    TaskExit,
    signal=st.sampled_from(sorted(signal.valid_signals() - {signal.SIGSTOP})).map(int),
    report=st.none() | reports,
    oom_killed=st.booleans(),
    hung=st.none() | st.just("no sign of life"),
    progress=st.none() | st.floats(0, 100),
)
task_exits = coded_exits | signalled_exits | st.just(TaskExit(agent_lost=True))

failures = st.builds(
    Failure,
    task_id=st.sampled_from(["chief-0", "worker-0", "worker-1"]),
    cause=causes,
    message=st.text(max_size=5),
    reported=st.booleans(),
)

policies = st.builds(
    RestartPolicy,
    max_restarts=st.integers(0, 4),
    reset_after_s=st.floats(0, 200),
    rest_s=st.floats(0, 200),
    backoff_s=st.floats(0, 10),
    backoff_max_s=st.floats(0, 100),
)


@st.composite
def role_lists(draw: st.DrawFn) -> tuple[RoleSpec, ...]:
    names = draw(
        st.lists(
            st.sampled_from(["chief", "worker", "ps", "evaluator"]),
            min_size=1,
            max_size=4,
            unique=True,
        )
    )
    return tuple(draw(_roles(name)) for name in names)


@st.composite
def _roles(draw: st.DrawFn, name: str) -> RoleSpec:
    replicas = draw(st.integers(1, 3))
    least = None if name == "chief" else draw(st.none() | st.integers(0, replicas))
    fields = {
        "name": name,
        "replicas": replicas,
        "min_replicas": least,
        "on_loss": draw(st.sampled_from(["restart-job", "restart-task"])),
        "essential": draw(st.booleans()),
        "serves": draw(st.booleans()),
    }
    return RoleSpec.model_validate(fields)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    return JobSpec(
        job_id="job",
        module="module",
        roles=draw(role_lists()),
        restart=draw(policies),
        start_timeout_s=draw(st.floats(1, 100)),
        max_runtime_s=draw(st.none() | st.floats(1, 1000)),
        stop_grace_s=draw(st.floats(0, 30)),
    )
