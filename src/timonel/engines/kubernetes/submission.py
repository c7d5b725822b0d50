"""Create the objects of a job in a cluster, all or none, and delete them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import time

from timonel.engines.base import JobStatus
from timonel.engines.kubernetes.api import Api, Object
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError, ConflictError
from timonel.engines.kubernetes.files.index_store import IndexStore
from timonel.engines.kubernetes.job_store import (
    bucket_of,
    create_spec,
    delete_spec,
    exists,
    read_status,
    shared_folder,
    stage_source,
    write_status,
)
from timonel.engines.kubernetes.manifests import Manifest, owned
from timonel.engines.kubernetes.names import JOB_LABEL, SUBMISSION_ANNOTATION, job_objects
from timonel.engines.kubernetes.resumes import JobPlace
from timonel.engines.spec import JobSpec
from timonel.errors import AlreadyExistsError, EngineError, JobError, NotFoundError, TimonelError
from timonel.storage import Workspace

_POLL_S = 0.5
_REMOVAL_S = 120.0
_KEPT = frozenset({"Lease", "Role", "RoleBinding", "ServiceAccount"})
"""Kinds of objects that users may not delete."""
_RIGHTS = ("rules", "subjects")

logger = logging.getLogger(__name__)


class Submission:
    """One attempt to start a job.

    Args:
        manifests: The job's objects; the first one is the coordinator's Job, suspended.
        spec: Specification of a new job, which is uploaded; None for one that is resumed.
    """

    def __init__(
        self,
        workspace: Workspace,
        api: Api,
        manifests: list[Manifest],
        status: JobStatus,
        spec: JobSpec | None = None,
    ) -> None:
        self._workspace = workspace
        self._api = api
        self._manifests = manifests
        self._status = status
        self._spec = spec
        self._earlier: JobStatus | None = None
        self._job_id: str = manifests[0]["metadata"]["name"]
        self._id = secrets.token_hex(8)

    def start(self) -> None:
        """Create all objects of the job and start its coordinator, or else leave nothing."""
        self._manifests[0]["metadata"]["annotations"] = {SUBMISSION_ANNOTATION: self._id}
        job: Object | None = None
        try:
            job = self._api.create(self._manifests[0])
            if self._spec is not None:
                self._upload(self._spec)
            self._complete(job)
        except BaseException as error:
            if job is None and isinstance(error, AlreadyExistsError):
                if self._spec is None:
                    raise _resumed(self._job_id) from None
                raise exists(self._workspace, self._job_id) from None
            is_refused = isinstance(error, TimonelError) and not isinstance(
                error, ClusterUnavailableError
            )
            if job is not None or not is_refused:
                self._withdraw(job)
            raise

    def _upload(self, spec: JobSpec) -> None:
        """Put the program, the specification and the files of a job into the bucket."""
        staged = stage_source(self._workspace, spec)
        # First: the files of a job with that ID in another cluster must stay.
        create_spec(self._workspace, staged, self._id, JobPlace.of(self._api))
        index = IndexStore(bucket_of(self._workspace).store, spec.job_id)
        for change in shared_folder(self._workspace, staged, is_hub=True).scan(to_end=True):
            index.add(change)
        index.save()

    def _complete(self, job: Object) -> None:
        """Create all that belongs to a coordinator's Job, and start it."""
        for manifest in owned(self._manifests, job["metadata"]["uid"]):
            self._create(manifest)
        # Replaces the end that the job is resumed after, before the coordinator writes.
        self._earlier = read_status(self._workspace, self._job_id)
        write_status(self._workspace, self._status)
        body = {"spec": {"suspend": False}}
        done = {"metadata": {"annotations": {SUBMISSION_ANNOTATION: None}}}
        self._api.patch("Job", self._job_id, {**done, **body})
        for manifest in self._manifests[1:]:
            if manifest["kind"] == "Job":  # the coordinator would do it when it has started
                self._api.patch("Job", manifest["metadata"]["name"], body)

    def _create(self, manifest: Manifest) -> None:
        """Create an object, or take over what a deleted Job of this name left."""
        try:
            self._api.create(manifest)
        except AlreadyExistsError:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if kind not in _KEPT or not _is_orphan(self._api.get(kind, name), self._job_id):
                raise
            if kind == "ServiceAccount":
                return  # users may not change it
            body: Manifest = {key: manifest[key] for key in _RIGHTS if key in manifest}
            body["metadata"] = {"ownerReferences": manifest["metadata"]["ownerReferences"]}
            self._api.patch(kind, name, body)

    def _withdraw(self, created: Object | None) -> None:
        """Delete what this submission created.

        Logs what cannot be deleted, because the error that interrupted it says more.
        """
        try:
            # If the answer to its creation was lost, the annotation tells whose Job it is.
            job = created or self._api.find("Job", self._job_id)
            if job is None or not self._has_created(job):
                return
            try:
                delete_job(self._api, job)
            finally:
                if self._spec is not None:
                    delete_spec(self._workspace, self._job_id, self._id)
                elif self._earlier is not None:
                    write_status(self._workspace, self._earlier)
        except Exception as error:  # noqa: BLE001 - the first error is raised
            logger.warning(
                "%s was not submitted, and its objects could not be deleted: %s; "
                "'timonel jobs' deletes them after an hour",
                self._job_id,
                error.message if isinstance(error, TimonelError) else error,
            )

    def _has_created(self, job: Object) -> bool:
        annotations = job["metadata"].get("annotations") or {}
        return annotations.get(SUBMISSION_ANNOTATION) == self._id


def delete_job(api: Api, job: Object, version: str | None = None) -> None:
    """Delete a coordinator's Job and all that it owns; return when that is requested.

    Args:
        version: Only if it has this version.
    """
    metadata = job["metadata"]
    with contextlib.suppress(NotFoundError):
        api.delete(
            "Job",
            metadata["name"],
            propagation="Foreground",
            uid=metadata["uid"],
            version=version,
        )


def remove_orphans(api: Api, job_id: str) -> None:
    """Delete objects of a job whose Job was deleted alone, as with ``--cascade=orphan``.

    Users may not delete all kinds of objects; the next submission takes over the others.
    """
    found = [("Service", api.find("Service", job_id))]
    for kind in ("Job", "Pod", "ConfigMap", "Secret"):
        found += [(kind, each) for each in api.list(kind, job_objects(job_id))]
    for kind, each in found:
        if each is None or not _is_orphan(each, job_id):
            continue
        metadata = each["metadata"]
        if (kind, metadata["name"]) != ("Job", job_id):  # somebody has resumed the job
            with contextlib.suppress(NotFoundError, ConflictError):
                api.delete(kind, metadata["name"], uid=metadata["uid"])


def _is_orphan(found: Object, job_id: str) -> bool:
    metadata = found["metadata"]
    is_of_job = (metadata.get("labels") or {}).get(JOB_LABEL) == job_id
    return is_of_job and not metadata.get("ownerReferences")


def remove_job(api: Api, job: Object) -> None:
    """Delete the objects of a job that has ended, and wait until they are gone.

    Args:
        job: The Job, as it was read for the status that is final.
    """
    job_id, uid = job["metadata"]["name"], job["metadata"]["uid"]
    deadline = time.monotonic() + _REMOVAL_S
    found: Object | None = job
    while found is not None:
        if found["metadata"]["uid"] != uid:
            raise _resumed(job_id)
        if time.monotonic() > deadline:
            raise EngineError(
                f"the pods of {job_id} have not ended within {_REMOVAL_S:g} s",
                hint="see 'kubectl get pods', then try again",
            )
        if "deletionTimestamp" in found["metadata"]:
            time.sleep(_POLL_S)
        else:
            # The cluster changes an ended Job as well, when its pods end: then once more.
            with contextlib.suppress(ConflictError):
                delete_job(api, found, version=found["metadata"]["resourceVersion"])
        found = api.find("Job", job_id)


def _resumed(job_id: str) -> JobError:
    return JobError(
        f"{job_id} was resumed by someone else meanwhile",
        hint=f"follow it with 'timonel logs {job_id} --follow'",
    )
