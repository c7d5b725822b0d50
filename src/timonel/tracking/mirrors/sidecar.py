"""``python -m timonel.tracking.mirrors.sidecar WORKSPACE [RUN_ID]``: feed mirrors.

With a run, it works beside the run's job at the lowest priority, never affects the job's result,
and continues until the run's end is mirrored. On SIGTERM, or when the parent process is gone, it
mirrors the current events and exits. Without a run, it feeds all ended runs that are behind.
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

from timonel.logs import configure_logging
from timonel.processes.tree import lower_priority
from timonel.storage.locks import LockedError, exclusive
from timonel.storage.workspace import Workspace, find_workspace
from timonel.tracking.events import FILE_NAME, FINISH, EventReader, is_over
from timonel.tracking.mirrors.base import Mirror, installed_mirrors
from timonel.tracking.mirrors.feed import MirrorFeed, SyncResult, sync_pending
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
    configure_logging()
    lower_priority(19)
    workspace = find_workspace(options.workspace, create=False, offline=True)
    mirrors = installed_mirrors(workspace)
    if options.run_id is None:
        _log_results(catch_up(workspace, mirrors))
        return 0
    shutdown = _Shutdown()
    follow(
        workspace,
        options.run_id,
        mirrors,
        stop=shutdown.is_set,
        wait=shutdown.wait,
        interval_s=options.interval,
    )
    # Earlier processes may have been killed before they finished. The time is limited here,
    # too: the next process continues.
    deadline = time.monotonic() + _TIME_FOR_OTHERS_S
    stop = lambda: shutdown.is_set() or time.monotonic() > deadline  # noqa: E731 - for two lines
    _log_results(sync_pending(workspace, mirrors, stop))
    return 0


def follow(
    workspace: Workspace,
    run_id: str,
    mirrors: Sequence[Mirror],
    *,
    stop: Callable[[], bool],
    wait: Callable[[float], object] = time.sleep,
    interval_s: float = 3.0,
) -> list[SyncResult]:
    """Feed mirrors while a run is in progress; return the last results.

    Returns once all mirrors have the run's end, or have failed several times after it. Once
    ``stop()`` is true, it returns after one last sync.

    Args:
        wait: Waits between syncs; may return early.
        interval_s: Seconds between syncs.
    """
    # Give the job a head start: wait for its first metrics or end, for a limited time.
    reader = EventReader(workspace.runs / run_id / FILE_NAME)
    _wait_until(
        lambda: any(event["type"] in {"metrics", FINISH} for event in reader.read()),
        stop,
        wait,
        _HEAD_START_S,
    )
    run = read_run(workspace, run_id)
    # Feed explicitly requested mirrors first: imports are slow on a busy machine.
    interested = [mirror for mirror in mirrors if mirror.wants(run)]
    interested.sort(key=lambda mirror: mirror.wants_all)
    feeds = [MirrorFeed(workspace, run_id, mirror) for mirror in interested]
    end = _EndWatcher(workspace, run_id)
    attempts = 0
    while True:
        stopping = stop()
        has_ended = end.has_ended()
        attempts += has_ended
        results = [feed.sync() for feed in feeds]
        _log_results(results)
        if (
            stopping
            or attempts >= _ATTEMPTS_AFTER_END
            or all(result.is_complete for result in results)
        ):
            return results
        # After the run's end its job waits for this process.
        _wait_until(lambda: end.has_ended() != has_ended, stop, wait, interval_s)  # noqa: B023 - called at once


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
                "timonel.tracking.mirrors.sidecar",
                workspace.uri,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=workspace.root,
            start_new_session=True,
        )
    # A long-lived program must not keep a zombie, and a short-lived one must not wait.
    threading.Thread(target=process.wait, daemon=True).start()


def catch_up(workspace: Workspace, mirrors: Sequence[Mirror]) -> list[SyncResult]:
    """Feed all ended runs, unless another process is doing so."""
    results: list[SyncResult] = []
    with contextlib.suppress(LockedError), exclusive(workspace.root / LOCK, timeout_s=0.0):
        # Further runs may end meanwhile; their processes skip this because the lock is held.
        while done := [each for each in sync_pending(workspace, mirrors) if not each.error]:
            results += done
    return results


class _EndWatcher:
    """Incremental check for a run's finish event."""

    def __init__(self, workspace: Workspace, run_id: str) -> None:
        self._reader = EventReader(workspace.runs / run_id / FILE_NAME)
        self._has_ended = False

    def has_ended(self) -> bool:
        self._has_ended = is_over(self._reader.read(), self._has_ended)
        return self._has_ended


class _Shutdown:
    """Whether this process should exit: after a signal, or without its parent."""

    def __init__(self) -> None:
        self._signal = threading.Event()
        self._parent = os.getppid()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._signal.set())

    def is_set(self) -> bool:
        return self._signal.is_set() or os.getppid() != self._parent

    def wait(self, seconds: float) -> None:
        self._signal.wait(seconds)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m timonel.tracking.mirrors.sidecar")
    parser.add_argument("workspace", help="the workspace's location")
    parser.add_argument("run_id", nargs="?", help="the run to follow; by default all ended runs")
    parser.add_argument("--interval", type=float, default=3.0, help="seconds between syncs")
    return parser.parse_args(arguments)


def _wait_until(
    done: Callable[[], bool],
    stop: Callable[[], bool],
    wait: Callable[[float], object],
    limit_s: float,
) -> None:
    waited_s = 0.0
    while waited_s < limit_s and not stop() and not done():
        wait(_TICK_S)
        waited_s += _TICK_S


def _log_results(results: Sequence[SyncResult]) -> None:
    for result in results:
        if result.error:
            _logger.warning("%s: %s is behind: %s", result.run_id, result.mirror, result.error)
        elif result.events:
            _logger.info("%s: sent %d events to %s", result.run_id, result.events, result.mirror)


if __name__ == "__main__":
    sys.exit(main())
