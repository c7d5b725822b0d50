"""What a coordinator asks of the cluster, in a thread of its own: the job runs on without it.

Once a second it reads the requests of users, publishes a new status and new sizes of roles, and
renews the lease by which only one coordinator works. While pods are missing it also looks at the
pods: why they do not run, and which belong to a lost node and must be deleted by force.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from timonel.engines.base import JobStatus
from timonel.engines.kubernetes import pods
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.lease import Lease, LostLeaseError
from timonel.engines.kubernetes.names import (
    INDEX_ANNOTATION,
    QUEUED,
    ROLE_LABEL,
    SIZES_ANNOTATION,
    STATUS_KEY,
    STOP_ANNOTATION,
    job_objects,
    role_job,
)
from timonel.errors import NotFoundError, TimonelError

_EVERY_S = 1.0
_GRACE_S = 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeenCluster:
    """What the cluster says.

    Attributes:
        is_stopped: Whether a user asked the job to stop.
        sizes: Sizes that users asked for, by role.
        reasons: Why the pod of a task does not run, in words, by task.
    """

    is_stopped: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


class ApiThread:
    """Talks to the API server for one job.

    Args:
        lease: The coordinator's lease, which is renewed.
    """

    def __init__(self, api: Api, job_id: str, lease: Lease) -> None:
        self._api = api
        self._job_id = job_id
        self._lease = lease
        self._lock = threading.Lock()
        self._status: JobStatus | None = None
        self._published: JobStatus | None = None
        self._is_unpublished = False
        self._sizes: dict[str, int] = {}
        self._resized: dict[str, int] = {}
        self._missing: frozenset[str] = frozenset()
        self._unwanted: set[str] = set()
        self._seen = SeenCluster()
        self._is_new = False
        self._error: Exception | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when the cluster says something new."""
        return self._wake

    def read(self) -> SeenCluster:
        """Return what the cluster says."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._seen

    def check_lease(self) -> None:
        """Check the lease, also while a request hangs."""
        self._lease.check()

    def publish(self, status: JobStatus) -> None:
        """Publish a status soon; only the latest one counts."""
        with self._lock:
            self._status = status
        self._asked.set()

    def resize(self, sizes: Mapping[str, int]) -> None:
        """Set the number of pods of each role."""
        with self._lock:
            self._sizes = dict(sizes)
        self._asked.set()

    def expect(self, missing: Iterable[str]) -> None:
        """Set the tasks whose pods are missing."""
        with self._lock:
            self._missing = frozenset(missing)

    def delete(self, pod: str) -> None:
        """Delete a pod that does not answer, and whose task has stopped."""
        with self._lock:
            self._unwanted.add(pod)
        self._asked.set()

    def keep(self, pod: str) -> None:
        """Do not delete a pod that answers again, unless it is deleted already."""
        with self._lock:
            self._unwanted.discard(pod)

    def close(self, timeout_s: float) -> None:
        """Publish what is left, and end; give up after ``timeout_s``."""
        self._closed.set()
        self._asked.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        look_at = 0.0
        while True:
            self._asked.wait(max(0.0, look_at - time.monotonic()))
            self._asked.clear()
            closing = self._closed.is_set()
            with self._lock:
                status, requested, missing = self._status, dict(self._sizes), self._missing
            own = partial(self._publish, status, closing), partial(self._resize, requested)
            if closing:
                if all(map(self._run_step, (*own, partial(self._leave_queue, requested)))):
                    return
                time.sleep(_EVERY_S)
                continue
            try:
                # Each on its own: without a ConfigMap, the job still keeps its lease and can stop.
                steps: list[Callable[[], None]] = [self._lease.renew, *own, self._delete_asked]
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _EVERY_S
                    steps.append(partial(self._look, missing))
                succeeded = [self._run_step(step) for step in steps]
            except LostLeaseError as error:
                with self._lock:
                    self._error = error
                os.eventfd_write(self._wake, 1)
                return
            if not all(succeeded):
                time.sleep(_EVERY_S)

    def _run_step(self, step: Callable[[], None]) -> bool:
        """Run a step; return whether it succeeded."""
        try:
            step()
        except LostLeaseError:
            raise
        except TimonelError as error:
            logger.warning("%s", error)
            return False
        except Exception:
            logger.exception("cannot follow the cluster")
            return False
        return True

    def _publish(self, status: JobStatus | None, closing: bool) -> None:
        if status is None or status == self._published:
            return
        try:
            body = {"data": {STATUS_KEY: status.model_dump_json()}}
            self._api.patch("ConfigMap", self._job_id, body)
        except NotFoundError:
            if closing:
                return  # the bucket has it
            if not self._is_unpublished:
                logger.warning(
                    "the ConfigMap %s was deleted: 'timonel jobs show %s' creates it again",
                    self._job_id,
                    self._job_id,
                )
            self._is_unpublished = True
            return
        self._published, self._is_unpublished = status, False

    def _resize(self, requested: Mapping[str, int]) -> None:
        for role, size in requested.items():
            if self._resized.get(role) != size:
                self._api.patch("Job", role_job(self._job_id, role), _size(size))
                self._resized[role] = size

    def _look(self, missing: frozenset[str]) -> None:
        job = self._api.get("Job", self._job_id)
        notes = job["metadata"].get("annotations") or {}
        reasons = self._look_at_pods() if missing else {}
        seen = SeenCluster(
            is_stopped=STOP_ANNOTATION in notes,
            sizes=json.loads(notes.get(SIZES_ANNOTATION, "{}")),
            reasons={task: why for task, why in reasons.items() if task in missing},
        )
        with self._lock:
            is_new, self._seen = seen != self._seen, seen
        if is_new:
            os.eventfd_write(self._wake, 1)

    def _look_at_pods(self) -> dict[str, str]:
        found = {}
        now = time.time()
        listed = self._api.list("Pod", job_objects(self._job_id))
        # A failed pod remains beside the one that replaces it: the newest reason counts.
        for pod in sorted(listed, key=pods.created):
            metadata = pod["metadata"]
            index = (metadata.get("annotations") or {}).get(INDEX_ANNOTATION)
            if pods.is_lost(pod, now):
                self._delete_now(metadata["name"])
            elif index is not None and (why := pods.why(pod, now) or pods.starting(pod, now)):
                found[f"{metadata['labels'][ROLE_LABEL]}-{index}"] = why
        return found

    def _leave_queue(self, requested: Mapping[str, int]) -> None:
        """Delete the pods of a job that has ended, if it was in a queue.

        The group would else keep its quota if a pod is missing, as Kueue expects another one.
        """
        if not requested or any(requested.values()):
            return
        for pod in self._api.list("Pod", {**job_objects(self._job_id), **QUEUED}):
            self._delete(pod["metadata"]["name"])

    def _delete_asked(self) -> None:
        with self._lock:
            unwanted = sorted(self._unwanted)
        for pod in unwanted:
            self._delete(pod)
            self.keep(pod)

    def _delete(self, pod: str) -> None:
        with contextlib.suppress(NotFoundError):
            self._api.delete("Pod", pod, grace_s=_GRACE_S)

    def _delete_now(self, name: str) -> None:
        logger.warning("the node of pod %s is lost: deleting the pod by force", name)
        # Its Job keeps a deleted pod and does not replace it until its node says that it has ended,
        # or somebody who knows better, as Kubernetes itself does for nodes that no longer exist.
        status = {"phase": "Failed", "reason": "NodeLost"}
        try:
            self._api.patch("Pod", name, {"status": status}, subresource="status")
            self._api.delete("Pod", name, grace_s=0)
        except NotFoundError:
            return


def _size(size: int) -> dict[str, Any]:
    # A Job without completions would be complete at once, and for good.
    if size == 0:
        return {"spec": {"suspend": True}}
    return {"spec": {"suspend": False, "completions": size, "parallelism": size}}
