"""The contract of engines, kept on a fake cluster whose pods are processes."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.contracts.engines import EngineContract, EngineHarness, eventually
from tests.engines.kubernetes.fake_cluster import FakeCluster
from tests.engines.local.harness import MARK, marked_processes
from timonel.engines import JobSpec, JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.storage import Workspace

pytestmark = [pytest.mark.process, pytest.mark.enable_socket]


@dataclass
class FakeHarness(EngineHarness):
    """The engine with a fake cluster."""

    cluster: FakeCluster | None = None

    def kill_task(self, job_id: str, task_id: str) -> None:
        tasks = {task.task_id: task.pid for task in self.engine.status(job_id).tasks}
        pid = tasks[task_id]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def job_dir(self, job_id: str) -> Path | None:
        """The job's folder in the pod of its latest coordinator."""
        assert self.cluster is not None
        pods = list((self.cluster.root / "pods").glob(f"{job_id}-0-*"))
        if not pods:
            return None
        latest = max(pods, key=lambda pod: (pod / "output").stat().st_ctime)
        return next(latest.glob(f"cache/timonel/workspaces/*/jobs/{job_id}"), None)

    def read_file(self, name: str, job_id: str = "job") -> str | None:
        folder = self.job_dir(job_id)
        path = None if folder is None else folder / name
        return path.read_text() if path is not None and path.is_file() else None

    def write_file(self, name: str, text: str = "", job_id: str = "job") -> None:
        # Before, the coordinator makes its folder equal to the one in the bucket.
        eventually(lambda: self.engine.status(job_id).state is not JobState.PENDING)
        folder = self.job_dir(job_id)
        assert folder is not None
        (folder / name).write_text(text)

    def leftovers(self) -> list[str]:
        assert self.cluster is not None
        pods = [name for name, each in self.cluster.processes.items() if each.popen.poll() is None]
        return [*pods, *(f"{pid}: {text}" for pid, text in marked_processes(self.env[MARK]))]

    def temporary_files(self) -> list[str]:
        assert self.cluster is not None
        return [str(path) for path in (self.cluster.root / "tmp").glob("timonel-task-*")]

    def submit_and_die(self, spec: JobSpec) -> None:
        submitter = os.fork()
        if submitter == 0:
            self.engine.submit(spec)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(submitter, 0)


class TestKubernetes(EngineContract):
    @pytest.fixture
    def engine(self, bucket: Workspace, cluster: FakeCluster, tmp_path: Path) -> FakeHarness:
        source = tmp_path / "program"
        source.mkdir()
        (source / "source.txt").write_text("")
        env = {MARK: uuid4().hex}
        engine = KubernetesEngine.of(bucket)
        return FakeHarness(engine, str(source), env=env, cluster=cluster)
