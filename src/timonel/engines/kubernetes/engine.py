"""Kubernetes engine: jobs as pods of a cluster, each with a coordinator of its own."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

from timonel.engines.base import (
    ElasticEngine,
    Engine,
    JobState,
    JobStatus,
    LogLine,
    PreviewingEngine,
    ResumingEngine,
)
from timonel.engines.coordination.elastic import check_sizes
from timonel.engines.kubernetes import pods
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.index_store import IndexStore
from timonel.engines.kubernetes.job_log import LogReader
from timonel.engines.kubernetes.job_store import (
    bucket_of,
    delete_spec,
    read_outcome,
    read_spec,
    shared_folder,
    stage_source,
    write_spec,
)
from timonel.engines.kubernetes.manifests import Manifest, job_manifests, owned
from timonel.engines.kubernetes.names import (
    SIZES_ANNOTATION,
    STATUS_KEY,
    STOP_ANNOTATION,
    all_coordinators,
    coordinator_pods,
)
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.spec import JobSpec
from timonel.errors import AlreadyExistsError, EngineError, JobError, NotFoundError
from timonel.storage import Workspace, find_workspace

_POLL_S = 0.5
_REMOVAL_S = 120.0


class KubernetesEngine(Engine, ElasticEngine, PreviewingEngine, ResumingEngine):
    """Runs jobs in the namespace of the user's context, without anything installed there.

    All state is in the cluster and in the workspace's bucket.

    Args:
        workspace: A workspace in a bucket.
        api: The cluster.
        settings: Settings of the cluster.
    """

    name = "kubernetes"

    def __init__(self, workspace: Workspace, api: Api, settings: ClusterSettings) -> None:
        self._workspace = workspace
        self._api = api
        self._settings = settings.model_copy(update={"namespace": api.namespace})

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Return the engine of the cluster that kubectl would use.

        Raises:
            SpecError: The workspace is not in a bucket.
            InputError: There is no such cluster.
        """
        if workspace.is_remote and workspace.local_copy is None:  # was found without its bucket
            workspace = find_workspace(workspace.uri, create=False)
        bucket_of(workspace)
        settings = ClusterSettings.of(os.environ)
        return cls(workspace, Api.connect(settings), settings)

    def submit(self, spec: JobSpec) -> None:
        """Start a job; return when the cluster has accepted all of its objects.

        Raises:
            AlreadyExistsError: A job of that ID exists.
            SpecError: Kubernetes cannot run the job as it is specified.
            EngineError: The cluster refuses it; nothing of it is left.
        """
        manifests = self._manifests(spec, JobStatus.of(spec, time.time()))
        job_id = spec.job_id
        self._check_new(job_id)
        try:
            job = self._api.create(manifests[0])
        except AlreadyExistsError:
            raise _exists(job_id) from None
        try:
            self._upload(spec)
            self._complete(manifests, job)
        except BaseException:
            self._api.delete("Job", job_id)  # with all that it owns
            delete_spec(self._workspace, job_id)
            raise

    def preview(self, spec: JobSpec) -> list[Manifest]:
        """Return a job's manifests; asks the cluster for nothing.

        The first one is suspended. `submit` makes it the owner of all others, and starts it.
        """
        return self._manifests(spec, JobStatus.of(spec, time.time()))

    def resume(self, job_id: str) -> None:
        """Resume a failed or stopped job: as another Job, with its files and its generation.

        Raises:
            JobError: The job has not ended, or has succeeded.
            EngineError: The cluster refuses it; the job remains as it ended.
        """
        status = self.status(job_id)
        if not status.state.is_final or status.state is JobState.SUCCEEDED:
            raise JobError(
                f"only a failed or stopped job can be resumed, but {job_id} is {status.state.value}"
            )
        manifests = self._manifests(read_spec(self._workspace, job_id), status.resumed())
        self._remove(job_id)
        job = self._api.create(manifests[0])
        try:
            self._complete(manifests, job)
        except BaseException:
            self._api.delete("Job", job_id)
            raise

    def status(self, job_id: str) -> JobStatus:
        """Return the current status of a job."""
        status = self._last_status(job_id)
        if status.state is not JobState.PENDING:
            return status
        for pod in self._api.list("Pod", coordinator_pods(job_id)):
            if why := pods.why(pod, time.time()):
                return status.model_copy(update={"message": f"its coordinator {why}"})
        return status

    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield lines of task output, oldest first within each task."""
        self._last_status(job_id)
        known = read_spec(self._workspace, job_id).task_ids
        if task_id is not None and task_id not in known:
            raise NotFoundError(
                f"{job_id} has no task {task_id}", hint=f"its tasks: {', '.join(known)}"
            )
        return self._lines(job_id, task_id, follow=follow)

    def cancel(self, job_id: str) -> None:
        """Request that a job stops; return when the request is recorded."""
        if self.status(job_id).state.is_final:
            return
        note = {STOP_ANNOTATION: "cancelled by the user"}
        self._api.patch("Job", job_id, {"metadata": {"annotations": note}})

    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        """Request sizes of elastic roles; return when the request is recorded."""
        state = self._last_status(job_id).state
        check_sizes(read_spec(self._workspace, job_id).roles, sizes)
        if state.is_final:
            raise JobError(f"{job_id} cannot change its size: it has ended ({state.value})")
        job = self._api.get("Job", job_id)
        notes = job["metadata"].get("annotations") or {}
        wanted = {**json.loads(notes.get(SIZES_ANNOTATION, "{}")), **sizes}
        note = {SIZES_ANNOTATION: json.dumps(wanted, sort_keys=True)}
        version = job["metadata"]["resourceVersion"]
        metadata = {"annotations": note, "resourceVersion": version}
        self._api.patch("Job", job_id, {"metadata": metadata})

    def jobs(self) -> list[JobStatus]:
        """Return the status of every job in the namespace, newest first."""
        found = map(_status_of, self._api.list("ConfigMap", all_coordinators()))
        return sorted(found, key=lambda status: status.created_at, reverse=True)

    def _upload(self, spec: JobSpec) -> None:
        """Put the program, the specification and the files of a job into the bucket."""
        staged = stage_source(self._workspace, spec)
        index = IndexStore(bucket_of(self._workspace).store, spec.job_id)
        for change in shared_folder(self._workspace, staged, is_hub=True).scan():
            index.add(change)
        index.save()
        write_spec(self._workspace, staged)

    def _manifests(self, spec: JobSpec, status: JobStatus) -> list[Manifest]:
        token = secrets.token_hex(16)
        return job_manifests(spec, self._settings, self._workspace.uri, token, status)

    def _check_new(self, job_id: str) -> None:
        """Check that no earlier job, which the cluster has forgotten, has the ID."""
        try:
            read_spec(self._workspace, job_id)
        except NotFoundError:
            return
        raise _exists(job_id)

    def _complete(self, manifests: list[Manifest], job: Mapping[str, Any]) -> None:
        """Create all that belongs to a coordinator's Job, and start it."""
        for manifest in owned(manifests, job["metadata"]["uid"]):
            self._api.create(manifest)
        self._api.patch("Job", job["metadata"]["name"], {"spec": {"suspend": False}})

    def _remove(self, job_id: str) -> None:
        """Delete the objects of a job that has ended, and wait until they are gone."""
        try:
            job = self._api.get("Job", job_id)
            uid = job["metadata"]["uid"]
            self._api.delete("Job", job_id, propagation="Foreground", uid=uid)
            deadline = time.monotonic() + _REMOVAL_S
            while self._api.get("Job", job_id)["metadata"]["uid"] == uid:
                if time.monotonic() > deadline:
                    raise EngineError(
                        f"the pods of {job_id} have not ended within {_REMOVAL_S:g} s",
                        hint="see 'kubectl get pods', then try again",
                    )
                time.sleep(_POLL_S)
        except NotFoundError:
            return

    def _last_status(self, job_id: str) -> JobStatus:
        try:
            return _status_of(self._api.get("ConfigMap", job_id))
        except NotFoundError:
            found = read_outcome(self._workspace, job_id)
        if found is None:
            raise NotFoundError(f"no such job: {job_id}", hint="'timonel jobs' lists the jobs")
        return found

    def _lines(self, job_id: str, task_id: str | None, *, follow: bool) -> Iterator[LogLine]:
        reader = LogReader(bucket_of(self._workspace).store, job_id)
        while True:
            # Asked before reading, so that lines written before the end are still read.
            is_over = not follow or self.status(job_id).state.is_final
            for line in reader.read():
                if task_id in {None, line.task_id}:
                    yield line
            if is_over:
                return
            time.sleep(_POLL_S)


def _status_of(config_map: Mapping[str, Any]) -> JobStatus:
    return JobStatus.model_validate_json(config_map["data"][STATUS_KEY])


def _exists(job_id: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"the job {job_id} exists already", hint="choose another id")
