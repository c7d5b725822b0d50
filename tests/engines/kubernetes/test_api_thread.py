"""What a coordinator learns about the pods of its job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.engines import eventually
from tests.engines.kubernetes.memory_api import MemoryApi
from timonel.engines import JobStatus
from timonel.engines.kubernetes import api_thread as module
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError
from timonel.engines.kubernetes.api_thread import ApiThread
from timonel.engines.kubernetes.lease import Lease

_INDEX = "batch.kubernetes.io/job-completion-index"


def _pod(name: str, created: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": f"2026-01-01T{created}Z",
            "labels": {"timonel.dev/role": "worker"},
            "annotations": {_INDEX: "0"},
        },
        "spec": {"containers": [{"image": "team/train:1"}]},
        "status": status,
    }


def test_the_reason_of_the_newest_pod_of_a_task_counts() -> None:
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
    message = "0/3 nodes are available: 3 Insufficient memory."
    unscheduled = {"type": "PodScheduled", "status": "False", "message": message}
    api = MemoryApi()
    # Lists are ordered by name, and the ends of names are random.
    for pod in (
        _pod("one-worker-0-aaaaa", "12:00:00", phase="Pending", conditions=[unscheduled]),
        _pod("one-worker-0-zzzzz", "11:00:00", **evicted),
    ):
        api.objects["Pod", pod["metadata"]["name"]] = pod
    thread = ApiThread(api, "one", Lease(api, "one", "one-0"))
    assert thread._look_at_pods() == {
        "worker-0": "cannot be scheduled: of 3 nodes, 3 lack free memory"
    }


def test_a_task_whose_pod_starts_is_described() -> None:
    api = MemoryApi()
    container = {"state": {"waiting": {"reason": "ContainerCreating"}}}
    pod = _pod("one-worker-0-aaaaa", "12:00:00", containerStatuses=[container])
    pod["status"]["startTime"] = "2026-01-01T12:00:00Z"
    api.objects["Pod", "one-worker-0-aaaaa"] = pod
    thread = ApiThread(api, "one", Lease(api, "one", "one-0"))
    assert thread._look_at_pods() == {"worker-0": "is pulling its image or mounting its volumes"}


@pytest.mark.parametrize(("size", "is_left"), [(0, False), (1, True)])
def test_a_job_that_has_ended_leaves_its_queue(size: int, is_left: bool) -> None:
    api = MemoryApi()
    # Another coordinator that continues the job needs its pod.
    api.objects["Pod", "one-worker-0-aaaaa"] = _pod("one-worker-0-aaaaa", "12:00:00")
    for each in (("Job", "one"), ("Job", "one-worker"), ("Lease", "one")):
        api.objects[each] = {"metadata": {"resourceVersion": "1"}, "spec": {}}
    lease = Lease(api, "one", "one-0")
    lease.acquire()
    thread = ApiThread(api, "one", lease)
    thread.resize({"worker": size})
    thread.start()
    thread.close(10.0)
    assert (("Pod", "one-worker-0-aaaaa") in api.objects) is is_left


def test_without_a_config_map_the_lease_is_renewed_and_requests_are_read() -> None:
    api = MemoryApi()
    for each in (("Job", "one"), ("Lease", "one")):
        api.objects[each] = {"metadata": {"resourceVersion": "1"}, "spec": {}}
    lease = Lease(api, "one", "one-0")
    lease.acquire()
    api.objects["Lease", "one"]["spec"] = {"holderIdentity": "one-0"}
    api.objects["Job", "one"]["metadata"]["annotations"] = {"timonel.dev/stop": "by the user"}
    thread = ApiThread(api, "one", lease)
    thread.publish(JobStatus(job_id="one"))
    lease._renewed_at -= 30
    begun = lease._renewed_at
    thread.start()
    eventually(lambda: thread.read().is_stopped)
    assert lease._renewed_at > begun
    thread.close(10.0)
    assert not thread._thread.is_alive()


class AwayApi(MemoryApi):
    """A cluster that answers no request to delete until it is back."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = True
        self.attempts: list[str] = []
        self.deleted: list[str] = []

    def delete(self, kind: str, name: str, **options: Any) -> None:
        del kind, options
        if self.is_away:
            self.attempts.append(name)
            raise ClusterUnavailableError("the API server does not answer")
        self.deleted.append(name)


def test_a_pod_is_deleted_once_the_api_server_is_back_unless_it_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.01)
    api = AwayApi()
    for each in (("Job", "one"), ("Lease", "one")):
        api.objects[each] = {"metadata": {"resourceVersion": "1"}, "spec": {}}
    lease = Lease(api, "one", "one-0")
    lease.acquire()
    thread = ApiThread(api, "one", lease)
    for pod in ("one-worker-0-aaaaa", "one-worker-1-aaaaa"):
        thread.delete(pod)
    thread.start()
    eventually(lambda: bool(api.attempts))
    thread.keep("one-worker-0-aaaaa")
    tried = len(api.attempts)
    eventually(lambda: len(api.attempts) > tried + 1)
    api.is_away = False
    eventually(lambda: bool(api.deleted))
    thread.close(10.0)
    assert api.deleted == ["one-worker-1-aaaaa"]
