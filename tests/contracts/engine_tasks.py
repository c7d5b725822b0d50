"""``python -m tests.contracts.engine_tasks <step>...``: a task that runs the given steps.

A step is ``[<when>@]<name>[:<value>]``. ``<when>`` is a comma-separated list of conditions for the
step: a task's name such as ``worker-1``, a generation such as ``g1``, or an attempt within it such
as ``a2``.

    ready             report that the task is ready
    print:<text>      print a line
    dump:<name>       write environment, arguments and the like as JSON to the job folder
    touch:<name>      create a file in the job folder
    await:<name>      wait for such a file
    append:<name>     append the job's outcome to a file in the job folder, as one line
    progress:<n>      report the task's progress
    beat              send heartbeats from now on
    listen            listen on the task's address until the task ends
    report:<cause>    report why the task is about to fail
    ignore-term       ignore SIGTERM
    leave-at-term     exit with the retryable code on SIGTERM
    count-terms       count SIGTERM signals from now on
    report-terms      wait for the first SIGTERM and one more second, then print the count
    sleep:<seconds>   sleep
    stray             leave a process behind in its own session, without a living parent
    signal:<n>        send the signal to itself
    raise:<text>      raise an exception
    wait              wait to be ended
    exit:<n>          exit
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

EXIT_RETRYABLE = 75
_POLL_S = 0.01
_BEAT_S = 0.05
_KEPT: list[Any] = []


def main(steps: list[str]) -> None:
    """Run the steps in order."""
    facts = _facts()
    for step in steps:
        when, _, what = step.rpartition("@")
        if all(condition in facts for condition in when.split(",") if condition):
            name, _, value = what.partition(":")
            globals()[f"_step_{name.replace('-', '_')}"](value)


def _facts() -> set[str]:
    assignment = json.loads(os.environ.get("TIMONEL_CLUSTER", "{}"))
    if not assignment:
        return set()
    name = f"{assignment['task']['type']}-{assignment['task']['index']}"
    return {name, f"g{assignment['generation']}", f"a{assignment['attempt']}"}


def _job_file(name: str) -> Path:
    return Path(os.environ["TIMONEL_JOB_DIR"], name)


def _task_file(name: str) -> Path:
    return Path(os.environ["TIMONEL_TASK_DIR"], name)


def _step_ready(_value: str) -> None:
    _task_file("ready").touch()


def _step_print(value: str) -> None:
    print(value)


def _step_dump(value: str) -> None:
    content = {
        "environ": dict(os.environ),
        "argv": sys.argv,
        "cwd": str(Path.cwd()),
        "files": sorted(path.name for path in Path.cwd().iterdir()),
        "path": sys.path,
        "name": __name__,
        "random": random.random(),
        "temporary": tempfile.mkdtemp(),
        "session": os.getsid(0),
        "pid": os.getpid(),
        "term_is_default": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "modules": sorted(sys.modules),
        "descriptors": sorted(os.listdir("/proc/self/fd")),  # noqa: PTH208 - only names are needed
    }
    path = _job_file(value)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(content))
    aside.rename(path)


def _step_touch(value: str) -> None:
    _job_file(value).touch()


def _step_await(value: str) -> None:
    while not _job_file(value).exists():
        time.sleep(_POLL_S)


def _step_append(value: str) -> None:
    with _job_file(value).open("a") as file:
        file.write(os.environ["TIMONEL_JOB_OUTCOME"] + "\n")


def _step_progress(value: str) -> None:
    _task_file("progress").write_text(value)


def _step_beat(_value: str) -> None:
    path = _task_file("alive")
    path.touch()

    def touch() -> None:
        while True:
            time.sleep(_BEAT_S)
            os.utime(path)

    threading.Thread(target=touch, daemon=True).start()


def _step_listen(_value: str) -> None:
    assignment = json.loads(os.environ["TIMONEL_CLUSTER"])
    task = assignment["task"]
    address = assignment["cluster"][task["type"]][task["index"]]
    host, _, port = address.rpartition(":")
    server = socket.socket()
    # Like gRPC's servers in TensorFlow.
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, int(port)))
    server.listen()
    _KEPT.append(server)


def _step_leave_at_term(_value: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_RETRYABLE))


def _step_count_terms(_value: str) -> None:
    signal.signal(signal.SIGTERM, lambda *_: _KEPT.append(signal.SIGTERM))


def _step_report_terms(_value: str) -> None:
    while signal.SIGTERM not in _KEPT:
        time.sleep(_POLL_S)
    time.sleep(1)
    _step_print(f"asked to leave {_KEPT.count(signal.SIGTERM)} times")
    _step_exit(str(EXIT_RETRYABLE))


def _step_sleep(value: str) -> None:
    time.sleep(float(value))


def _step_report(value: str) -> None:
    report = {"cause": value, "message": f"reported {value}", "traceback": None}
    _task_file("report.json").write_text(json.dumps(report))


def _step_ignore_term(_value: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


_STRAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(300)
"""


def _step_stray(_value: str) -> None:
    # The parent exits at once; its child has neither its session nor a living parent. Not all
    # images have a shell.
    subprocess.run([sys.executable, "-c", _STRAY], check=True)


def _step_signal(value: str) -> None:
    os.kill(os.getpid(), int(value))
    _step_wait("")


def _step_raise(value: str) -> None:
    raise RuntimeError(value)


def _step_wait(_value: str) -> None:
    while True:
        signal.pause()


def _step_exit(value: str) -> None:
    sys.exit(int(value))


if __name__ == "__main__":
    main(sys.argv[1:])
