"""``python -m timonel.tracking.mirror WORKSPACE RUN_ID [--follow]``: feed a run's mirrors.

It runs beside a job at the lowest priority, and never affects the job's result. With ``--follow``
it continues until the run's end is mirrored. On SIGTERM, or when the parent process is gone, it
mirrors the current events and exits. With ``--pending`` instead of a run it feeds all runs that
have ended and are behind.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from timonel.processes.tree import lower_priority
from timonel.storage.locks import LockedError, exclusive
from timonel.storage.workspace import Workspace, find_workspace
from timonel.tracking.events import FILE_NAME, FINISH, EventReader, is_over
from timonel.tracking.mirrors.base import Mirror
from timonel.tracking.mirrors.feed import Fed, Feed, sync_pending, sync_run
from timonel.tracking.mirrors.registry import installed_mirrors
from timonel.tracking.reading import read_run

_logger = logging.getLogger(__name__)

# Importing a tracker takes seconds of processor time, which a starting job needs more.
_HEAD_START_S = 20.0
_ATTEMPTS_AFTER_END = 3
_TIME_FOR_OTHERS_S = 20.0
_TICK_S = 0.25
LOG = "mirrors.log"
LOCK = "mirrors.lock"


def main(arguments: Sequence[str] | None = None) -> int:
    """Feed mirrors as set by the command line; return 0."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    lower_priority(19)
    workspace = find_workspace(options.workspace, create=False)
    mirrors = installed_mirrors(workspace)
    if options.pending:
        _report(catch_up(workspace, mirrors))
    elif options.follow:
        stopping = _Stopping()
        follow(workspace, options.run_id, mirrors, stop=stopping.is_set, wait=stopping.wait,
               interval_s=options.interval)  # fmt: skip
        # Earlier processes may have been killed before they finished. The time is limited here,
        # too: the next process continues.
        deadline = time.monotonic() + _TIME_FOR_OTHERS_S
        _report(
            sync_pending(
                workspace, mirrors, lambda: stopping.is_set() or time.monotonic() > deadline
            )
        )
    else:
        _report(sync_run(workspace, options.run_id, mirrors))
    return 0


def follow(
    workspace: Workspace,
    run_id: str,
    mirrors: Sequence[Mirror],
    *,
    stop: Callable[[], bool],
    wait: Callable[[float], object] = time.sleep,
    interval_s: float = 3.0,
) -> list[Fed]:
    """Feed mirrors while a run is in progress; return the last results.

    Returns once all mirrors have the run's end, or have failed several times after it. Once
    ``stop()`` is true, it returns after one last sync.

    Args:
        workspace: The workspace of the run.
        run_id: The run.
        mirrors: The mirrors to feed.
        stop: Called between syncs.
        wait: Waits between syncs; may return early.
        interval_s: Seconds between syncs.
    """
    _give_head_start(workspace, run_id, stop, wait)
    run = read_run(workspace, run_id)
    # Feed explicitly requested mirrors first: imports are slow on a busy machine.
    wanted = sorted(filter(lambda mirror: mirror.wants(run), mirrors), key=lambda m: m.wants_all)
    feeds = [Feed(workspace, run_id, mirror) for mirror in wanted]
    end = _End(workspace, run_id)
    attempts = 0
    while True:
        stopping = stop()
        attempts += end.is_there()
        results = [feed.sync() for feed in feeds]
        _report(results)
        if stopping or attempts >= _ATTEMPTS_AFTER_END or all(fed.is_complete for fed in results):
            return results
        _wait_for_end(end, stop, wait, interval_s)


def mirror_in_background(workspace: Workspace) -> None:
    """Start a process that feeds ended runs to mirrors; do not wait.

    For work without its own mirror process, such as a conversion. Does nothing unless an installed
    mirror takes every run.
    """
    if not any(mirror.wants_all for mirror in installed_mirrors(workspace)):
        return
    with (workspace.root / LOG).open("ab") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "timonel.tracking.mirror",
                str(workspace.root),
                "--pending",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=workspace.root,
            start_new_session=True,
        )
    # A long-lived program must not keep a zombie, and a short-lived one must not wait.
    threading.Thread(target=process.wait, daemon=True).start()


def catch_up(workspace: Workspace, mirrors: Sequence[Mirror]) -> list[Fed]:
    """Feed all ended runs, unless another process is doing so."""
    results: list[Fed] = []
    with contextlib.suppress(LockedError), exclusive(workspace.root / LOCK, timeout_s=0.0):
        # Further runs may end meanwhile; their processes skip this because the lock is held.
        while fed := [each for each in sync_pending(workspace, mirrors) if not each.error]:
            results += fed
    return results


class _End:
    """Incremental check for a run's finish event."""

    def __init__(self, workspace: Workspace, run_id: str) -> None:
        self._reader = EventReader(workspace.runs / run_id / FILE_NAME)
        self._is_there = False

    def is_there(self) -> bool:
        self._is_there = is_over(self._reader.read(), self._is_there)
        return self._is_there


class _Stopping:
    """Whether this process should end: after a signal, or without its parent."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._asked.set())

    def is_set(self) -> bool:
        return self._asked.is_set() or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        self._asked.wait(seconds)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m timonel.tracking.mirror")
    parser.add_argument("workspace", type=Path, help="the workspace's folder")
    parser.add_argument("run_id", nargs="?", help="the run to mirror")
    parser.add_argument("--pending", action="store_true", help="mirror all runs that have ended")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between syncs")
    options = parser.parse_args(arguments)
    if options.pending == (options.run_id is not None):
        parser.error("expected a run or --pending")
    return options


def _give_head_start(
    workspace: Workspace, run_id: str, stop: Callable[[], bool], wait: Callable[[float], object]
) -> None:
    """Wait for the first metrics or the end, for a limited time.

    The limit covers the job's start.
    """
    reader = EventReader(workspace.runs / run_id / FILE_NAME)
    waited_s = 0.0
    while waited_s < _HEAD_START_S and not stop():
        if any(event["type"] in {"metrics", FINISH} for event in reader.read()):
            return
        wait(_TICK_S)
        waited_s += _TICK_S


def _wait_for_end(
    end: _End, stop: Callable[[], bool], wait: Callable[[float], object], seconds: float
) -> None:
    """Wait for ``seconds``, or until the run ends.

    Then its job waits for this process.
    """
    had_ended = end.is_there()
    waited_s = 0.0
    while waited_s < seconds and not stop() and end.is_there() == had_ended:
        wait(_TICK_S)
        waited_s += _TICK_S


def _report(results: Sequence[Fed]) -> None:
    for fed in results:
        if fed.error:
            _logger.warning("%s: %s is behind: %s", fed.run_id, fed.mirror, fed.error)
        elif fed.events:
            _logger.info("%s: %s was given %d events", fed.run_id, fed.mirror, fed.events)


if __name__ == "__main__":
    sys.exit(main())
