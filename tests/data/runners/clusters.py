"""Standalone clusters of Flink and Spark on this machine, of JVMs started one by one.

The folder ``TIMONEL_BEAM_JARS`` has their jars, in ``flink`` and ``spark``.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

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


class Cluster(abc.ABC):
    """Processes of a cluster, and a pool of Python workers.

    Args:
        folder: Receives their logs and files.
        rpc: Port where its machines find each other.
        rest: Port of its REST interface.
    """

    engine: ClassVar[str]
    server: ClassVar[str]
    """Main class of Beam's job server."""

    def __init__(self, folder: Path, rpc: str, rest: str) -> None:
        self.folder, self.rpc, self.rest = folder, rpc, rest
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {}
        self._killed: list[str] = []
        self.options = ""

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator[Self]:
        """Start a cluster; stop it after the block."""
        with PortReservation(3) as ports:
            rpc, rest, pool = (address.rpartition(":")[2] for address in ports)
        cluster = cls(folder, rpc, rest)
        try:
            cluster.start_machines()
            cluster.start_pool(pool)
            until(cluster.is_complete, 500, seen=cluster.logs)
            cluster.options = (
                f"{cluster.address()},environment_type=EXTERNAL,environment_config=localhost:{pool},"
                f"{cls.engine}_job_server_jar={cluster.job_server()},"
                "job_server_jvm_properties=-Xmx512m"
            )
            yield cluster
        finally:
            cluster.close()

    @abc.abstractmethod
    def start_machines(self) -> None:
        """Start the processes of the engine."""

    @abc.abstractmethod
    def is_complete(self) -> bool:
        """Tell whether all machines have joined."""

    @abc.abstractmethod
    def address(self) -> str:
        """Return Beam's options that name the runner and the cluster."""

    @abc.abstractmethod
    def busy(self) -> str:
        """Return the name of a process that runs tasks."""

    @abc.abstractmethod
    def has_jobs(self) -> bool:
        """Tell whether a job has not ended."""

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Start a process of the cluster."""
        self._commands[name] = command, environment
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def start_pool(self, port: str) -> None:
        """Start a pool of Python workers."""
        # The pool starts workers with the first "python" of the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        module = "apache_beam.runners.worker.worker_pool_main"
        self.start("pool", sys.executable, "-m", module, f"--service_port={port}", PATH=path)

    def children(self, name: str) -> list[psutil.Process]:
        """Return the processes that a process of the cluster started."""
        return psutil.Process(self.processes[name].pid).children(recursive=True)

    def kill(self, name: str) -> None:
        """Kill a machine without a warning: a process and its children."""
        children = self.children(name)  # the executor of a worker of Spark
        self.processes[name].kill()
        self.processes[name].wait()
        for child in children:
            child.kill()
        self._killed.append(name)

    def restore(self) -> None:
        """Start the machines again that were killed."""
        while self._killed:
            name = self._killed.pop()
            command, environment = self._commands[name]
            self.start(name, *command, **environment)
        until(self.is_complete, 500, seen=self.logs)

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
        """Return what the cluster's REST interface answers; None if it does not."""
        with contextlib.suppress(OSError):
            url = f"http://localhost:{self.rest}{path}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)
        return None

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def job_server(self) -> Path:
        """Write a jar that names those of the job server, which Beam starts with ``java -jar``."""
        assert JARS is not None
        listed = " ".join(path.as_uri() for path in sorted((JARS / self.engine).glob("*.jar")))
        lines = ["Manifest-Version: 1.0", f"Main-Class: org.apache.beam.runners.{self.server}"]
        rest = f"Class-Path: {listed}"
        # Lines of manifests have at most 72 bytes; a space continues one.
        lines.append(rest[:70])
        lines += [f" {rest[at : at + 69]}" for at in range(70, len(rest), 69)]
        made = self.folder / f"{self.engine}.jar"
        with zipfile.ZipFile(made, "w") as archive:
            archive.writestr("META-INF/MANIFEST.MF", "\n".join(lines) + "\n")
        return made


class Flink(Cluster):
    """A JobManager, and two TaskManagers with two slots each."""

    engine: ClassVar[str] = "flink"
    server: ClassVar[str] = "flink.FlinkJobServerDriver"

    def start_machines(self) -> None:
        settings = {
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": self.rpc,
            "jobmanager.bind-host": "localhost",
            "jobmanager.memory.heap.size": "384m",
            "jobmanager.memory.off-heap.size": "128m",
            "jobmanager.memory.jvm-metaspace.size": "256m",
            "jobmanager.memory.jvm-overhead.min": "128m",
            "jobmanager.memory.jvm-overhead.max": "128m",
            "rest.address": "localhost",
            "rest.port": self.rest,
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
            "io.tmp.dirs": str(self.folder),
            # For machines that run other tests, too.
            "pekko.startup-timeout": "120 s",
            "pekko.ask.timeout": "60 s",
        }
        lines = [f"{key}: {value}\n" for key, value in settings.items()]
        (self.folder / "config.yaml").write_text("".join(lines))
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
        java = ["java", "-XX:MaxDirectMemorySize=512m", *_OPEN, "-cp", f"{JARS}/flink/*"]
        place = ["--configDir", str(self.folder)]
        runtime = "org.apache.flink.runtime"
        main = f"{runtime}.entrypoint.StandaloneSessionClusterEntrypoint"
        self.start("jobmanager", *java, "-Xmx384m", main, *place)
        for name in ("tm1", "tm2"):
            given = {**memory, "taskmanager.resource-id": name}
            self.start(
                name,
                *(*java, "-Xmx640m", f"{runtime}.taskexecutor.TaskManagerRunner", *place),
                *(part for key, value in given.items() for part in ("-D", f"{key}={value}")),
            )

    def is_complete(self) -> bool:
        found = self.ask("/overview")
        return bool(found and found["slots-total"] == 4)

    def address(self) -> str:
        return f"runner=FlinkRunner,flink_master=localhost:{self.rest},parallelism=2"

    def busy(self) -> str:
        (job,) = (job for job in self.ask("/jobs/overview")["jobs"] if job["state"] == "RUNNING")
        for vertex in self.ask(f"/jobs/{job['jid']}")["vertices"]:
            found = self.ask(f"/jobs/{job['jid']}/vertices/{vertex['id']}/taskmanagers")
            for manager in found["taskmanagers"]:
                if manager["status"] == "RUNNING":
                    return str(manager["taskmanager-id"])
        raise AssertionError(self.logs())

    def has_jobs(self) -> bool:
        states = {job["state"] for job in self.ask("/jobs/overview")["jobs"]}
        return bool(states & {"CREATED", "RUNNING", "RESTARTING", "CANCELLING"})


class Spark(Cluster):
    """A master, and two workers with one core each."""

    engine: ClassVar[str] = "spark"
    server: ClassVar[str] = "spark.SparkJobServerDriver"

    def start_machines(self) -> None:
        assert JARS is not None
        # Spark starts executors with the jars of this folder, as if it were installed.
        home = self.folder / "spark"
        home.mkdir()
        (home / "jars").symlink_to(JARS / "spark")
        environment = {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.12",
        }
        java = ["java", "-Xmx256m", *_OPEN, "-cp", f"{home}/jars/*"]
        deploy = "org.apache.spark.deploy"
        place = ["--host", "127.0.0.1", "--webui-port"]
        master = f"{deploy}.master.Master"
        self.start("master", *java, master, *place, self.rest, "--port", self.rpc, **environment)
        for name in ("worker1", "worker2"):
            self.start(
                name,
                *(*java, f"{deploy}.worker.Worker", *place, "0", "-c", "1", "-m", "1g"),
                *("-d", str(self.folder / name), f"spark://127.0.0.1:{self.rpc}"),
                **environment,
            )

    def is_complete(self) -> bool:
        found = self.ask("/json/")
        return bool(found and found["aliveworkers"] == 2)

    def address(self) -> str:
        return f"runner=SparkRunner,spark_master_url=spark://127.0.0.1:{self.rpc}"

    def busy(self) -> str:
        return next(name for name in ("worker1", "worker2") if self.children(name))

    def has_jobs(self) -> bool:
        return bool(self.ask("/json/")["activeapps"])


class Client:
    """A process that runs a job on a cluster; killed after the block.

    Args:
        cluster: The cluster.
        program: Python code; its first argument are Beam's options.
        arguments: Its other arguments.
        finished: Folder where the job has a file for each finished shard.
        log: Receives its output.
    """

    def __init__(
        self, cluster: Cluster, program: str, *arguments: str, finished: Path, log: Path
    ) -> None:
        self._cluster, self._finished, self._log = cluster, finished, log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, cluster.options, *arguments],
                stdout=file,
                stderr=file,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def finished(self) -> int:
        """Return the number of finished shards."""
        return len(list(self._finished.glob("*.json")))

    def reach(self, shards: int) -> None:
        """Wait until so many shards are finished."""
        self._await(lambda: self.process.poll() is not None or self.finished() >= shards)
        assert self.process.poll() is None, self.logs()

    def lose_a_machine(self, shards: int) -> None:
        """Kill a busy machine while fewer than so many shards are finished; wait for the end."""
        self.reach(5)
        with stopped(self._cluster.children("pool")):
            assert self.finished() < shards
            self._cluster.kill(self._cluster.busy())
        self._await(lambda: self.process.poll() is not None)
        self._cluster.restore()
        assert self.process.returncode == 0, self.logs()

    def _await(self, condition: Callable[[], bool]) -> None:
        # Job servers and workers take minutes to start on a busy machine.
        until(condition, 500, poll_s=0.2, seen=self.logs)

    def logs(self) -> str:
        """Return the client's log and those of the cluster."""
        return f"{self._log.read_text()[-3000:]}\n{self._cluster.logs()}"


@contextlib.contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop processes for a while, so that a job does not end meanwhile."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
