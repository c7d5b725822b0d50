"""The node of a fake cluster: a pod's container as a process, with probes and restarts.

Times are shortened: a second of the pod's specification takes `SECOND_S`; limits of answers are as
specified. Each pod has an address of its own, so all replicas may listen on the same ports.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engines.local.harness import marked_processes

if TYPE_CHECKING:
    from tests.engines.kubernetes.fake_services import ServiceCluster

SECOND_S = 0.2
_POLL_S = 0.01
_MARK = "TIMONEL_TEST_CONTAINER"
_FIRST_BACKOFF = 10
_SHOWN_BYTES = 2048
_MOST_ADDRESSES = 60 * 250 * 250
# Test processes that run at the same time have PIDs close together: each gets a thousand addresses.
_ADDRESSES = count(os.getpid() * 1000)

Object = dict[str, Any]


class PodThread(threading.Thread):
    """A pod: starts its container again and again until it is stopped.

    Args:
        cluster: The cluster, which learns the pod's status.
        pod: The pod.
        folder: Folder for its output.
        env: Environment beside that of the manifest.
    """

    def __init__(
        self, cluster: ServiceCluster, pod: Object, folder: Path, env: Mapping[str, str]
    ) -> None:
        super().__init__(name=pod["metadata"]["name"], daemon=True)
        self._cluster = cluster
        self._pod = pod
        self._folder = folder
        self._env = env
        number = next(_ADDRESSES) % _MOST_ADDRESSES
        self._address = f"127.{1 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        (self._container,) = pod["spec"]["containers"]
        self._stopping = threading.Event()
        self._lines: list[tuple[str, str]] = []
        self._start_number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._status: Object = {"name": self._container["name"], "restartCount": 0}
        self._ready: tuple[bool, str] = (False, _stamp())
        self._killed_for: str | None = None

    @property
    def pid(self) -> int | None:
        """The process of the container."""
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """Stop the pod as its deletion asks for."""
        self._stopping.set()

    def kill(self) -> None:
        """End the pod at once."""
        self._stopping.set()
        if self._process is not None:
            self._process.kill()

    def log(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the output of the last start of the container."""
        from tests.engines.kubernetes.fake_cluster import RefusedError

        assert query["container"] == self._container["name"]
        if not self._start_number:
            raise RefusedError(400, "BadRequest", "the container is waiting to start")
        return self._log(self._lines, self._start_number, query)

    def _log(
        self, lines: list[tuple[str, str]], start: int, query: Mapping[str, str]
    ) -> Iterator[bytes]:
        since = query.get("sinceTime", "")[:19]
        position = 0
        while True:
            is_over = self._start_number != start or not self.is_alive() or self._has_ended()
            for stamp, text in lines[position:]:
                position += 1
                if stamp[:19] >= since:
                    yield f"{stamp} {text}\n".encode()
            if is_over or "follow" not in query:
                return
            time.sleep(_POLL_S)

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def run(self) -> None:
        """Run the pod."""
        self._publish(waiting={"reason": "ContainerCreating"})
        failures = 0
        while not self._stopping.is_set():
            self._run_container()
            if self._stopping.is_set():
                break
            backoff = _FIRST_BACKOFF * 2 ** (failures - 1) if failures else 0
            failures += 1
            if backoff:
                self._publish(waiting={"reason": "CrashLoopBackOff", "message": "back-off"})
                self._stopping.wait(backoff * SECOND_S)
            if not self._stopping.is_set():
                self._status["restartCount"] += 1
        self._cluster.remove(self.name)

    def _run_container(self) -> None:
        self._killed_for = None
        self._lines = []
        mark = f"{self.name}-{self._start_number}"
        started_at = _stamp()
        reader = self._start(mark)
        self._publish(running={"startedAt": started_at})
        self._supervise()
        assert self._process is not None
        code = self._process.wait()
        # Its other processes may start further ones while they are looked for.
        while reader.is_alive():
            for pid, _ in marked_processes(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            reader.join(_POLL_S)
        ended = {
            "exitCode": 128 - code if code < 0 else code,
            "reason": "Error" if code else "Completed",
            "startedAt": started_at,
            "finishedAt": _stamp(),
        }
        if code:
            text = "\n".join(line for _, line in self._lines)
            ended["message"] = text[-_SHOWN_BYTES:]
        self._set_ready(False)
        self._status["lastState"] = {"terminated": ended}
        self._publish(terminated=ended)

    def _start(self, mark: str) -> threading.Thread:
        container = self._container
        env = {**self._env, **self._environment(), "HOME": str(self._folder), _MARK: mark}
        program = [*container["command"], *container["args"]]
        program = [_expand(text, env) for text in program]
        assert program[0] == "python3"
        process = subprocess.Popen(
            [sys.executable, *program[1:]],
            env=env,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        lines = self._lines

        def read() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    now = datetime.now(UTC).isoformat(timespec="microseconds")
                    shown = line.decode(errors="replace").rstrip("\n")
                    lines.append((now.replace("+00:00", "000Z"), shown))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self._process = process
        self._start_number += 1
        return reader

    def _environment(self) -> dict[str, str]:
        fields = {"status.podIP": self._address, "metadata.name": self.name}
        found: dict[str, str] = {}
        for each in self._container["env"]:
            if "value" in each:
                found[each["name"]] = _expand(each["value"], found)
            else:
                found[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        return found

    def _supervise(self) -> None:
        """Probe the container until it ends or has been stopped."""
        probes = {
            name: Probe(self._address, self._container[f"{name}Probe"])
            for name in ("startup", "readiness", "liveness")
            if f"{name}Probe" in self._container
        }
        startup = probes.pop("startup")
        while not self._has_ended():
            if self._stopping.is_set():
                self._terminate(self._pod["spec"]["terminationGracePeriodSeconds"], delay=True)
                return
            if not startup.has_succeeded:
                startup.check()
                if startup.has_succeeded:
                    self._status["started"] = True
                    for probe in probes.values():
                        probe.reset()
                elif startup.failures >= startup.limit:
                    self._kill("startup", startup.grace)
                    return
            else:
                probes["readiness"].check()
                failures = probes["readiness"].failures
                if not failures or failures >= probes["readiness"].limit:
                    self._set_ready(not failures and not self._has_ended())
                if "liveness" in probes:
                    probes["liveness"].check()
                    if probes["liveness"].failures >= probes["liveness"].limit:
                        self._kill("liveness", probes["liveness"].grace)
                        return
            time.sleep(_POLL_S)

    def _kill(self, probe: str, grace: int) -> None:
        name = self._container["name"]
        message = f"Container {name} failed {probe} probe, will be restarted"
        self._cluster.report(self._pod, name, "Killing", message)
        self._terminate(grace, delay=False)

    def _terminate(self, grace: int, *, delay: bool) -> None:
        deadline = time.monotonic() + grace * SECOND_S
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook and delay:
            time.sleep(hook["sleep"]["seconds"] * SECOND_S)
        assert self._process is not None
        self._process.terminate()
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not self._has_ended():
            self._process.kill()

    def _set_ready(self, ready: bool) -> None:
        if self._ready[0] != ready:
            self._ready = (ready, _stamp())
            self._publish(**self._status["state"])

    def _publish(self, **state: Object) -> None:
        ready, since = self._ready
        if "running" not in state:
            self._status["started"] = False
        self._status |= {"state": state, "ready": ready}
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": since,
        }
        self._cluster.change(
            self.name,
            {
                "phase": "Running" if self._start_number else "Pending",
                "podIP": self._address,
                "conditions": [condition],
                "containerStatuses": [self._status],
            },
        )


class Probe:
    """A probe of a container.

    Attributes:
        failures: Failed checks in a row.
        has_succeeded: Whether the last check was successful.
    """

    def __init__(self, address: str, probe: Mapping[str, Any]) -> None:
        self._address = address
        self._probe = probe
        self.limit: int = probe["failureThreshold"]
        self.grace: int = probe.get("terminationGracePeriodSeconds", 30)
        self.failures = 0
        self.has_succeeded = False
        self._next = 0.0

    def reset(self) -> None:
        """Check at once."""
        self._next = 0.0

    def check(self) -> None:
        """Check if it is time."""
        if time.monotonic() < self._next:
            return
        self.has_succeeded = self._answers()
        self.failures = 0 if self.has_succeeded else self.failures + 1
        self._next = time.monotonic() + self._probe["periodSeconds"] * SECOND_S

    def _answers(self) -> bool:
        timeout_s = self._probe["timeoutSeconds"]
        try:
            if "tcpSocket" in self._probe:
                port = self._probe["tcpSocket"]["port"]
                socket.create_connection((self._address, port), timeout_s).close()
                return True
            action = self._probe["httpGet"]
            with contextlib.closing(
                http.client.HTTPConnection(self._address, action["port"], timeout=timeout_s)
            ) as connection:
                connection.request("GET", action["path"])
                return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False


def _expand(text: str, env: Mapping[str, str]) -> str:
    """Replace variables as Kubernetes does."""
    value: Callable[[re.Match[str]], str] = lambda match: (  # noqa: E731
        "$" if match[0] == "$$" else env.get(match[1], match[0])
    )
    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
