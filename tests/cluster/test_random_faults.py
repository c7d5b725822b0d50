"""Training on a real cluster that loses something at a random moment, round by round."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.conftest import BucketServer, Cluster
from tests.cluster.test_jobs import ClusterHarness
from tests.cluster.test_training import (
    delete_chief,
    delete_coordinator,
    delete_worker,
    ended,
    kill_process,
    kubelab,
    node_of,
    paced,
    pods,
    results,
    undisturbed,
    workspace,
)
from timonel.engines import JobState
from timonel.storage import Workspace
from timonel.training.handles import Run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    # The registry, the nodes and the bucket are in network namespaces of this machine.
    pytest.mark.enable_socket,
]
__all__ = ["pods", "workspace"]  # fixtures
_ROUNDS = 20
_LATEST_S = 5.0
"""After its first step, a run takes longer: half a second for each of twelve epochs."""
_AWAY_S = 30.0
Undo = Callable[[], Any]


class Faults:
    """What rounds do to a job; each returns how to undo it."""

    def __init__(self, cluster: Cluster, pods: ClusterHarness, bucket: BucketServer) -> None:
        self._cluster = cluster
        self._pods = pods
        self._bucket = bucket

    def kill_process(self, run: Run) -> Undo | None:
        kill_process(self._pods, run)
        return None

    def delete_worker(self, run: Run) -> Undo | None:
        delete_worker(self._pods, run)
        return None

    def delete_chief(self, run: Run) -> Undo | None:
        delete_chief(self._pods, run)
        return None

    def delete_coordinator(self, run: Run) -> Undo | None:
        delete_coordinator(self._pods, run)
        return None

    def drain(self, run: Run) -> Undo | None:
        node = node_of(self._pods, run, "worker")
        selector = f"--pod-selector=timonel.dev/job={run.id}"
        self._cluster.run("drain", node, "--delete-emptydir-data", selector, "--timeout=120s")
        return lambda: self._cluster.run("uncordon", node)

    def kill_node(self, run: Run) -> Undo | None:
        node = node_of(self._pods, run, "worker")
        kubelab("node-kill", node.removeprefix("node"))
        return lambda: self._start(node, "node-start")

    def stop_kubelet(self, run: Run) -> Undo | None:
        node = node_of(self._pods, run, "worker")
        kubelab("kubelet-stop", node.removeprefix("node"))
        return lambda: self._start(node, "kubelet-start")

    def stop_bucket(self, run: Run) -> Undo | None:
        assert self._bucket.process is not None
        self._bucket.process.send_signal(signal.SIGSTOP)
        time.sleep(_AWAY_S)
        self._bucket.process.send_signal(signal.SIGCONT)
        return None

    def _start(self, node: str, command: str) -> None:
        kubelab(command, node.removeprefix("node"))
        self._cluster.run("wait", f"node/{node}", "--for=condition=Ready", "--timeout=120s")


_OF_PODS = ("kill_process", "delete_worker", "delete_chief", "delete_coordinator", "drain")
_OF_KUBELAB = ("kill_node", "stop_kubelet", "stop_bucket")


@pytest.mark.parametrize("seed", range(_ROUNDS))
def test_training_ends_with_the_same_weights(
    cluster: Cluster,
    bucket_server: BucketServer,
    pods: ClusterHarness,
    workspace: Workspace,
    seed: int,
) -> None:
    choice = random.Random(seed)
    names = _OF_PODS + (_OF_KUBELAB if cluster.is_own else ())
    # Each fault comes in turn, at another moment.
    name = names[seed % len(names)]
    moment_s = choice.uniform(0, _LATEST_S)
    expected = undisturbed(pods, workspace)
    run = paced(pods, workspace, detach=True)
    while not any(event["type"] == "progress" for event in run.record.events()):
        time.sleep(0.2)
        assert not run.job.status().state.is_final, run.job.status()
    time.sleep(moment_s)
    undo = getattr(Faults(cluster, pods, bucket_server), name)(run)
    try:
        status = ended(f"round {seed}, {name} after {moment_s:.1f} s", run)
    finally:
        if undo is not None:
            undo()
    assert status.state is JobState.SUCCEEDED, status
    assert results(pods, run) == expected
