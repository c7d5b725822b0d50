"""The contract that every engine keeps, as a pytest class.

Subclass it and give it the fixture ``engine``:

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def engine(self, tmp_path):
            return EngineHarness(MyEngine(tmp_path / "jobs"), tmp_path / "jobs", tmp_path)
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from timonel.engines import (
    CommandSpec,
    Engine,
    FailureCause,
    JobSpec,
    JobState,
    JobStatus,
    RestartPolicy,
    RoleSpec,
)
from timonel.errors import AlreadyExistsError, NotFoundError

TASK_MODULE = "timonel.testing.engine_tasks"
DEADLINE_S = 30.0
_FIRST_POLL_S = 0.01
_LONGEST_POLL_S = 0.1
_MARK = "TIMONEL_TEST_MARK"


@dataclass
class EngineHarness:
    """An engine under test, with what a test needs to use it.

    Attributes:
        engine: The engine.
        jobs_dir: Where its job folders are, as seen from here.
        working_dir: A folder that tasks can run in.
        preload: What warm parents of the jobs are to import.
        env: Environment of every job.
    """

    engine: Engine
    jobs_dir: Path
    working_dir: Path
    preload: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid4().hex)

    def spec(self, *steps: str, job_id: str = "job", **fields: Any) -> JobSpec:
        """Return a job of two workers whose tasks take ``steps``; ``fields`` override the rest."""
        values: dict[str, Any] = {
            "roles": (RoleSpec(name="worker", replicas=2),),
            "restart": RestartPolicy(max_restarts=2, backoff_s=0.01),
            "stop_grace_s": 2.0,
            "start_timeout_s": DEADLINE_S,
        }
        env = {**self.env, **fields.pop("env", {}), _MARK: self.mark}
        return JobSpec(
            job_id=job_id,
            module=TASK_MODULE,
            args=steps,
            working_dir=str(self.working_dir),
            job_dir=str(self.jobs_dir / job_id),
            preload=self.preload,
            env=env,
            **{**values, **fields},
        )

    def submit(self, *steps: str, **fields: Any) -> str:
        """Submit such a job and return its id."""
        spec = self.spec(*steps, **fields)
        self.engine.submit(spec)
        return spec.job_id

    def run(self, *steps: str, **fields: Any) -> JobStatus:
        """Run such a job to its end."""
        return self.wait(self.submit(*steps, **fields))

    def wait(self, job_id: str) -> JobStatus:
        """Wait for the end of a job and return its last status."""
        return self.wait_until(job_id, lambda status: status.state.is_final)

    def wait_for_state(self, job_id: str, state: JobState) -> JobStatus:
        """Wait until a job is in a state, which it must not miss by ending."""
        return self.wait_until(job_id, lambda status: status.state == state)

    def wait_until(self, job_id: str, holds: Callable[[JobStatus], bool]) -> JobStatus:
        """Wait until something holds of a job's status."""
        found: list[JobStatus] = []

        def check() -> bool:
            found.append(self.engine.status(job_id))
            return holds(found[-1]) or found[-1].state.is_final

        eventually(check)
        assert holds(found[-1]), found[-1]
        return found[-1]

    def file(self, name: str, job_id: str = "job") -> Path:
        """Return a file in a job's folder."""
        return self.jobs_dir / job_id / name

    def lines(self, job_id: str = "job", **options: Any) -> list[tuple[str, str]]:
        """Return the lines of a job's logs that the tasks themselves wrote."""
        return [
            (line.task_id, line.text)
            for line in self.engine.logs(job_id, **options)
            if not line.text.startswith("===")
        ]

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes that belong to this test's jobs, with their command lines."""
        wanted = (self.mark.encode(), os.fsencode(self.jobs_dir))
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes()
                shown = command + (folder / "environ").read_bytes()
            except OSError:
                continue
            if any(text in shown for text in wanted) and int(folder.name) != os.getpid():
                found.append((int(folder.name), command.replace(b"\0", b" ").decode()))
        return found

    def close(self) -> None:
        """End all jobs, and check that nothing of them is left."""
        for status in self.engine.jobs():
            self.engine.cancel(status.job_id)
        for status in self.engine.jobs():
            self.wait(status.job_id)
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        """Check that every process of this test's jobs is gone."""
        eventually(lambda: not self.processes(), explain=lambda: str(self.processes()))


def eventually(holds: Callable[[], bool], explain: Callable[[], str] = str) -> None:
    """Wait until something holds, for a bounded time."""
    deadline = time.monotonic() + DEADLINE_S
    delay_s = _FIRST_POLL_S
    while not holds():
        assert time.monotonic() < deadline, f"did not come about: {explain()}"
        time.sleep(delay_s)
        # What did not come soon is waited for without taking its processor away.
        delay_s = min(delay_s * 1.5, _LONGEST_POLL_S)


class EngineContract:
    """What every engine must do; see the module's description for its use."""

    @pytest.fixture(autouse=True)
    def _leave_nothing(self, engine: EngineHarness) -> Any:
        yield
        engine.close()

    def test_each_task_gets_its_place_and_environment(self, engine: EngineHarness) -> None:
        roles = (
            RoleSpec(name="chief", env={"COLOUR": "red"}),
            RoleSpec(name="worker", replicas=2),
            RoleSpec(name="evaluator"),
        )
        names = ("chief-0", "worker-0", "worker-1", "evaluator-0")
        steps = [f"{name}@dump:{name}.json" for name in names]
        env = {"COLOUR": "blue", "SHAPE": "round"}
        status = engine.run("ready", *steps, roles=roles, env=env)
        assert status.state is JobState.SUCCEEDED
        told = {name: json.loads(engine.file(f"{name}.json").read_text()) for name in names}
        clusters = {name: json.loads(t["environ"]["TIMONEL_CLUSTER"]) for name, t in told.items()}
        cluster = clusters["chief-0"]["cluster"]
        assert {role: len(addresses) for role, addresses in cluster.items()} == {
            "chief": 1,
            "worker": 2,
        }
        assert len({a for addresses in cluster.values() for a in addresses}) == 3
        assert all(c["cluster"] == cluster and c["generation"] == 1 for c in clusters.values())
        assert clusters["worker-1"]["task"] == {"type": "worker", "index": 1}
        assert clusters["evaluator-0"]["task"] == {"type": "evaluator", "index": 0}
        assert told["chief-0"]["environ"]["COLOUR"] == "red"
        assert told["worker-0"]["environ"]["COLOUR"] == "blue"
        assert {t["environ"]["SHAPE"] for t in told.values()} == {"round"}
        assert {t["environ"]["TIMONEL_JOB_DIR"] for t in told.values()} == {str(engine.file(""))}

    def test_tasks_run_as_python_dash_m(self, engine: EngineHarness) -> None:
        engine.run("ready", "worker-0@dump:a.json", "worker-1@dump:b.json")
        first = json.loads(engine.file("a.json").read_text())
        second = json.loads(engine.file("b.json").read_text())
        assert first["name"] == "__main__"
        assert Path(first["argv"][0]).name == "engine_tasks.py"
        assert first["argv"][1:] == ["ready", "worker-0@dump:a.json", "worker-1@dump:b.json"]
        assert first["cwd"] == first["path"][0] == str(engine.working_dir)
        assert first["session"] == first["pid"]
        assert first["term_is_default"]
        assert first["blocked"] == []
        assert set(engine.preload) <= set(first["modules"])
        # The listing of the folder itself is the fourth.
        assert first["descriptors"] == ["0", "1", "2", "3"]
        assert first["random"] != second["random"]

    def test_status_tells_of_every_task(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "await:go")
        status = engine.wait_for_state(job_id, JobState.RUNNING)
        assert [task.task_id for task in status.tasks] == ["worker-0", "worker-1"]
        assert {task.state for task in status.tasks} == {"running"}
        assert len({task.address for task in status.tasks}) == 2
        assert status.created_at <= (status.started_at or 0)
        engine.file("go").touch()
        status = engine.wait(job_id)
        assert status.state is JobState.SUCCEEDED
        assert (status.generation, status.restarts, status.cause) == (1, 0, None)
        assert {(task.state, task.exit_code) for task in status.tasks} == {("succeeded", 0)}
        assert (status.started_at or 0) <= (status.ended_at or 0)
        assert [known.job_id for known in engine.engine.jobs()] == [job_id]

    def test_a_task_that_ends_well_need_not_report_ready(self, engine: EngineHarness) -> None:
        assert engine.run("exit:0").state is JobState.SUCCEEDED

    def test_parameter_servers_are_ended_after_the_others(self, engine: EngineHarness) -> None:
        roles = (RoleSpec(name="worker"), RoleSpec(name="ps", replicas=2))
        status = engine.run("ready", "ps-0@wait", "ps-1@wait", roles=roles)
        assert status.state is JobState.SUCCEEDED
        assert [task.state for task in status.tasks] == ["succeeded", "stopped", "stopped"]

    def test_a_users_error_is_not_retried(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-1@raise:no such column", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.USER_ERROR)
        assert (status.generation, status.failed_task) == (1, "worker-1")
        texts = [text for task, text in engine.lines() if task == "worker-1"]
        assert texts[0] == "Traceback (most recent call last):"
        assert texts[-1] == "RuntimeError: no such column"

    def test_a_reported_error_is_the_root(self, engine: EngineHarness) -> None:
        steps = ("ready", "worker-0@exit:75", "ignore-term", "report:user-error", "exit:1")
        status = engine.run(*steps)
        assert (status.cause, status.failed_task) == (FailureCause.USER_ERROR, "worker-1")
        assert status.message == "reported user-error"

    def test_retryable_ends_are_retried_up_to_the_budget(self, engine: EngineHarness) -> None:
        status = engine.run("ready", "worker-0@exit:75", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.LOST_PEER)
        assert (status.generation, status.restarts) == (3, 2)

    def test_a_killed_task_restarts_the_gang(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "g1@wait", "await:go")
        status = engine.wait_for_state(job_id, JobState.RUNNING)
        os.kill(_pid_of(status, "worker-1"), signal.SIGKILL)
        again = engine.wait_until(
            job_id, lambda now: now.generation == 2 and now.state is JobState.RUNNING
        )
        assert again.restarts == 1
        assert {t.pid for t in again.tasks}.isdisjoint({t.pid for t in status.tasks})
        assert {t.address for t in again.tasks} != {t.address for t in status.tasks}
        engine.file("go").touch()
        assert engine.wait(job_id).state is JobState.SUCCEEDED

    @pytest.mark.parametrize("end", ["signal:6", "exit:137"])
    def test_a_crash_is_retried_once(self, engine: EngineHarness, end: str) -> None:
        status = engine.run("ready", f"worker-0@{end}", "wait")
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.CRASHED)
        assert (status.generation, status.failed_task) == (2, "worker-0")

    def test_a_crash_after_progress_is_another_crash(self, engine: EngineHarness) -> None:
        steps = ("g1@progress:10", "g2@progress:20", "ready", "worker-0@signal:6", "wait")
        status = engine.run(*steps)
        assert (status.cause, status.generation) == (FailureCause.CRASHED, 3)

    def test_a_hung_start_times_out(self, engine: EngineHarness) -> None:
        policy = RestartPolicy(max_restarts=0)
        steps = ("worker-0@ready", "wait")
        status = engine.run(*steps, restart=policy, start_timeout_s=1.5)
        assert (status.state, status.cause) == (JobState.FAILED, FailureCause.START_TIMEOUT)
        assert status.failed_task == "worker-1"

    def test_cancel_lets_tasks_end_by_themselves(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "wait")
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        engine.engine.cancel(job_id)
        status = engine.wait(job_id)
        assert (status.state, status.cause) == (JobState.STOPPED, FailureCause.STOPPED)
        assert {task.signal for task in status.tasks} == {signal.SIGTERM}
        engine.engine.cancel(job_id)
        assert engine.engine.status(job_id) == status

    def test_cancel_while_starting(self, engine: EngineHarness) -> None:
        job_id = engine.submit("wait")
        engine.engine.cancel(job_id)
        assert engine.wait(job_id).state is JobState.STOPPED

    def test_cancel_while_waiting_to_restart(self, engine: EngineHarness) -> None:
        policy = RestartPolicy(max_restarts=2, backoff_s=600, backoff_max_s=600)
        job_id = engine.submit("ready", "exit:75", restart=policy)
        engine.wait_until(
            job_id, lambda status: status.state is JobState.RESTARTING and status.restarts == 1
        )
        engine.engine.cancel(job_id)
        assert engine.wait(job_id).state is JobState.STOPPED

    def test_cancel_kills_what_ignores_it(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ignore-term", "stray", "ready", "wait", stop_grace_s=0.2)
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        status = engine.wait(job_id)
        assert status.state is JobState.STOPPED
        assert {task.signal for task in status.tasks} == {signal.SIGKILL}
        engine.assert_nothing_left()

    def test_cancel_leaves_a_job_that_has_ended(self, engine: EngineHarness) -> None:
        status = engine.run("exit:3")
        engine.engine.cancel("job")
        assert engine.engine.status("job") == status
        assert status.state is JobState.FAILED

    def test_logs_have_every_line_in_order(self, engine: EngineHarness) -> None:
        engine.run("ready", "print:first", "worker-1@print:second", "print:third")
        assert engine.lines(task_id="worker-1") == [
            ("worker-1", "first"),
            ("worker-1", "second"),
            ("worker-1", "third"),
        ]
        assert ("worker-0", "third") in engine.lines()
        marker = next(iter(engine.engine.logs("job", task_id="worker-0"))).text
        assert marker.startswith("=== generation 1")

    def test_logs_follow_a_job_to_its_end(self, engine: EngineHarness) -> None:
        job_id = engine.submit("print:early", "ready", "await:go", "print:late")
        seen = []
        for line in engine.engine.logs(job_id, task_id="worker-0", follow=True):
            seen.append(line.text)
            if line.text == "early":
                assert not engine.engine.status(job_id).state.is_final
                engine.file("go").touch()
        assert seen[1:] == ["early", "late"]
        assert engine.engine.status(job_id).state is JobState.SUCCEEDED

    def test_a_job_id_is_used_once(self, engine: EngineHarness) -> None:
        engine.run("exit:0")
        with pytest.raises(AlreadyExistsError, match="exists"):
            engine.submit("exit:0")

    def test_unknown_names_are_refused(self, engine: EngineHarness) -> None:
        for ask in (engine.engine.status, engine.engine.logs, engine.engine.cancel):
            with pytest.raises(NotFoundError, match="nosuch"):
                ask("nosuch")
        engine.run("exit:0")
        with pytest.raises(NotFoundError, match="worker-0, worker-1"):
            engine.engine.logs("job", task_id="worker-2")

    def test_a_job_outlives_its_submitter(self, engine: EngineHarness) -> None:
        spec = engine.spec("ready", "await:go")
        submitter = os.fork()
        if submitter == 0:
            engine.engine.submit(spec)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(submitter, 0)
        engine.wait_for_state("job", JobState.RUNNING)
        engine.file("go").touch()
        assert engine.wait("job").state is JobState.SUCCEEDED

    @pytest.mark.parametrize(
        ("steps", "state"),
        [
            (("exit:0",), JobState.SUCCEEDED),
            (("stray", "exit:1"), JobState.FAILED),
            (("ready", "wait"), JobState.STOPPED),
        ],
    )
    def test_the_epilogue_runs_once_before_the_end_is_seen(
        self, engine: EngineHarness, steps: tuple[str, ...], state: JobState
    ) -> None:
        epilogue = CommandSpec(module=TASK_MODULE, args=("append:outcomes",))
        job_id = engine.submit(*steps, epilogue=epilogue)
        if state is JobState.STOPPED:
            engine.wait_for_state(job_id, JobState.RUNNING)
            engine.engine.cancel(job_id)
        status = engine.wait(job_id)
        outcomes = engine.file("outcomes").read_text().splitlines()
        assert [json.loads(line)["state"] for line in outcomes] == [state.value]
        assert status.state is state
        engine.assert_nothing_left()

    def test_sidecars_may_end_after_the_epilogue(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("await:over", "touch:sidecar-ended")),)
        epilogue = CommandSpec(module=TASK_MODULE, args=("touch:over",))
        status = engine.run("exit:0", sidecars=sidecars, epilogue=epilogue)
        assert status.state is JobState.SUCCEEDED
        eventually(engine.file("sidecar-ended").exists)
        engine.assert_nothing_left()

    def test_the_end_is_seen_before_sidecars_end(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("await:seen", "touch:sidecar-ended")),)
        status = engine.run("exit:0", sidecars=sidecars)
        assert status.state is JobState.SUCCEEDED
        assert not engine.file("sidecar-ended").exists()
        engine.file("seen").touch()
        eventually(engine.file("sidecar-ended").exists)
        engine.assert_nothing_left()

    def test_a_failing_sidecar_decides_nothing(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("exit:1",)),)
        assert engine.run("ready", sidecars=sidecars).state is JobState.SUCCEEDED


def _pid_of(status: JobStatus, task_id: str) -> int:
    pid = next(task.pid for task in status.tasks if task.task_id == task_id)
    assert pid is not None
    return pid
