"""Kubernetes engine: jobs as pods of a cluster, each with a coordinator of its own."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from timonel.engines.base import (
    ElasticEngine,
    Engine,
    FileFetchingEngine,
    JobState,
    JobStatus,
    LogLine,
    PreviewingEngine,
    ResumingEngine,
)
from timonel.engines.commands import run_epilogue
from timonel.engines.coordination.elastic import check_sizes
from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.api_errors import ConflictError
from timonel.engines.kubernetes.job_log import LogReader
from timonel.engines.kubernetes.job_status import (
    deleted,
    is_incomplete,
    is_running_orphan,
    job_status,
    needs_coordinators,
    stopped,
)
from timonel.engines.kubernetes.job_store import (
    bucket_of,
    exists,
    fetch_files,
    parse_status,
    read_outcome,
    read_place,
    read_spec,
    read_status,
    write_status,
)
from timonel.engines.kubernetes.manifests import (
    Manifest,
    job_manifests,
    status_manifest,
    workspace_of,
)
from timonel.engines.kubernetes.names import (
    JOB_LABEL,
    SIZES_ANNOTATION,
    STATUS_KEY,
    STOP_ANNOTATION,
    all_coordinators,
    coordinator_pods,
)
from timonel.engines.kubernetes.prerequisites import (
    check_claim,
    check_pod_user,
    check_queue,
)
from timonel.engines.kubernetes.resumes import JobPlace, record_resume
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.kubernetes.submission import (
    Submission,
    delete_job,
    remove_job,
    remove_orphans,
)
from timonel.engines.spec import JobSpec
from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    EngineError,
    JobError,
    NotFoundError,
    TimonelError,
)
from timonel.storage import Workspace, find_workspace
from timonel.storage.uris import shared_folder

_POLL_S = 0.5

logger = logging.getLogger(__name__)


class KubernetesEngine(Engine, ElasticEngine, FileFetchingEngine, PreviewingEngine, ResumingEngine):
    """Runs jobs in the namespace of the user's context, without anything installed there.

    All state is in the cluster and in the workspace's bucket.

    Args:
        workspace: A workspace in a bucket, or in a folder that is used as one.
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
            SpecError: Pods do not see the workspace.
            InputError: There is no such cluster.
        """
        if workspace.is_remote and workspace.local_copy is None:  # was found without its bucket
            workspace = find_workspace(workspace.uri, create=False)
        settings = ClusterSettings.of(os.environ)
        settings.check_visible(workspace, "jobs")
        return cls(workspace, Api.connect(settings), settings)

    def sees(self, path: Path) -> bool:
        """Return whether pods see a path of this machine, on the claim."""
        return self._settings.sees(path)

    def submit(self, spec: JobSpec) -> None:
        """Start a job; return when the cluster has accepted all of its objects.

        Raises:
            AlreadyExistsError: A job of that ID exists.
            SpecError: Kubernetes cannot run the job as it is specified.
            EngineError: The cluster refuses it; nothing of it is left.
        """
        status = JobStatus.of(spec, time.time())
        manifests = self._manifests(spec, status)
        self._check_new(spec.job_id)
        self._check_cluster()
        Submission(self._workspace, self._api, manifests, status, spec).start()

    def preview(self, spec: JobSpec) -> list[Manifest]:
        """Return a job's manifests; asks the cluster for nothing.

        The first one is suspended. `submit` makes it the owner of all others, and starts it.
        """
        return self._manifests(spec, JobStatus.of(spec, time.time()))

    def resume(self, job_id: str) -> None:
        """Resume a failed or stopped job: as another Job, with its files and its generation.

        Raises:
            JobError: The job has not ended, has succeeded, or is being resumed by someone else.
            EngineError: The cluster refuses it; the job remains as it ended.
        """
        job, status = self._current(job_id)
        if not status.state.is_final or status.state is JobState.SUCCEEDED:
            raise JobError(
                f"only a failed or stopped job can be resumed, but {job_id} {status.state.phrase}"
            )
        manifests = self._manifests(read_spec(self._workspace, job_id), status.resumed())
        self._check_cluster()
        record_resume(bucket_of(self._workspace).store, status, JobPlace.of(self._api))
        if job is not None:
            remove_job(self._api, job)
        remove_orphans(self._api, job_id)
        Submission(self._workspace, self._api, manifests, status.resumed()).start()

    def status(self, job_id: str) -> JobStatus:
        """Return the current status of a job.

        If it has ended and no coordinator can record that, this records it.

        Raises:
            NotFoundError: There is no such job, or its submission has not completed.
            EngineError: The job is in another cluster or namespace.
            CorruptError: The status cannot be read.
        """
        return self._current(job_id)[1]

    def _current(self, job_id: str) -> tuple[Object | None, JobStatus]:
        """Return a job's Job in the cluster, if any, with its status; see `status`."""
        # The Job first: a coordinator publishes the end before it exits.
        found = self._api.find("Job", job_id)
        job = self._own(found)
        config_map = self._api.find("ConfigMap", job_id) if found is job else None
        published = None if config_map is None else _status_of(config_map)
        if job is not None:
            status = self._status(job, published)
        else:
            status = published if self._runs_on(job_id, published) else None
        if status is not None:
            return job, status
        recorded = read_status(self._workspace, job_id)
        if recorded is not None and (job or recorded.state.is_final):
            return job, recorded
        if job is not None:
            raise NotFoundError(
                f"the submission of {job_id} has not completed",
                hint="if it was interrupted, submit the job again",
            )
        try:
            place = read_place(self._workspace, job_id)
        except NotFoundError:
            hint = "'timonel jobs' lists the jobs"
            raise NotFoundError(f"no such job: {job_id}", hint=hint) from None
        place.check(job_id, JobPlace.of(self._api))
        if self._api.find("Job", job_id):
            raise EngineError(f"{job_id} was started {place} just now", hint="repeat the command")
        now = time.time()
        if published is not None:
            recorded = published
        if recorded is None:  # its submission was killed between its documents
            recorded = JobStatus.of(read_spec(self._workspace, job_id), now)
        status = deleted(recorded, now)
        self._record(status)
        remove_orphans(self._api, job_id)
        return None, status

    def _runs_on(self, job_id: str, published: JobStatus | None) -> bool:
        """Decide whether the published status of a job without a Job counts."""
        if published is None or published.state.is_final:
            return published is not None
        return any(map(is_running_orphan, self._api.list("Pod", coordinator_pods(job_id))))

    def logs(
        self, job_id: str, *, task_id: str | None = None, follow: bool = False
    ) -> Iterator[LogLine]:
        """Yield lines of task output, oldest first within each task."""
        self.status(job_id)
        known = read_spec(self._workspace, job_id).task_ids
        if task_id is not None and task_id not in known:
            raise NotFoundError(
                f"{job_id} has no task {task_id}", hint=f"its tasks: {', '.join(known)}"
            )
        return self._lines(job_id, task_id, follow=follow)

    def cancel(self, job_id: str) -> None:
        """Request that a job stops; return when the request is recorded.

        A job whose coordinator cannot start has ended then.
        """
        job, status = self._current(job_id)
        if status.state.is_final:
            return
        if job is None:  # its coordinator cannot see a request
            remove_orphans(self._api, job_id)
            self._record(stopped(status, time.time()))
            return
        note = {STOP_ANNOTATION: "cancelled by the user"}
        self._api.patch("Job", job_id, {"metadata": {"annotations": note}})
        self.status(job_id)

    def scale(self, job_id: str, sizes: Mapping[str, int]) -> None:
        """Request sizes of elastic roles; return when the request is recorded."""
        state = self.status(job_id).state
        check_sizes(read_spec(self._workspace, job_id).roles, sizes)
        if state.is_final:
            raise JobError(f"{job_id} cannot change its size: it has ended ({state.value})")
        job = self._api.get("Job", job_id)
        notes = job["metadata"].get("annotations") or {}
        requested = {**json.loads(notes.get(SIZES_ANNOTATION, "{}")), **sizes}
        note = {SIZES_ANNOTATION: json.dumps(requested, sort_keys=True)}
        version = job["metadata"]["resourceVersion"]
        metadata = {"annotations": note, "resourceVersion": version}
        self._api.patch("Job", job_id, {"metadata": metadata})

    def jobs(self) -> list[JobStatus]:
        """Return the status of every job of the workspace in the namespace, newest first.

        Jobs whose status cannot be read are left out, with a warning each.
        """
        jobs = self._api.list("Job", all_coordinators())  # first, as in `status`
        config_maps = {
            each["metadata"]["labels"][JOB_LABEL]: each
            for each in self._api.list("ConfigMap", all_coordinators())
        }
        found = []
        for job in filter(self._own, jobs):
            config_map = config_maps.get(job["metadata"]["name"])
            try:
                published = None if config_map is None else _status_of(config_map)
                status = self._status(job, published)
            except CorruptError as error:
                logger.warning("%s", error)
                continue
            if status is not None:
                found.append(status)
        return sorted(found, key=lambda status: status.created_at, reverse=True)

    def fetch(self, job_id: str, target: Path, selects: Callable[[str], bool]) -> None:
        """Copy files of a job's folder, as the coordinator has saved them last."""
        fetch_files(self._workspace, job_id, target, selects)

    def _own(self, job: Object | None) -> Object | None:
        """Return a Job if it is of this workspace; others share the namespace."""
        is_own = job is not None and workspace_of(job) == self._workspace.uri
        return job if is_own else None

    def _status(self, job: Object, published: JobStatus | None) -> JobStatus | None:
        """Return the status of a job in the cluster; None while it is being submitted."""
        job_id = job["metadata"]["name"]
        if published is not None and published.state.is_final:
            return published
        if "deletionTimestamp" in job["metadata"]:
            return read_outcome(self._workspace, job_id) or published
        if published is None and not is_incomplete(job):
            published = self._published_again(job)
        found = (
            self._api.list("Pod", coordinator_pods(job_id))
            if needs_coordinators(job, published)
            else []
        )
        status = job_status(job, published, found, time.time())
        if status is None or not status.state.is_final:
            return status
        try:
            return self._end(job, published, status)
        except ConflictError:  # something happened meanwhile
            return published
        except TimonelError as error:
            logger.warning("cannot record the end of %s: %s", job_id, error)
            return status

    def _published_again(self, job: Object) -> JobStatus | None:
        """Create the ConfigMap of a job again, which somebody deleted, with the recorded status.

        The coordinator, which may not create objects, continues from it.
        """
        status = read_status(self._workspace, job["metadata"]["name"])
        if status is not None and not status.state.is_final:
            try:
                self._api.create(status_manifest(status, job["metadata"]["uid"]))
            except AlreadyExistsError:
                pass  # somebody else was faster
            except TimonelError as error:
                logger.warning("cannot publish the status of %s: %s", status.job_id, error)
        return status

    def _end(self, job: Object, published: JobStatus | None, status: JobStatus) -> JobStatus:
        """Record the end of a job without a coordinator, and delete its objects."""
        job_id = job["metadata"]["name"]
        outcome = read_outcome(self._workspace, job_id)
        has_run = published is not None and published.state is not JobState.PENDING
        if outcome is not None and has_run and outcome.generation >= status.generation:
            status = outcome  # of a coordinator that could not publish it
        self._record(status)
        delete_job(self._api, job, version=job["metadata"]["resourceVersion"])
        return status

    def _record(self, status: JobStatus) -> None:
        """Run the epilogue of a job in place of its coordinator, and keep the outcome."""
        try:
            spec = read_spec(self._workspace, status.job_id)
        except NotFoundError:
            return  # its submission had not come that far
        for folder in spec.folders:
            parent, _, name = folder.rpartition("/")
            if parent == "runs":
                bucket_of(self._workspace).runs.pull(name)
        run_epilogue(spec, status)
        write_status(self._workspace, status)

    def _manifests(self, spec: JobSpec, status: JobStatus) -> list[Manifest]:
        token = secrets.token_hex(16)
        return job_manifests(spec, self._settings, self._workspace.uri, token, status)

    def _check_new(self, job_id: str) -> None:
        """Check that no earlier job, which the cluster has forgotten, has the ID."""
        try:
            read_spec(self._workspace, job_id)
        except NotFoundError:
            return
        raise exists(self._workspace, job_id)

    def _check_cluster(self) -> None:
        """Check that the queue and the claim of new jobs exist, and that pods can write there."""
        check_queue(self._api, self._settings)
        check_claim(self._api, self._settings)
        if (folder := shared_folder(self._workspace.uri)) is not None:
            check_pod_user(folder, self._settings)

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
    name = config_map["metadata"]["name"]
    content = (config_map.get("data") or {}).get(STATUS_KEY, "")
    return parse_status(content, name, f"the ConfigMap {name}")
