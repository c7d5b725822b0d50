"""Commands run beside a job, in its folders, and are gone after it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_COMMAND = """
import json, os, sys, time
names = ("TIMONEL_JOB_DIR", "TIMONEL_JOB_OUTCOME", "OF_JOB")
print(json.dumps([os.getcwd(), *(os.environ.get(name) for name in names)]), flush=True)
open(f"{os.environ['TIMONEL_JOB_DIR']}/started-{sys.argv[1]}", "w").close()
time.sleep(600 if sys.argv[1] == "sidecar" else 0)
"""
# A process of its own: it reaps all its children.
_SUPERVISOR = """
import signal, sys, time
from pathlib import Path
from timonel.engines import CommandSpec, JobSpec, JobStatus, RoleSpec
from timonel.engines.commands import Commands
from timonel.processes.loop import Loop
from timonel.processes.tree import marked, own_identity

root, token = Path(sys.argv[1]), str(own_identity())
spec = JobSpec(
    job_id="one",
    module="m",
    roles=(RoleSpec(name="chief"),),
    env={"OF_JOB": "value"},
    sidecars=(CommandSpec(module="command", args=("sidecar",), patience_s=0.0),),
    epilogue=CommandSpec(module="command", args=("epilogue",)),
)
commands = Commands(
    spec, root / "job", root / "program", root / "logs", Loop((signal.SIGCHLD,)), token
)
commands.start_sidecars()
while not (root / "job" / "started-sidecar").exists():
    time.sleep(0.01)
commands.run_epilogue(JobStatus.of(spec, 1.0))
assert list(marked(token))
commands.wind_down()
assert not list(marked(token))
"""


@pytest.mark.process
def test_commands_run_in_the_given_folders_and_are_stopped(tmp_path: Path) -> None:
    for name in ("job", "program"):
        (tmp_path / name).mkdir()
    (tmp_path / "program" / "command.py").write_text(_COMMAND)
    subprocess.run([sys.executable, "-c", _SUPERVISOR, str(tmp_path)], check=True, timeout=120)
    sidecar, epilogue = (
        json.loads((tmp_path / "logs" / f"{name}.log").read_text()) for name in ("0", "epilogue")
    )
    seen = [str(tmp_path / "program"), str(tmp_path / "job")]
    assert sidecar == [*seen, None, "value"]
    assert [*epilogue[:2], epilogue[3]] == [*seen, "value"]
    assert json.loads(epilogue[2])["job_id"] == "one"
