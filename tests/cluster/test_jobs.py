"""The contract of engines, kept by the Kubernetes engine on a real cluster."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster
from tests.contracts.engines import EngineContract, EngineHarness, eventually, harness
from timonel.engines import JobSpec, JobState
from timonel.engines.kubernetes import KubernetesEngine
from timonel.engines.kubernetes.files.changes import SharedContents
from timonel.engines.kubernetes.files.index_store import IndexStore
from timonel.storage import Workspace, find_workspace

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
_DEADLINE_S = 120.0
_WRITE = """
import pathlib, sys
(root,) = pathlib.Path("/work/cache/timonel/workspaces").glob("*/jobs/" + sys.argv[1])
(root / sys.argv[2]).write_text(sys.argv[3])
"""


@dataclass
class ClusterHarness(EngineHarness):
    """The engine with a real cluster."""

    cluster: Cluster | None = None
    workspace: Workspace | None = None

    def kubectl(self, *arguments: str) -> str:
        assert self.cluster is not None
        return self.cluster.run(*arguments)

    def pods(self, job_id: str, role: str = "") -> list[str]:
        """Return the pods of a job, or of a role, that have not ended."""
        labels = f"timonel.dev/job={job_id}" + (f",timonel.dev/role={role}" if role else "")
        shown = self.kubectl(
            *("get", "pods", "-l", labels, "-o", "name"),
            "--field-selector=status.phase!=Succeeded,status.phase!=Failed",
        )
        return shown.split()

    def run_in(self, pod: str, program: str, *arguments: str) -> None:
        self.kubectl("exec", pod, "--", "python3", "-c", program, *arguments)

    def kill_task(self, job_id: str, task_id: str) -> None:
        pid = next(t.pid for t in self.engine.status(job_id).tasks if t.task_id == task_id)
        role, _, index = task_id.rpartition("-")
        prefix = f"pod/{job_id}-{role}-{index}-"
        (pod,) = (name for name in self.pods(job_id, role) if name.startswith(prefix))
        self.run_in(pod, f"import os; os.kill({pid}, {int(signal.SIGKILL)})")

    def read_file(self, name: str, job_id: str = "job") -> str | None:
        assert self.workspace is not None
        assert self.workspace.local_copy is not None
        store = self.workspace.local_copy.store
        found = IndexStore(store, job_id).load().files.get(f"jobs/{job_id}/{name}")
        if found is None:
            return None
        return b"".join(map(SharedContents(store, job_id).read, found.parts or ())).decode()

    def write_file(self, name: str, text: str = "", job_id: str = "job") -> None:
        # Before, the coordinator makes its folder equal to the one in the bucket.
        eventually(lambda: self.engine.status(job_id).state is not JobState.PENDING)
        (pod,) = self.pods(job_id, "coordinator")
        self.run_in(pod, _WRITE, job_id, name, text)

    def leftovers(self) -> list[str]:
        return [pod for status in self.engine.jobs() for pod in self.pods(status.job_id)]

    def temporary_files(self) -> list[str]:
        return self.leftovers()  # they go with the pods

    def submit_and_die(self, spec: JobSpec) -> None:
        submitter = os.fork()
        if submitter == 0:
            self.engine.submit(spec)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(submitter, 0)

    def close(self) -> None:
        try:
            super().close()
        finally:
            for status in self.engine.jobs():
                self.kubectl("delete", "job", status.job_id, "--cascade=foreground")


class TestKubernetes(EngineContract):
    @pytest.fixture
    def engine(
        self,
        cluster: Cluster,
        job_image: str,
        job_bucket: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> ClusterHarness:
        monkeypatch.setenv("TIMONEL_KUBERNETES_IMAGE", job_image)
        monkeypatch.setattr(harness, "DEADLINE_S", _DEADLINE_S)
        source = tmp_path / "program"
        source.mkdir()
        (source / "source.txt").write_text("")
        workspace = find_workspace(job_bucket)
        engine = KubernetesEngine.of(workspace)
        return ClusterHarness(engine, str(source), cluster=cluster, workspace=workspace)
