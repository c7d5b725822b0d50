"""A task from its first line to its exit code, where it does not come as far as the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"kind": "train", "format": 99}', "a newer timonel wrote it: upgrade timonel"),
        ("half", "is not valid JSON"),
    ],
)
def test_a_job_that_cannot_be_read_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    spec = tmp_path / "train.json"
    spec.write_text(content)
    places = {"TIMONEL_JOB_DIR": str(tmp_path), "TIMONEL_TASK_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "timonel.training.worker", "--spec", str(spec)],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("timonel: ")
    assert message in line
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["cause"], report["traceback"]) == ("user-error", None)
    assert message in report["message"]


@pytest.mark.process
@pytest.mark.parametrize(("cluster", "expected"), [({}, "ended\n"), ({"TF_CONFIG": "{}"}, "")])
def test_a_failure_without_peers_calls_functions_of_atexit(
    cluster: dict[str, str], expected: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import atexit; atexit.register(print, 'ended')")
    (tmp_path / "train.json").write_text("half")
    places = {"TIMONEL_JOB_DIR": str(tmp_path), "TIMONEL_TASK_DIR": str(tmp_path)}
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "timonel.training.worker", "--spec", str(tmp_path / "train.json")],
        env={**os.environ, **places, **cluster, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, expected)
