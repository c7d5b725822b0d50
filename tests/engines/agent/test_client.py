from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.contracts.engines import TASK_MODULE
from timonel.engines import LogLine
from timonel.engines.agent.client import Demand, run_task
from timonel.engines.agent.messages import StartOrder
from timonel.engines.coordination.failures import TaskExit
from timonel.engines.environment import TASK_DIR
from timonel.errors import EngineError
from timonel.processes.tree import MARKER, marked, own_identity

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


class Command:
    """What a command that runs one task does, with a task that runs steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shown: list[str] = []
        self.token = str(own_identity())
        (folder / "tmp").mkdir()

    def order(self, *steps: str) -> StartOrder:
        environ = {
            **os.environ,
            MARKER: self.token,
            TASK_DIR: str(self.folder),
            "TIMONEL_JOB_DIR": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "PYTHONUNBUFFERED": "1",
        }
        return StartOrder(
            task_id="worker-0",
            generation=1,
            attempt=1,
            module=TASK_MODULE,
            args=steps,
            env=environ,
            cwd=str(self.folder),
            log=self.folder / "logs" / "worker-0.log",
            task_dir=self.folder,
            umask=0o022,
        )

    def run(
        self,
        order: StartOrder,
        *,
        grace_s: float = 30.0,
        demand: Callable[[], Demand] = lambda: Demand.CONTINUE,
    ) -> TaskExit:
        def show(line: LogLine) -> None:
            self.shown.append(line.text)

        return run_task(order, grace_s=grace_s, demand=demand, show=show)

    def once_begun(self, demand: Demand) -> Callable[[], Demand]:
        return lambda: demand if "begun" in self.shown else Demand.CONTINUE

    @property
    def left(self) -> list[object]:
        """Processes and temporary files that a task has left."""
        temporary = [*(self.folder / "tmp").iterdir()]
        return [*marked(self.token, inside=f"{TASK_DIR}={self.folder}"), *temporary]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


def test_the_output_is_shown_and_nothing_is_left(command: Command) -> None:
    for code in (0, 3):
        command.shown.clear()
        steps = ("dump:facts", "stray", f"print:this is {code}", "progress:7 x", f"exit:{code}")
        task_exit = command.run(command.order(*steps))
        assert (task_exit.exit_code, task_exit.progress) == (code, 7.0)
        header, line = command.shown  # of this start only
        assert header.startswith("=== generation 1 (worker-0, ")
        assert line == f"this is {code}"
        assert command.left == []


def test_a_task_is_stopped(command: Command) -> None:
    order = command.order("leave-at-term", "print:begun", "wait")
    assert command.run(order, demand=command.once_begun(Demand.STOP)).exit_code == 75


@pytest.mark.parametrize(("demand", "count"), [(Demand.STOP, 1), (Demand.STOP_UNSAVED, 2)])
def test_a_task_that_need_not_save_is_asked_twice(
    command: Command, demand: Demand, count: int
) -> None:
    order = command.order("count-terms", "print:begun", "report-terms")
    assert command.run(order, demand=command.once_begun(demand)).exit_code == 75
    assert command.shown[-1] == f"asked to leave {count} times"


def test_a_task_that_does_not_stop_is_killed(command: Command) -> None:
    order = command.order("ignore-term", "stray", "print:begun", "wait")
    task_exit = command.run(order, demand=command.once_begun(Demand.STOP), grace_s=0.1)
    assert (task_exit.signal, task_exit.hung) == (signal.SIGKILL, None)
    assert command.left == []


def test_a_task_is_killed_at_once(command: Command) -> None:
    order = command.order("ignore-term", "stray", "print:begun", "wait")
    assert command.run(order, demand=command.once_begun(Demand.KILL)).signal == signal.SIGKILL
    assert command.left == []


def test_a_task_ends_with_its_agent(command: Command) -> None:
    killed: list[psutil.Process] = []
    others = psutil.Process().children()  # of tests before this one

    def kill_agent() -> Demand:
        if "begun" in command.shown and not killed:
            killed.extend(set(psutil.Process().children()) - set(others))
            for agent in killed:
                agent.kill()
        return Demand.CONTINUE

    order = command.order("stray", "print:begun", "wait")
    assert command.run(order, demand=kill_agent) == TaskExit(agent_lost=True)
    assert len(killed) == 1
    assert marked(command.token, inside=f"{TASK_DIR}={command.folder}") == []


@pytest.mark.parametrize(
    ("steps", "reason"),
    [(("beat", "ready", "signal:19"), "no sign of life"), (("progress:2", "ready"), "no step for")],
)
def test_a_hung_task_is_killed(command: Command, steps: tuple[str, ...], reason: str) -> None:
    order = replace(
        command.order(*steps, "wait"),
        hang_timeout_s=0.5 if "beat" in steps else None,
        stall_timeout_s=0.5,
    )
    task_exit = command.run(order)
    assert task_exit.signal == signal.SIGKILL
    assert task_exit.hung is not None
    assert task_exit.hung.startswith(reason)


def test_a_task_that_cannot_be_started(command: Command) -> None:
    (command.folder / "logs").write_text("no folder")
    with pytest.raises(EngineError, match=r"cannot start worker-0: .*logs"):
        command.run(command.order("wait"))
    assert command.left == []


def test_a_task_goes_on_without_its_terminal(command: Command) -> None:
    def show(_: LogLine) -> None:
        raise BrokenPipeError

    order = command.order("print:begun", "sleep:0.3", "touch:end")
    task_exit = run_task(order, grace_s=1, demand=lambda: Demand.CONTINUE, show=show)
    assert task_exit.exit_code == 0
    assert (command.folder / "end").exists()


def test_a_stuck_terminal_delays_neither_the_task_nor_its_stop(command: Command) -> None:
    attempts: list[str] = []

    def show(line: LogLine) -> None:
        attempts.append(line.text)
        if line.text == "two":
            raise BlockingIOError

    def demand() -> Demand:
        return Demand.STOP if attempts.count("two") > 2 else Demand.CONTINUE

    order = command.order("leave-at-term", "print:one", "print:two", "print:three", "wait")
    task_exit = run_task(order, grace_s=30, demand=demand, show=show)
    assert task_exit.exit_code == 75
    assert attempts.count("one") == 1
    assert "three" not in attempts


def test_a_slow_terminal_shows_everything(command: Command) -> None:
    shown: list[str] = []

    def show(line: LogLine) -> None:
        if len(shown) == line_limit[0]:
            line_limit[0] += 2
            raise BlockingIOError
        shown.append(line.text)

    line_limit = [2]
    order = command.order(*(f"print:{number}" for number in range(6)))
    run_task(order, grace_s=30, demand=lambda: Demand.CONTINUE, show=show)
    assert shown[1:] == [str(number) for number in range(6)]


def test_endless_output_delays_no_stop(command: Command) -> None:
    order = command.order("leave-at-term", "print:begun", "wait")
    demands: list[Demand] = []

    def show(line: LogLine) -> None:
        command.shown.append(line.text)
        if "begun" in command.shown and Demand.KILL not in demands:
            with order.log.open("a") as log:  # as fast as it is shown
                log.write("more\n")

    def demand() -> Demand:
        demands.append(command.once_begun(Demand.KILL)())
        return demands[-1]

    task_exit = run_task(order, grace_s=30, demand=demand, show=show)
    assert task_exit.signal == signal.SIGKILL


def test_an_error_of_the_caller_leaves_nothing(command: Command) -> None:
    def fail() -> Demand:
        if "begun" in command.shown:
            raise RuntimeError("of the caller")
        return Demand.CONTINUE

    with pytest.raises(RuntimeError, match="of the caller"):
        command.run(command.order("stray", "print:begun", "wait"), demand=fail)
    assert command.left == []


def test_modules_of_the_working_folder_replace_none_of_the_agents(command: Command) -> None:
    (command.folder / "selectors.py").write_text("raise RuntimeError('not this one')\n")
    order = replace(command.order(), module="timeit", args=("pass",))
    assert command.run(order).exit_code == 0
