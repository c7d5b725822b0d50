"""Run an mpirun job as one task: ``python -m timonel.training.worker.mpi --spec FILE``.

An engine starts this module once; it starts mpirun, which starts it again with ``--rank`` for each
rank. Rank 0 is the job's chief and uses the task's folder; each other rank has a folder beside it.
The job reports the rank failure that caused the others.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from timonel.engines.base import EXIT_DONE
from timonel.engines.coordination.failures import (
    Failure,
    TaskExit,
    fail,
    parse_report,
    root_failure,
)
from timonel.storage import write_text
from timonel.training import mpi as ranks
from timonel.training.cluster import ENVIRONMENT_VARIABLE
from timonel.training.spec import add_document_options, document_path, read_spec
from timonel.training.worker.bootstrap import run

_MODULE = "timonel.training.worker.mpi"
_REPORT = "report.json"
_LEFT_BEHIND = ("ready", _REPORT, "progress", "alive")


def start_ranks(spec: Path) -> int:
    """Start mpirun, wait for its end and return its exit code."""
    count = read_spec(spec).settings.distribution.workers
    folders = list(_folders(count))
    for folder in folders[1:]:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _LEFT_BEHIND:
            (folder / name).unlink(missing_ok=True)
    program = [sys.executable, "-m", _MODULE, "--spec", str(spec), "--rank"]
    command, environ = ranks.mpirun(program, count)
    process = subprocess.Popen(command, env=environ)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    if code != EXIT_DONE:
        _report_root(folders)
    return code if code >= 0 else 128 - code


def run_rank(spec: Path) -> int:
    """Join the other ranks, run this rank's task, return its exit code."""
    with ranks.joined() as (cluster, _):
        ranks.leave()
        assignment = json.loads(os.environ[ENVIRONMENT_VARIABLE])
        os.environ[ENVIRONMENT_VARIABLE] = json.dumps({**assignment, **cluster.tf_config()})
        folder = list(_folders(len(cluster.trainers)))[cluster.rank]
        os.environ["TIMONEL_TASK_DIR"] = str(folder)
        return run(spec, os.environ)


def _folders(count: int) -> Iterator[Path]:
    """Yield the folder of each rank, the engine task's folder first."""
    own = Path(os.environ["TIMONEL_TASK_DIR"])
    yield own
    for number in range(count - 1):
        yield own.with_name(f"worker-{number}")


def _report_root(folders: list[Path]) -> None:
    """Copy the report of the root failure's rank to the engine's task."""
    failures: dict[str, Failure] = {}
    for folder in folders:
        try:
            text = (folder / _REPORT).read_text()
        except OSError:
            continue
        failure = fail(folder.name, TaskExit(exit_code=1, report=parse_report(text)))
        if failure is not None:
            failures[text] = failure
    root = root_failure(list(failures.values()))
    for text, failure in failures.items():
        if failure is root:
            write_text(folders[0] / _REPORT, text)


def main() -> int:
    """Start the ranks, or run one."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    add_document_options(parser)
    parser.add_argument("--rank", action="store_true", help="mpirun has started this")
    options = parser.parse_args()
    spec = document_path(options)
    return run_rank(spec) if options.rank else start_ranks(spec)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # As in the other tasks: the shutdown of a cluster that lost a member may hang.
    os._exit(code) if code != EXIT_DONE else sys.exit(code)
