"""Tasks that nobody supervises: each is a command of its own, as on machines of the user's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import timonel
from tests.training.conftest import SCRIPTS
from tests.waiting import until
from timonel.engines.local import LocalEngine
from timonel.errors import SpecError
from timonel.processes.ports import PortReservation
from timonel.storage import Workspace
from timonel.tracking import RunRecord, list_runs

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

TIMONEL = [sys.executable, "-c", "from timonel.cli.entry import main; main()"]


class Terminals:
    """Commands that were started one beside the other."""

    def __init__(self, folder: Path, workspace: Workspace) -> None:
        self.folder = folder
        self.workspace = workspace
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: object, stdout: int | None = None) -> subprocess.Popen[bytes]:
        output = (self.folder / f"terminal-{len(self._started)}.log").open("wb")
        process = subprocess.Popen(
            [*TIMONEL, "--workspace", str(self.workspace.root), "train", *map(str, words)],
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
        )
        output.close()
        self._started.append(process)
        return process

    def shown(self, process: subprocess.Popen[bytes]) -> str:
        return (self.folder / f"terminal-{self._started.index(process)}.log").read_text()

    def end(self) -> None:
        jobs = LocalEngine(self.workspace.jobs)
        for job in jobs.jobs():
            jobs.cancel(job.job_id)
        for process in self._started:
            for each in [*children(process), process]:
                each.kill()
            process.wait()


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def agent_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    (agent,) = psutil.Process(process.pid).children()
    return agent


def task_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    (task,) = agent_of(process).children()
    return task


def only_run(workspace: Workspace) -> RunRecord:
    (record,) = list_runs(workspace)
    return record


@pytest.fixture
def terminals(tmp_path: Path, workspace: Workspace) -> Iterator[Terminals]:
    terminals = Terminals(tmp_path, workspace)
    yield terminals
    terminals.end()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """A cluster of two on this machine."""
    place = tmp_path / "cluster.json"
    with PortReservation(2) as (chief, worker):
        place.write_text(json.dumps({"cluster": {"chief": [chief], "worker": [worker]}}))
        yield place


@pytest.mark.soak  # two ranks of mpirun train together in the default tests
def test_two_terminals_train_together_and_go_on_after_a_kill(
    terminals: Terminals, cluster: Path, workspace: Workspace
) -> None:
    words = (SCRIPTS / "paced.py", "--cluster", cluster, "--seed", "3")
    worker = terminals.start(*words, "--task-type", "worker", "--task-index", "0", "--", "4")
    chief = terminals.start(*words, "--task-type", "chief", "--", "4")
    until(lambda: list(workspace.jobs.glob("*/checkpoints/fit-000/epoch-*/state.json")))
    task_of(worker).kill()

    assert worker.wait(60) == 128 + signal.SIGKILL
    assert chief.wait(60) == 75
    run = only_run(workspace)
    assert run.status == "running"  # it is to go on
    assert f"start it again with the same command, and {run.id} continues" in terminals.shown(chief)

    again = [
        terminals.start(*words, "--task-type", role, "--", "4") for role in ("chief", "worker")
    ]
    assert [process.wait(120) for process in again] == [0, 0], terminals.shown(again[0])
    run = only_run(workspace)
    assert (run.status, run.restarts) == ("succeeded", 1)
    assert [point.epoch for point in run.series["loss"]] == [0, 1, 2, 3]
    found = [json.loads(path.read_text()) for path in workspace.jobs.glob("*/[cw]*-0.json")]
    assert len(found) == 2
    assert found[0] == found[1]
    assert "resumes at epoch" in terminals.shown(again[0])
    assert run.series["loss"][-1].value < run.series["loss"][0].value


ALONE = ("--strategy", "none", "--cluster", "env")


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that waits, and what makes it a task of one's own."""
    config = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    script = tmp_path / "waiting.py"
    script.write_text(
        "import signal, sys, tempfile, time\n"
        "if sys.argv[1:] == ['now']: raise SystemExit(0)\n"
        "if sys.argv[1:] == ['3']: raise SystemExit(3)\n"
        "if sys.argv[1:] == ['error']: 1 / 0\n"
        "if sys.argv[1:] == ['deaf']:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: print('not yet', flush=True))\n"
        "tempfile.mkdtemp()\n"
        "print('begun', flush=True)\n"
        "time.sleep(60)\n"
    )
    return script


def test_how_a_task_here_ends(terminals: Terminals, waiting: Path, workspace: Workspace) -> None:
    leaving = terminals.start(waiting, *ALONE)
    until(lambda: "begun" in terminals.shown(leaving))
    leaving.terminate()  # a machine that is taken away: the run is to go on elsewhere
    assert leaving.wait(30) == 75
    assert only_run(workspace).status == "running"

    interrupted = terminals.start(waiting, *ALONE)
    until(lambda: "begun" in terminals.shown(interrupted))
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(30) == 130
    run = only_run(workspace)
    assert (run.status, run.restarts) == ("stopped", 1)
    assert f"error: interrupted, {run.id} has stopped" in terminals.shown(interrupted)

    for word, code in (("now", 0), ("3", 3), ("error", 1)):
        last = terminals.start(waiting, *ALONE, "--", word)
        assert last.wait(30) == code
    failed = ["failed", "failed", "succeeded", "stopped"]
    assert [record.status for record in list_runs(workspace)] == failed
    assert [record.id[-2:] for record in list_runs(workspace)] == ["-4", "-3", "-2", "-1"]
    assert list_runs(workspace)[0].cause == "user-error"
    assert "    if sys.argv[1:] == ['error']: 1 / 0\n" in terminals.shown(last)
    assert "worker-0 failed: error in the script: ZeroDivisionError: " in terminals.shown(last)


def test_a_task_here_goes_on_after_a_kill_or_a_hang(
    terminals: Terminals, waiting: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = terminals.folder / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    def start(*words: str) -> subprocess.Popen[bytes]:
        process = terminals.start(waiting, *ALONE, *words)
        until(lambda: "begun" in terminals.shown(process))
        return process

    killed = start()
    task_of(killed).kill()
    assert killed.wait(30) == 128 + signal.SIGKILL
    run = only_run(workspace)
    assert f"start it again with the same command, and {run.id} continues" in terminals.shown(
        killed
    )

    hung = start()
    task_of(hung).suspend()
    assert hung.wait(60) == 128 + signal.SIGKILL
    assert "worker-0 hung: " in terminals.shown(hung)

    without_agent = start()
    agent_of(without_agent).kill()
    assert without_agent.wait(30) == 75
    (left_by_agent,) = temporary.iterdir()
    shutil.rmtree(left_by_agent)

    early = terminals.start(waiting, *ALONE)
    until(lambda: "=== generation 4" in terminals.shown(early))
    early.terminate()  # before the task handles signals
    assert early.wait(30) == 75
    assert only_run(workspace).status == "running"
    assert list(temporary.iterdir()) == []


def test_a_stuck_terminal_keeps_no_task_from_saving(
    terminals: Terminals, workspace: Workspace, waiting: Path
) -> None:
    script = terminals.folder / "talking.py"
    script.write_text("while True: print('x' * 1000, flush=True)\n")
    process = terminals.start(script, *ALONE, stdout=subprocess.PIPE)
    log = "*/logs/worker-0.log"
    until(lambda: any(path.stat().st_size > 1 << 18 for path in workspace.jobs.glob(log)))
    process.terminate()
    assert process.wait(30) == 75
    assert process.stdout is not None
    process.stdout.close()


def test_a_port_in_use_is_told_before_anything_is_recorded(
    terminals: Terminals, waiting: Path, workspace: Workspace, tmp_path: Path
) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        place = tmp_path / "cluster.json"
        place.write_text(json.dumps({"cluster": {"chief": [f"127.0.0.1:{port}"]}}))
        chief = terminals.start(waiting, "--cluster", place, "--task-type", "chief")
        assert chief.wait(60) == 2
    assert f"chief-0 cannot listen on 127.0.0.1:{port}: Address already" in terminals.shown(chief)
    assert list_runs(workspace) == []


def test_a_chief_without_its_workers_names_them(terminals: Terminals, cluster: Path) -> None:
    (worker,) = json.loads(cluster.read_text())["cluster"]["worker"]
    words = (SCRIPTS / "paced.py", "--cluster", cluster, "--task-type", "chief", "--", "1")
    chief = terminals.start(*words)
    until(lambda: f"chief-0 waits for worker-0 ({worker})" in terminals.shown(chief))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 1}, "The cluster has 2 workers, but --workers is 1"),
        ({"workers": "2:4"}, "The cluster has 2 workers, but --workers is 2:4"),
        ({"workers": 3}, "The cluster has 2 workers, but --workers is 3"),
        ({"ps": 1}, "The cluster has 0 ps, but --ps is 1"),
    ],
)
def test_sizes_beside_a_cluster_that_contradict_it_are_refused(
    cluster: Path, options: dict[str, object], said: str, waiting: Path, workspace: Workspace
) -> None:
    with pytest.raises(SpecError, match=said):
        timonel.train(
            waiting, cluster=cluster, task_type="chief", workspace=workspace.root, **options
        )
    assert list_runs(workspace) == []


def test_a_second_interrupt_kills(
    terminals: Terminals, waiting: Path, workspace: Workspace
) -> None:
    process = terminals.start(waiting, *ALONE, "--", "deaf")
    until(lambda: "begun" in terminals.shown(process))
    left = [agent_of(process), task_of(process)]
    process.send_signal(signal.SIGINT)
    until(lambda: "not yet" in terminals.shown(process))
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    until(lambda: not any(each.is_running() for each in left), 10.0)
    assert only_run(workspace).status == "stopped"


def test_all_tasks_stop_with_a_run_that_has_failed(
    terminals: Terminals, cluster: Path, workspace: Workspace
) -> None:
    script = terminals.folder / "one_fails.py"
    script.write_text(
        "import sys, time\n"
        "from timonel.training import context\n"
        "print('begun', flush=True)\n"
        "if context().cluster.role == 'worker': 1 / 0\n"
        "time.sleep(60)\n"
    )
    words = (script, "--strategy", "none", "--cluster", cluster, "--task-type")
    chief = terminals.start(*words, "chief")
    until(lambda: "begun" in terminals.shown(chief))
    worker = terminals.start(*words, "worker")
    assert [worker.wait(30), chief.wait(30)] == [1, 75]
    run = only_run(workspace)
    assert (run.status, run.cause) == ("failed", "user-error")
    assert f"{run.id} has ended (failed)" in terminals.shown(chief)


def _servers() -> dict[str, list[str]]:
    ports = {"chief": (1,), "worker": (3,), "ps": (2, 4)}
    return {role: [f"127.0.0.1:{port}" for port in found] for role, found in ports.items()}


def test_a_parameter_server_ends_with_the_run(terminals: Terminals, workspace: Workspace) -> None:
    place = terminals.folder / "cluster.json"
    place.write_text(json.dumps({"cluster": _servers()}))
    script = terminals.folder / "old.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "print(sys.argv[1:], flush=True)\n"
        f"served = pathlib.Path({str(terminals.folder / 'served')!r})\n"
        "if sys.argv[1] == 'ps':\n"
        "    served.touch()\n"
        "    time.sleep(60)\n"
        "while not served.exists():\n"
        "    time.sleep(0.05)\n"
    )
    words = (script, "--strategy", "none", "--cluster", place, "--success-policy", "all-workers")
    asked = ("--", "{job_name}", "{task_index}", "{ps_hosts}", "{worker_hosts}")
    server = terminals.start(*words, "--task-type", "ps", *asked)
    leader = terminals.start(*words, "--task-type", "chief", *asked)
    assert [leader.wait(30), server.wait(30)] == [0, 0]
    hosts = "'127.0.0.1:2,127.0.0.1:4', '127.0.0.1:1,127.0.0.1:3'"
    assert f"['ps', '0', {hosts}]" in terminals.shown(server)
    assert f"['worker', '0', {hosts}]" in terminals.shown(leader)
    assert only_run(workspace).status == "succeeded"

    # Whoever comes too late need not wait for a chief that has been there.
    late = [
        terminals.start(*words, "--task-type", role, "--task-index", index, *asked)
        for role, index in (("worker", 0), ("ps", 1))
    ]
    assert [process.wait(30) for process in late] == [5, 0]
    assert "ended (succeeded) before this task started" in terminals.shown(late[0])


def test_a_task_here_dies_with_its_terminal(
    terminals: Terminals, waiting: Path, workspace: Workspace
) -> None:
    process = terminals.start(waiting, *ALONE)
    until(lambda: "begun" in terminals.shown(process))
    left = [agent_of(process), task_of(process)]
    twice = terminals.start(waiting, *ALONE)
    assert twice.wait(30) == 2
    shown = terminals.shown(twice)
    assert f"worker-0 of {only_run(workspace).id} is running already: give each task" in shown
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    until(lambda: not any(each.is_running() for each in left), 10.0)

    other = terminals.start(waiting, *ALONE, "--", "now")
    assert other.wait(30) == 2
    shown = terminals.shown(other)
    assert "args differs from the unfinished run train-" in shown
    assert "start every task with the same options, or start another run with --name" in shown


@pytest.mark.soak
def test_mpirun_starts_a_job_of_two_ranks(terminals: Terminals, workspace: Workspace) -> None:
    pytest.importorskip("mpi4py")
    job = terminals.start(
        SCRIPTS / "paced.py", "--launcher", "mpi", "--workers", "2", "--", "1"
    )  # fmt: skip
    assert job.wait(200) == 0, terminals.shown(job)
    found = [json.loads(path.read_text()) for path in workspace.jobs.glob("*/[cw]*-0.json")]
    assert len(found) == 2
    assert found[0] == found[1]
    run = only_run(workspace)
    assert run.status == "succeeded"
    assert run.params["timonel.launcher"] == "mpi"


def test_ranks_that_mpirun_has_started(terminals: Terminals, workspace: Workspace) -> None:
    pytest.importorskip("mpi4py")
    from timonel.training import mpi as ranks

    script = terminals.folder / "who.py"
    script.write_text(
        "import os, signal, sys\n"
        "from timonel.training import context\n"
        "job = context()\n"
        "(job.job_dir / f'{job.cluster.task_id}.json').write_text(os.environ['TF_CONFIG'])\n"
        "if job.cluster.role == sys.argv[1]:\n"
        "    sys.exit(4)\n"
        # A run ends when its chief is done: this one waits until mpirun ends it with the other.
        "if sys.argv[1] == 'worker':\n"
        "    signal.pause()\n"
    )
    words = ["-w", workspace.root, "train", script, "--launcher", "mpi", "--strategy", "none"]
    # mpirun returns the code of the first to end: the worker, or the chief that stops with the run,
    # by itself or by SIGTERM.
    for role, codes in (("worker", {4, 75, 128 + signal.SIGTERM}), ("nobody", {0})):
        command, environ = ranks.mpirun([*TIMONEL, *map(str, words), "--name", role, "--", role], 2)
        process = subprocess.Popen(command, env=environ)
        assert process.wait(60) in codes
    newest, before = list_runs(workspace)
    assert (newest.status, before.status) == ("succeeded", "failed")
    assert newest.params["timonel.workers"] == 2
    told = [json.loads(path.read_text()) for path in workspace.jobs.glob(f"{newest.id}/*.json")]
    assert {task["task"]["type"] for task in told} == {"chief", "worker"}
    assert told[0]["cluster"] == told[1]["cluster"]
