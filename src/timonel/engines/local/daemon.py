"""Start and guard a job: ``python -m timonel.engines.local.daemon <job folder>``.

The executed process forks the guard and exits once the job is accepted. The guard forks the
supervisor and waits for it. If the supervisor is killed before the job ends, the guard kills the
remaining processes and restarts the job under a new supervisor, as an init system would. If no
restart is left, or the supervisor failed with an error, the guard runs the epilogue and publishes
the end of the job.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from timonel.engines.base import FailureCause, JobState
from timonel.engines.commands import Commands
from timonel.engines.coordination.restarts import Loss, RestartHistory, decide
from timonel.engines.environment import role_environment
from timonel.engines.local.folder import JobFolder, JobRecord, abandoned
from timonel.engines.local.guard import fork_supervisor, run_guard, wait_for
from timonel.engines.local.supervisor import JobSupervisor
from timonel.processes.loop import Loop
from timonel.processes.tree import (
    descendants,
    kill_all,
    marked,
    own_identity,
    reap,
)
from timonel.processes.zygote import ZygoteError
from timonel.processes.zygote_client import ensure_zygote

_POLL_S = 0.1


def main(arguments: list[str]) -> int:
    """Fork the guard; return 0 once the job is accepted."""
    folder = JobFolder(Path(arguments[0]))
    _start_zygotes(folder)
    return run_guard("job guard", partial(_run_until_final, folder))


def _start_zygotes(folder: JobFolder) -> None:
    """Start zygotes.

    Not from below the guard, or they would die with it.
    """
    spec = folder.read_spec()
    for role in spec.roles if spec.preload else ():
        try:
            ensure_zygote(spec.preload, role_environment(spec, role, folder.root))
        except ZygoteError as error:
            # The supervisor gets the same error and writes it to the tasks' logs.
            print(f"no zygote for {role.name}: {error}", file=sys.stderr)  # noqa: T201 - the log


def _run_until_final(folder: JobFolder, writer: int) -> None:
    """Run supervisors until the job ends, or end it here."""
    identity, history = own_identity(), RestartHistory()
    descriptor: int | None = writer
    has_begun = False
    while True:
        begun = time.monotonic()
        supervisor = fork_supervisor(
            lambda accepted: JobSupervisor(folder, identity).run(accepted), descriptor
        )
        descriptor = None
        status = wait_for(supervisor)
        record = _remaining(folder, supervisor, has_begun=has_begun) if status != 0 else None
        if record is None:
            return
        are_gone = _kill_remains(record)
        # Tasks survive, or the epilogue may have begun: no new generation may start. A job that was
        # asked to stop starts no tasks.
        is_ending = record.status.state is JobState.STOPPING and not folder.stop_file.exists()
        if not are_gone or is_ending:
            _take_over(folder, record, status)
            return
        policy = folder.read_spec().restart
        # A supervisor reports no progress; over weeks a few losses are normal.
        loss = Loss(FailureCause.LOST_PEER, ran_s=time.monotonic() - begun, is_single_task=True)
        decision = decide(policy, history, loss)
        if not (os.WIFSIGNALED(status) and decision.retry):
            _take_over(folder, record, status)
            return
        history = decision.history
        why = f"its supervisor was killed (signal {os.WTERMSIG(status)})"
        folder.write(JobRecord(record.status.restarted(why), owner=identity))
        has_begun = True
        _wait_unless_stopped(folder, decision.delay_s)


def _remaining(folder: JobFolder, supervisor: int, *, has_begun: bool) -> JobRecord | None:
    """Return the record of a job that the guard must end.

    None if the job has ended, or is not this guard's to end.

    Args:
        has_begun: Whether an earlier supervisor had begun the job: a supervisor that dies before it
            publishes itself leaves its guard's record.
    """
    record = folder.read()
    is_begun_again = record.supervisor is not None and record.supervisor.pid != supervisor
    if is_begun_again or (record.supervisor is None and not has_begun):
        return None
    if record.status.state.is_final:
        _kill_remains(record)  # sidecars
        return None
    return record


def _kill_remains(record: JobRecord) -> bool:
    """Kill the processes that a supervisor left; return whether none survives."""
    token = str(record.supervisor) if record.supervisor is not None else None
    are_gone = kill_all(lambda: [*descendants(os.getpid()), *(marked(token) if token else ())])
    for _ in reap():
        pass
    return are_gone


def _wait_unless_stopped(folder: JobFolder, delay_s: float) -> None:
    """Wait for the restart delay, or until a stop is requested."""
    deadline = time.monotonic() + delay_s
    while (left_s := deadline - time.monotonic()) > 0 and not folder.stop_file.exists():
        time.sleep(min(left_s, _POLL_S))


def _take_over(folder: JobFolder, record: JobRecord, status: int) -> None:
    """End a job whose supervisor died: epilogue, cleanup and final record."""
    signalled = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else None
    how = signalled or folder.last_error() or "an internal error"
    outcome = abandoned(record.status, f"supervisor died ({how})", now=time.time())
    if not record.epilogue_done:
        spec = folder.read_spec()
        commands = Commands(
            spec=spec,
            job_dir=folder.root,
            working_dir=folder.working_dir(spec),
            logs=folder.command_logs,
            loop=Loop((signal.SIGCHLD,)),
            token=str(record.supervisor),
        )
        commands.run_epilogue(outcome)
        commands.wind_down()
    folder.write(replace(record, status=outcome, epilogue_done=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
