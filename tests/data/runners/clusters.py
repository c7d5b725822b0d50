"""Standalone clusters of Flink and Spark on this machine, of JVMs started one by one.

The folder ``TIMONEL_BEAM_JARS`` has their jars, in ``flink`` and ``spark``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.waiting import until
from timonel.processes.ports import PortReservation

_FOLDER = Path(os.environ.get("TIMONEL_BEAM_JARS") or "-")
JARS = _FOLDER if _FOLDER.is_dir() and shutil.which("java") else None

# Java 17 closes these packages, which Flink, Spark and Kryo use by reflection.
_OPEN = [
    option
    for package in (
        *("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "text", "time"),
        *("util", "util.concurrent", "util.concurrent.atomic", "util.concurrent.locks"),
    )
    for option in (f"--add-opens=java.base/java.{package}=ALL-UNNAMED",)
] + [
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    "--add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED",
]


@dataclass
class Cluster:
    """Processes of a cluster, stopped with it.

    Args:
        folder: Receives their logs and files.
        options: Options of Beam's pipeline that runs on the cluster.
    """

    folder: Path
    options: str = ""
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Start a process of the cluster."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def children(self, name: str) -> list[psutil.Process]:
        """Return the processes that a process of the cluster started."""
        return psutil.Process(self.processes[name].pid).children(recursive=True)

    def kill(self, name: str) -> None:
        """Kill a process without a warning."""
        self.processes[name].kill()
        self.processes[name].wait()

    def close(self) -> None:
        """Stop all processes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ask(self, path: str) -> Any:
        """Return what the cluster's REST interface answers."""
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.load(answer)

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )


@contextlib.contextmanager
def flink(folder: Path) -> Iterator[Cluster]:
    """Start a JobManager, two TaskManagers with two slots each, and a pool of Python workers."""
    assert JARS is not None
    with PortReservation(3) as ports:
        rpc, rest, pool = (address.rpartition(":")[2] for address in ports)
    settings = {
        "jobmanager.rpc.address": "localhost",
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": "localhost",
        "jobmanager.memory.heap.size": "384m",
        "jobmanager.memory.off-heap.size": "128m",
        "jobmanager.memory.jvm-metaspace.size": "256m",
        "jobmanager.memory.jvm-overhead.min": "128m",
        "jobmanager.memory.jvm-overhead.max": "128m",
        "rest.address": "localhost",
        "rest.port": rest,
        "rest.bind-address": "localhost",
        "taskmanager.host": "localhost",
        "taskmanager.bind-host": "localhost",
        "taskmanager.numberOfTaskSlots": "2",
        "classloader.resolve-order": "parent-first",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "10",
        "restart-strategy.fixed-delay.delay": "2 s",
        "heartbeat.interval": "2000",
        "heartbeat.timeout": "12000",
        "io.tmp.dirs": str(folder),
    }
    (folder / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in settings.items()))
    classes = ["-cp", f"{JARS}/flink/*"]
    place = ["--configDir", str(folder)]
    memory = {
        "taskmanager.cpu.cores": "1.0",
        "taskmanager.memory.task.heap.size": "384m",
        "taskmanager.memory.task.off-heap.size": "64m",
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
        "taskmanager.memory.managed.size": "128m",
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "192m",
        "taskmanager.memory.jvm-overhead.max": "192m",
    }
    runtime = "org.apache.flink.runtime"
    cluster = Cluster(folder, address=f"localhost:{rest}")
    try:
        main = f"{runtime}.entrypoint.StandaloneSessionClusterEntrypoint"
        cluster.start("jobmanager", "java", "-Xmx384m", *_OPEN, *classes, main, *place)
        for name in ("tm1", "tm2"):
            given = {**memory, "taskmanager.resource-id": name}
            cluster.start(
                name,
                *("java", "-Xmx640m", "-XX:MaxDirectMemorySize=512m", *_OPEN, *classes),
                *(f"{runtime}.taskexecutor.TaskManagerRunner", *place),
                *(part for key, value in given.items() for part in ("-D", f"{key}={value}")),
            )
        _start_pool(cluster, pool)
        until(lambda: _read(cluster, "/overview", "slots-total") == 4, seen=cluster.logs)
        jar = _launcher(folder, "flink", "flink.FlinkJobServerDriver")
        cluster.options = (
            f"runner=FlinkRunner,flink_master=localhost:{rest},flink_job_server_jar={jar},"
            f"environment_type=EXTERNAL,environment_config=localhost:{pool},parallelism=2,"
            f"job_server_jvm_properties=-Xmx512m"
        )
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[Cluster]:
    """Start a master, two workers with one core each, and a pool of Python workers."""
    assert JARS is not None
    with PortReservation(3) as ports:
        rpc, rest, pool = (address.rpartition(":")[2] for address in ports)
    # Spark starts executors with the jars of this folder, as if it were installed.
    home = folder / "spark"
    home.mkdir()
    (home / "jars").symlink_to(JARS / "spark")
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.12",
    }
    deploy = ["-cp", f"{home}/jars/*"]
    cluster = Cluster(folder, address=f"localhost:{rest}")
    try:
        cluster.start(
            "master",
            *("java", "-Xmx256m", *_OPEN, *deploy, "org.apache.spark.deploy.master.Master"),
            *("--host", "127.0.0.1", "--port", rpc, "--webui-port", rest),
            **environment,
        )
        for name in ("worker1", "worker2"):
            cluster.start(
                name,
                *("java", "-Xmx256m", *_OPEN, *deploy, "org.apache.spark.deploy.worker.Worker"),
                *("-c", "1", "-m", "1g", "--host", "127.0.0.1", "--webui-port", "0"),
                *("-d", str(folder / name), f"spark://127.0.0.1:{rpc}"),
                **environment,
            )
        _start_pool(cluster, pool)
        until(lambda: _read(cluster, "/json/", "aliveworkers") == 2, seen=cluster.logs)
        jar = _launcher(folder, "spark", "spark.SparkJobServerDriver")
        cluster.options = (
            f"runner=SparkRunner,spark_master_url=spark://127.0.0.1:{rpc},"
            f"spark_job_server_jar={jar},environment_type=EXTERNAL,"
            f"environment_config=localhost:{pool},job_server_jvm_properties=-Xmx512m"
        )
        yield cluster
    finally:
        cluster.close()


def _start_pool(cluster: Cluster, port: str) -> None:
    # The pool starts workers with the first "python" of the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    module = "apache_beam.runners.worker.worker_pool_main"
    cluster.start("pool", sys.executable, "-m", module, f"--service_port={port}", PATH=path)


def _read(cluster: Cluster, path: str, name: str) -> Any:
    with contextlib.suppress(OSError):
        return cluster.ask(path)[name]
    return None


def _launcher(folder: Path, engine: str, main: str) -> Path:
    """Write a jar that names the jars of the job server, which Beam starts with ``java -jar``."""
    assert JARS is not None
    listed = " ".join(path.as_uri() for path in sorted((JARS / engine).glob("*.jar")))
    lines = ["Manifest-Version: 1.0", f"Main-Class: org.apache.beam.runners.{main}"]
    rest = f"Class-Path: {listed}"
    # Lines of manifests have at most 72 bytes; a space continues one.
    lines.append(rest[:70])
    lines += [f" {rest[at : at + 69]}" for at in range(70, len(rest), 69)]
    made = folder / f"{engine}.jar"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("META-INF/MANIFEST.MF", "\n".join(lines) + "\n")
    return made
