"""Contract tests for running, stopping and observing jobs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.contracts.engines.harness import DEADLINE_S, TASK_MODULE, EngineHarness, eventually
from timonel.engines import CommandSpec, FailureCause, JobState, RestartPolicy, RoleSpec
from timonel.errors import AlreadyExistsError, NotFoundError


class RunningContract:
    """Contract tests for running, stopping and observing jobs."""

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
        dumps = {name: engine.read_json(f"{name}.json") for name in names}
        clusters = {name: json.loads(t["environ"]["TIMONEL_CLUSTER"]) for name, t in dumps.items()}
        cluster = clusters["chief-0"]["cluster"]
        assert {role: len(addresses) for role, addresses in cluster.items()} == {
            "chief": 1,
            "worker": 2,
        }
        assert len({a for addresses in cluster.values() for a in addresses}) == 3
        assert all(c["cluster"] == cluster and c["generation"] == 1 for c in clusters.values())
        assert clusters["worker-1"]["task"] == {"type": "worker", "index": 1}
        assert clusters["evaluator-0"]["task"] == {"type": "evaluator", "index": 0}
        assert dumps["chief-0"]["environ"]["COLOUR"] == "red"
        assert dumps["worker-0"]["environ"]["COLOUR"] == "blue"
        assert {t["environ"]["SHAPE"] for t in dumps.values()} == {"round"}
        assert len({t["environ"]["TIMONEL_TASK_DIR"] for t in dumps.values()}) == 4

    def test_tasks_run_as_python_dash_m(self, engine: EngineHarness) -> None:
        engine.run("ready", "worker-0@dump:a.json", "worker-1@dump:b.json")
        first = engine.read_json("a.json")
        second = engine.read_json("b.json")
        assert first["name"] == "__main__"
        assert Path(first["argv"][0]).name == "engine_tasks.py"
        assert first["argv"][1:] == ["ready", "worker-0@dump:a.json", "worker-1@dump:b.json"]
        assert first["cwd"] == first["path"][0]
        assert "source.txt" in first["files"]
        assert first["session"] == first["pid"]
        assert first["term_is_default"]
        assert first["blocked"] == []
        assert set(engine.preload) <= set(first["modules"])
        # Listing the folder opens the fourth descriptor.
        assert first["descriptors"] == ["0", "1", "2", "3"]
        assert first["random"] != second["random"]

    def test_temporary_files_go_with_the_task_that_made_them(self, engine: EngineHarness) -> None:
        steps = (
            "worker-0@dump:worker-0.json",
            "worker-1@dump:worker-1.json",
            "await:worker-0.json",
        )
        engine.run(*steps, "await:worker-1.json", "signal:9", restart=RestartPolicy(max_restarts=0))
        dumps = [engine.read_json(f"worker-{n}.json") for n in (0, 1)]
        folders = [task["environ"]["TMPDIR"] for task in dumps]
        assert [str(Path(task["temporary"]).parent) for task in dumps] == folders
        assert folders[0] != folders[1]
        eventually(lambda: not engine.temporary_files())

    def test_status_tells_of_every_task(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "await:go")
        status = engine.wait_for_state(job_id, JobState.RUNNING)
        assert [task.task_id for task in status.tasks] == ["worker-0", "worker-1"]
        assert {task.state for task in status.tasks} == {"running"}
        assert len({task.address for task in status.tasks}) == 2
        assert status.created_at <= (status.started_at or 0)
        engine.write_file("go")
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
        engine.submit_and_die(engine.spec("ready", "await:go"))
        engine.wait_for_state("job", JobState.RUNNING)
        engine.write_file("go")
        assert engine.wait("job").state is JobState.SUCCEEDED

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
        # The first restart has no delay.
        policy = RestartPolicy(max_restarts=3, backoff_s=600, backoff_max_s=600)
        job_id = engine.submit("ready", "exit:75", restart=policy)
        engine.wait_until(
            job_id, lambda status: status.state is JobState.RESTARTING and status.restarts == 2
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

    def test_cancel_lets_held_tasks_end_by_themselves(self, engine: EngineHarness) -> None:
        job_id = engine.submit("ready", "worker-1@signal:19", "wait", stop_grace_s=20)
        engine.wait_for_state(job_id, JobState.RUNNING)
        engine.engine.cancel(job_id)
        assert {task.signal for task in engine.wait(job_id).tasks} == {signal.SIGTERM}

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
                engine.write_file("go")
        assert seen[1:] == ["early", "late"]
        assert engine.engine.status(job_id).state is JobState.SUCCEEDED

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
        outcomes = (engine.read_file("outcomes") or "").splitlines()
        assert [json.loads(line)["state"] for line in outcomes] == [state.value]
        assert status.state is state
        engine.assert_nothing_left()

    def test_sidecars_may_end_after_the_epilogue(self, engine: EngineHarness) -> None:
        sidecars = (_patient("await:over", "touch:sidecar-ended"),)
        epilogue = CommandSpec(module=TASK_MODULE, args=("touch:over",))
        status = engine.run("exit:0", sidecars=sidecars, epilogue=epilogue)
        assert status.state is JobState.SUCCEEDED
        engine.wait_for_file("sidecar-ended")
        engine.assert_nothing_left()

    def test_the_end_is_seen_before_sidecars_end(self, engine: EngineHarness) -> None:
        sidecars = (_patient("await:seen", "touch:sidecar-ended"),)
        status = engine.run("exit:0", sidecars=sidecars)
        assert status.state is JobState.SUCCEEDED
        assert engine.read_file("sidecar-ended") is None
        engine.write_file("seen")
        engine.wait_for_file("sidecar-ended")
        engine.assert_nothing_left()

    def test_a_failing_sidecar_decides_nothing(self, engine: EngineHarness) -> None:
        sidecars = (CommandSpec(module=TASK_MODULE, args=("exit:1",)),)
        assert engine.run("ready", sidecars=sidecars).state is JobState.SUCCEEDED


def _patient(*steps: str) -> CommandSpec:
    """Return a sidecar that is not stopped while it runs, however busy the machine is."""
    return CommandSpec(module=TASK_MODULE, args=steps, patience_s=DEADLINE_S)
