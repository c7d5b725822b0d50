"""The sides of the benchmark of serving: ours, the peers', and references without a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import _dialects
from _dialects import Ask
from _jobs import TIMONEL

HERE = Path(__file__).parent
PEERS = HERE / "peers"
_RAY_REPLICAS = 16
"""Ports for replicas: more than there are, since one that is given back rests for a while."""
REST, GRPC, CALLS = "REST", "gRPC", "calls"


@dataclass(frozen=True)
class Ports:
    """Free ports from ``rest`` on, and a folder for what a server writes; its path is short."""

    rest: int
    folder: Path

    @property
    def grpc(self) -> int:
        """The port for gRPC."""
        return self.rest + 1

    def more(self, begin: int) -> int:
        """Return one more port."""
        return self.rest + 2 + begin


@dataclass(frozen=True)
class Model:
    """A model that is to be served.

    Attributes:
        name: Its name.
        folder: The folder of its versions.
        row: The shape of an instance.
        heavy: Whether a call takes milliseconds.
    """

    name: str
    folder: Path
    row: tuple[int, ...]
    heavy: bool

    @property
    def version(self) -> Path:
        """The folder of its one version."""
        return self.folder / "1"


Start = Callable[[Model, Ports], tuple[Sequence[str], Mapping[str, str]]]
"""Returns a command, and what is added to its environment."""


@dataclass(frozen=True, eq=False)
class Side:
    """A server as somebody would set it up.

    Attributes:
        name: What the result calls it.
        processes: Processes that answer or compute; None for a bound.
        start: How it is started.
        asks: What it speaks.
        peer: Whose it is; none if it is ours or a bound.
        runtime: What computes on our side.
        headers: What its gRPC wants besides.
    """

    name: str
    processes: int | None
    start: Start
    asks: Mapping[str, Ask] = field(default_factory=dict)
    peer: str | None = None
    runtime: str = "tensorflow"
    headers: tuple[str, ...] = ()

    @property
    def is_bound(self) -> bool:
        """Whether it is no server of models."""
        return self.processes is None


_V1 = {REST: _dialects.rest_v1, GRPC: _dialects.grpc_v1}


def _serve(*flags: str) -> Start:
    def start(model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
        command = [TIMONEL, "serve", str(model.folder), "--batching", "*", *flags,
                   "--rest-port", str(ports.rest), "--grpc-port", str(ports.grpc)]  # fmt: skip
        return command, {"TIMONEL_WORKSPACE": str(ports.folder / "workspace")}

    return start


def _model_server(model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
    program = Path(TIMONEL).with_name("timonel-model-server")
    return [str(program), f"--model_name={model.name}", f"--model_base_path={model.folder}",
            f"--rest_api_port={ports.rest}", f"--port={ports.grpc}"], {}  # fmt: skip


DEFAULT = Side("timonel serve", 1, _serve(), _V1)
MODEL_SERVER = Side("timonel-model-server", 1, _model_server, _V1)
LITERT = Side("timonel serve, litert", 1, _serve("--runtime", "litert"), _V1, runtime="litert")


def echo(answers: Mapping[str, Path]) -> Side:
    """Return the bound of the protocols, which answers with the contents of two files."""

    def start(_model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
        script = str(HERE / "scripts" / "serving_echo.py")
        command = [sys.executable, script, str(ports.rest), str(ports.grpc),
                   str(answers[REST]), str(answers[GRPC])]  # fmt: skip
        return command, {}

    return Side("echo", None, start, _V1)


def in_process(runtime: str, example: Path) -> Side:
    """Return the bound of computing."""

    def start(model: Model, _ports: Ports) -> tuple[list[str], dict[str, str]]:
        file = model.version if runtime == "tensorflow" else model.version / "model.tflite"
        script = str(HERE / "scripts" / "serving_bound.py")
        return [sys.executable, script, runtime, str(file), str(example)], {}

    named = {"tensorflow": "TensorFlow", "litert": "LiteRT"}[runtime]
    return Side(f"{named} in-process", None, start, {CALLS: _dialects.grpc_v1}, runtime=runtime)


def peers(*, heavy: bool) -> list[Side]:
    """Return the peers' servers, each with one and with two processes for the model.

    Args:
        heavy: Whether a call takes milliseconds, so that batching gains nothing on a processor.
    """
    sides = []
    for processes in (1, 2):
        for batching in (False,) if heavy else (False, True):
            sides += [_bentoml(processes, batching), ray(processes, batching)]
            if processes == 1 or not batching:
                sides.append(_mlserver(processes, batching))
        sides.append(_kserve(processes))
    return sides


def ready(peer: str) -> None:
    """Make a peer's virtual environment, unless it is there.

    Raises:
        OSError, subprocess.CalledProcessError: It cannot be made.
    """
    folder = PEERS / peer
    stamp = folder / ".venv" / ".ready"
    wanted = subprocess.run(["sha256sum", "requirements.txt"], cwd=folder, text=True,
                            capture_output=True, check=True).stdout  # fmt: skip
    if not (stamp.exists() and stamp.read_text() == wanted):
        uv = Path(sys.executable).with_name("uv")
        script = str(PEERS / "setup.sh")
        subprocess.run(["sh", script, str(uv), sys.executable, peer], check=True)


def _named(peer: str, processes: int, what: str, batching: bool) -> str:
    number = f"{processes} {what}{'s' if processes > 1 else ''}"
    return f"{peer}, {number}{', batching' if batching else ''}"


def _peer_env(peer: str, model: Model, batching: bool, processes: int) -> dict[str, str]:
    return {
        # Its own programs and its own script before whatever else is there.
        "PATH": f"{PEERS / peer / '.venv' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{PEERS / peer}:{PEERS}",
        "MODEL_FOLDER": str(model.version),
        "MODEL_NAME": model.name,
        "BATCHING": str(int(batching)),
        "HEAVY": str(int(model.heavy)),
        "PROCESSES": str(processes),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _program(peer: str, name: str) -> str:
    return str(PEERS / peer / ".venv" / "bin" / name)


def _bentoml(processes: int, batching: bool) -> Side:
    def start(model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
        env = _peer_env("bentoml", model, batching, processes)
        home = {"BENTOML_HOME": str(ports.folder / "bentoml"), "BENTOML_DO_NOT_TRACK": "true"}
        command = [_program("bentoml", "bentoml"), "serve", "server:Service", "--host",
                   "127.0.0.1", "--port", str(ports.rest), "--working-dir",
                   str(PEERS / "bentoml")]  # fmt: skip
        return command, {**env, **home}

    # Its gRPC went with the services of version 1.1.
    asks = {REST: _dialects.rest_of_a_function}
    name = _named("BentoML", processes, "worker", batching)
    return Side(name, processes, start, asks, peer="bentoml")


def _mlserver(processes: int, batching: bool) -> Side:
    def start(model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
        settings = {
            "HTTP_PORT": ports.rest, "GRPC_PORT": ports.grpc, "METRICS_PORT": ports.more(0),
            "HOST": "127.0.0.1", "DEBUG": "false", "MODEL_NAME": model.name,
            "METRICS_DIR": ports.folder / "metrics",
            "ENVIRONMENTS_DIR": ports.folder / "environments",
            "MODEL_IMPLEMENTATION": "server.SavedModelRuntime",
            # Workers compute apart from the process that has the ports; 0: there are none.
            "PARALLEL_WORKERS": processes if processes > 1 else 0,
        }  # fmt: skip
        if batching:
            settings |= {"MODEL_MAX_BATCH_SIZE": 16, "MODEL_MAX_BATCH_TIME": 0.001}
        env = _peer_env("mlserver", model, batching, processes)
        told = {f"MLSERVER_{name}": str(value) for name, value in settings.items()}
        return [_program("mlserver", "mlserver"), "start", str(ports.folder)], {**env, **told}

    asks = {REST: _dialects.rest_v2, GRPC: _dialects.grpc_v2}
    what = _named("MLServer", processes, "worker", batching)
    name = what if processes > 1 else what.replace("1 worker", "one process")
    return Side(name, processes, start, asks, peer="mlserver")


def _kserve(processes: int) -> Side:
    def start(model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
        command = [_program("kserve", "python"), str(PEERS / "kserve" / "server.py"),
                   "--http_port", str(ports.rest), "--grpc_port", str(ports.grpc),
                   "--model_name", model.name, "--workers", str(processes),
                   "--log_config_file",
            str(PEERS / "kserve" / "logging.json"),
            "--enable_latency_logging", "false", "--event-loop", "uvloop",
                   "--enable_grpc", str(processes == 1).lower()]  # fmt: skip
        return command, _peer_env("kserve", model, False, processes)

    # However many workers there are for REST, gRPC is answered by one process.
    asks = {REST: _dialects.rest_v1}
    if processes == 1:
        asks[GRPC] = _dialects.grpc_v2
    name = _named("KServe", processes, "worker", False)
    return Side(name, processes, start, asks, peer="kserve")


_RAY_PATIENCE = {
    # Where the machine is busy, its own 5 s are too few.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # Its parts ask each other whether they are alive: those that were frozen are.
    "RAY_health_check_period_ms": "3600000",
    "RAY_health_check_timeout_ms": "3600000",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "3600",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "3600",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "1000",
    "RAY_SERVE_HAPROXY_OBSERVE_MARK_DOWN_ENABLED": "0",
}


def _ray_ports(ports: Ports) -> dict[str, str]:
    # Where HAProxy finds replicas, and a proxy as long as there are none, are ports that clusters
    # on one machine would share, and wait for an answer of one that is frozen.
    ranges = {"HTTP": ports.more(4), "GRPC": ports.more(4 + _RAY_REPLICAS)}
    direct = {
        f"RAY_SERVE_DIRECT_INGRESS_{end}_{way}_PORT": str(first + more)
        for way, first in ranges.items()
        for end, more in (("MIN", 0), ("MAX", _RAY_REPLICAS - 1))
    }
    return {
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.more(0)),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.more(1)),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.more(2)),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.more(3)),
        **direct,
    }


def ray(processes: int, batching: bool, *, from_zero: bool = False) -> Side:
    """Return Ray Serve.

    Args:
        processes: Replicas; with ``from_zero`` the most of them.
        batching: Whether it puts requests together.
        from_zero: Whether there are replicas only while there is load.
    """

    def start(model: Model, ports: Ports) -> tuple[list[str], dict[str, str]]:
        env = _peer_env("ray", model, batching, processes) | {
            "REST_PORT": str(ports.rest),
            "GRPC_PORT": str(ports.grpc),
            "RAY_FOLDER": str(ports.folder),
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_SERVE_HAPROXY_NBTHREAD": "1",
            "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FROM_ZERO": str(int(from_zero)),
            **_ray_ports(ports),
            **_RAY_PATIENCE,
        }
        paths = {"CONFIG_FILE_LOC": "haproxy.cfg", "SOCKET_PATH": "admin.sock",
                 "SERVER_STATE_BASE": "", "SERVER_STATE_FILE": "server-state",
                 "METRICS_SOCKET_PATH": "metrics.sock"}  # fmt: skip
        env |= {
            f"RAY_SERVE_HAPROXY_{name}": str(ports.folder / file) for name, file in paths.items()
        }
        return [_program("ray", "python"), str(PEERS / "ray" / "server.py")], env

    asks = {REST: _dialects.rest_v1, GRPC: _dialects.grpc_v1}
    name = _named("Ray Serve with HAProxy", processes, "replica", batching)
    return Side(name, processes, start, asks, peer="ray", headers=("application: default",))
