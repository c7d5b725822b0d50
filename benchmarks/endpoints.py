"""Endpoints: what the gateway costs, and how long a request to an endpoint at zero takes.

Each figure is a pair from the same run: through the gateway, and at as many servers without one, in
turns. Ray Serve follows with the same load, once nothing else is deployed. Models are those of the
benchmark of serving: S (a small dense model) and M (MobileNetV2). It needs wrk and h2load (Debian:
apt install wrk nghttp2-client); Ray's environment is made at need.

usage: endpoints.py [--rows ROW ...] [--rounds 5] [--seconds 6] [--no-ray]
                    [--output benchmarks/results/endpoints.md]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

import _cores
import _load
import _measure
import _served
import _servers
import numpy as np
import psutil
from _jobs import TIMONEL, BenchmarkError
from _load import Sample, Target
from _main_job import HERE, free_port
from _ray_endpoint import RayServe

from timonel.endpoints import Endpoint, deploy
from timonel.storage import Workspace, find_workspace

_T = TypeVar("_T")
_RATE = 500
_CONNECTIONS = 10
_START_S = 120
_IDLE = {"window_s": 6, "scale_to_zero_grace_s": 0, "min_replicas": 0, "max_replicas": 1}
_BARE = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
import numpy as np
import tensorflow as tf

call = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
(name,) = call.structured_input_signature[1]

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = call(**{name: tf.constant(np.array(body["instances"], np.float32))})
        text = json.dumps({"predictions": next(iter(found.values())).numpy().tolist()}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


@dataclass(frozen=True)
class Row:
    """A line of the table.

    Attributes:
        what: What was measured.
        endpoint: Through the gateway.
        bare: Of servers without a gateway.
        compared: The difference or ratio of both.
        goal: Its goal.
        ray: The same of Ray Serve.
    """

    what: str
    endpoint: str
    bare: str
    compared: str
    goal: str
    ray: str


ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "latency": lambda bench: bench.latency(),
    "cpu": lambda bench: bench.cpu(),
    "M": lambda bench: bench.throughput("M", 1, "0.95"),
    "S": lambda bench: bench.throughput("S", 2, "0.85"),
    "zero-S": lambda bench: bench.cold_start("S"),
    "zero-M": lambda bench: bench.cold_start("M"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW",
                        help=", ".join(ROWS))  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--no-ray", action="store_true", help="leave out Ray Serve")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "endpoints.md")
    options = parser.parse_args()
    _load.require_tools()
    models = _served.models()
    rows: list[Row] = []
    # The control plane ends by itself after its last endpoint, and may still write.
    with tempfile.TemporaryDirectory(prefix="timonel-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        workspace = find_workspace(folder / ".timonel")
        for case in ("S", "M"):
            shutil.copytree(models.folder / models.cases[case].model, _place(workspace, case))
        bodies = {case: _body(folder, models.cases[case].x, case) for case in ("S", "M")}
        ray = None if options.no_ray else RayServe(models, options.rounds, options.seconds)
        bench = Bench(
            workspace, bodies, options.rounds, options.seconds, folder / "h2load.log", ray
        )
        for row in options.rows:
            rows += ROWS[row](bench)
    page = report(rows, options.rounds)
    print(page)
    options.output.write_text(page)


def _place(workspace: Workspace, case: str) -> Path:
    place = workspace.models / case.lower()
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _body(folder: Path, x: np.ndarray, case: str) -> Path:
    path = folder / f"{case}.json"
    path.write_text(json.dumps({"instances": x.tolist()}))
    return path


class Bench:
    """Measures endpoints of a workspace."""

    def __init__(
        self,
        workspace: Workspace,
        bodies: dict[str, Path],
        rounds: int,
        seconds: float,
        log: Path,
        ray: RayServe | None,
    ) -> None:
        self._workspace = workspace
        self._bodies = bodies
        self._rounds = rounds
        self._seconds = seconds
        self._log = log
        self._ray = ray

    def latency(self) -> list[Row]:
        """Compare latencies at a steady rate."""
        with self._deployed("S", 1) as endpoint, self._bare("S", 1) as servers:
            pairs = self._pairs(
                lambda url: _load.rest_at_rate(
                    self._target("S", url), _CONNECTIONS, _RATE, self._seconds, self._log
                ),
                endpoint.url,
                servers[0],
            )
        ray = self._of_ray(lambda ray: ray.latency("S", _CONNECTIONS, _RATE))
        rows = []
        for what, goal in (("p50", "0.5 ms"), ("p99", "2 ms")):
            through = statistics.median(getattr(gate, f"{what}_ms") for gate, _ in pairs)
            bare = statistics.median(getattr(direct, f"{what}_ms") for _, direct in pairs)
            rows.append(
                Row(
                    f"{what} at {_RATE} requests/s, S",
                    f"{through:.2f} ms",
                    f"{bare:.2f} ms",
                    f"{through - bare:+.2f} ms",
                    goal,
                    ray if isinstance(ray, str) else f"{getattr(ray, f'{what}_ms'):.2f} ms",
                )
            )
        return rows

    def cpu(self) -> list[Row]:
        """Compare the CPU time of a request in the processes that it passes."""
        found: list[list[float]] = []
        with self._deployed("S", 1) as endpoint, self._bare("S", 1) as servers:
            (replica,) = endpoint.services[1].ready
            gateway = _listening(endpoint.url.partition("//")[2])
            server = _listening(replica.addresses["http"])
            bare = _listening(servers[0].partition("//")[2])
            for _ in range(self._rounds + 1):
                through = self._cpu_us(endpoint.url, gateway, server)
                found.append([*through, *self._cpu_us(servers[0], bare)])
        envoy, own, alone = (statistics.median(each) for each in zip(*found[1:], strict=True))
        return [
            Row(
                "CPU of a request, S",
                f"{envoy + own:.0f} us, {envoy:.0f} us of which Envoy",
                f"{alone:.0f} us",
                f"{envoy + own - alone:+.0f} us",
                f"{envoy:.0f} us (Envoy's own)",
                "",
            )
        ]

    def _cpu_us(self, url: str, *processes: set[int]) -> list[float]:
        """Return the microseconds of CPU time that each set of processes takes for a request."""
        before = [_cpu_s(pids) for pids in processes]
        begun = time.perf_counter()
        sample = _load.rest(self._target("S", url), _CONNECTIONS, self._seconds)
        requests = sample.rate * (time.perf_counter() - begun)
        return [
            1e6 * (_cpu_s(pids) - was) / requests
            for pids, was in zip(processes, before, strict=True)
        ]

    def throughput(self, case: str, replicas: int, goal: str) -> list[Row]:
        """Compare requests per second as fast as they are answered."""
        connections = 8 * replicas
        with self._deployed(case, replicas) as endpoint, self._bare(case, replicas) as urls:
            # As many load generators on either side.
            gates = [endpoint.url] * replicas
            pairs = [
                (self._together(case, gates, connections), self._together(case, urls, connections))
                for _ in range(self._rounds + 1)
            ][1:]
        ratio = statistics.median(one.rate / other.rate for one, other in pairs)
        ray = self._of_ray(lambda ray: ray.throughput(case, replicas, connections))
        words = ("one", "two")[replicas - 1]
        return [
            Row(
                f"requests/s, {case}, {words} replica{'s' if replicas > 1 else ''}",
                f"{statistics.median(one.rate for one, _ in pairs):.0f}",
                f"{statistics.median(other.rate for _, other in pairs):.0f}",
                f"{ratio:.2f}",
                goal,
                ray if isinstance(ray, str) else f"{ray.rate:.0f}",
            )
        ]

    def _together(self, case: str, urls: list[str], connections: int) -> Sample:
        """Return requests per second of several load generators, one for each address."""
        share = connections // len(urls)
        with ThreadPoolExecutor(len(urls)) as pool:
            found = pool.map(
                lambda url: _load.rest(self._target(case, url), share, self._seconds), urls
            )
            return Sample(sum(each.rate for each in found), 0, 0)

    def cold_start(self, case: str) -> list[Row]:
        """Compare the first answer of an endpoint at zero with that of a new bare server."""
        pairs = []
        with self._deployed(case, 1) as endpoint:
            endpoint.change("idle", scaling={**endpoint.spec.scaling.model_dump(), **_IDLE})
            for _ in range(self._rounds):
                while endpoint.state != "idle" or any(
                    service.replicas for service in endpoint.services.values()
                ):
                    time.sleep(0.1)
                gate = _timed(lambda: self._ask(case, f"{endpoint.url}/v1/models/{case.lower()}"))
                pairs.append((gate, self._bare_start(case)))
        ratio = statistics.median(one / other for one, other in pairs)
        ray = self._of_ray(lambda ray: ray.first_answer(case))
        return [
            Row(
                f"first answer from zero, {case}",
                f"{statistics.median(one for one, _ in pairs):.2f} s",
                f"{statistics.median(other for _, other in pairs):.2f} s",
                f"{ratio:.2f}",
                "0.33",
                ray if isinstance(ray, str) else f"{ray:.2f} s",
            )
        ]

    def _of_ray(self, measure: Callable[[RayServe], _T]) -> _T | str:
        """Return what was measured, or why nothing was."""
        if self._ray is None:
            return ""
        try:
            return measure(self._ray)
        except (BenchmarkError, OSError, subprocess.SubprocessError) as error:
            return f"failed: {' '.join(str(error).replace('|', '/').split())[:200]}"

    def _bare_start(self, case: str) -> float:
        port = free_port()
        model = self._workspace.models / case.lower() / "1"
        begun = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", _BARE, str(model), str(port)],
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        ) as process:
            while True:
                with contextlib.suppress(OSError):
                    self._ask(case, f"http://127.0.0.1:{port}/x")
                    break
                time.sleep(0.02)
            took = time.perf_counter() - begun
            process.kill()
        return took

    def _ask(self, case: str, url: str) -> None:
        request = urllib.request.Request(f"{url}:predict", self._bodies[case].read_bytes())
        with urllib.request.urlopen(request, timeout=120) as response:
            assert "predictions" in json.load(response)

    def _pairs(
        self, measure: Callable[[str], Sample], gate: str, bare: str
    ) -> list[tuple[Sample, Sample]]:
        # The first round warms up.
        return [(measure(gate), measure(bare)) for _ in range(self._rounds + 1)][1:]

    def _target(self, case: str, url: str) -> Target:
        return Target(f"{url}/v1/models/{case.lower()}:predict", self._bodies[case], 20)

    @contextlib.contextmanager
    def _deployed(self, case: str, replicas: int) -> Iterator[Endpoint]:
        """Deploy a model; yield the endpoint once all replicas are ready."""
        endpoint = deploy(
            case.lower(),
            workspace=self._workspace,
            port=free_port(),
            min_replicas=replicas,
            max_replicas=replicas,
        )
        try:
            while len(endpoint.services[1].ready) < replicas:
                time.sleep(0.1)
            yield endpoint
        finally:
            endpoint.delete()

    @contextlib.contextmanager
    def _bare(self, case: str, count: int) -> Iterator[list[str]]:
        """Start servers of a model; yield their addresses once each has answered.

        Replicas listen on Unix sockets, which load generators cannot ask.
        """
        with contextlib.ExitStack() as stack:
            urls = []
            for _ in range(count):
                port, grpc_port = free_port(), free_port()
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                command = [TIMONEL, "serve", str(self._workspace.models / case.lower()),
                           "--rest-port", str(port), "--grpc-port", str(grpc_port)]  # fmt: skip
                server = _servers.Server(command, {}, folder, cores=_cores.machine())
                stack.callback(server.stop)
                urls.append(f"http://127.0.0.1:{port}")
                path = f"{urls[-1]}/v1/models/{case.lower()}:predict"
                _servers.first_answer(server, path, self._bodies[case].read_bytes(), _START_S)
            yield urls


def _listening(address: str) -> set[int]:
    """Return the PIDs of the processes that hold a ``host:port`` or ``unix:PATH`` open."""
    path = address.removeprefix("unix:")
    port = int(address.rpartition(":")[2]) if path == address else None
    found = {
        connection.pid
        for connection in psutil.net_connections("tcp" if port else "unix")
        if connection.pid
        and connection.laddr
        and (
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if port
            else connection.laddr == path
        )
    }
    if not found:
        raise BenchmarkError(f"no process listens at {address}")
    return found


def _cpu_s(pids: set[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def report(rows: list[Row], rounds: int) -> str:
    """Return the page."""
    lines = [
        "# Endpoints",
        "",
        (
            f"Medians of {rounds} rounds in turns; {_measure.machine()}; "
            f"commit {_measure.commit()}. wrk and h2load run on {len(_cores.client())} of "
            f"{len(_cores.machine())} cores, which servers use, too."
        ),
        "",
        "| | endpoint | bare | difference or ratio | goal | Ray Serve |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(astuple(row))} |" for row in rows),
        "",
        (
            "'bare' is `timonel serve` with the same model; for first answers, a new process of a "
            "program of 25 lines that imports TensorFlow, loads the SavedModel and answers with "
            "Python's `http.server`."
        ),
        "",
        (
            "Ray Serve has HAProxy before as many replicas. It follows each row alone, so compare "
            "it with the endpoint. From zero, it scales as fast as its settings allow; its cluster "
            "runs, as does the endpoint's control plane."
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
