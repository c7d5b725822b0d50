"""What a job has in the workspace's bucket: its specification, its program and its files.

jobs/<job>/spec.json         the job document
jobs/<job>/resumes/<end>     who resumed the job after an end, see `resumes`
jobs/<job>/status.json       status at the last submission, new generation or end
jobs/<job>/files.json        index of the job's folder, see `shared_folder`
jobs/<job>/files/<digest>    content of that folder
jobs/<job>/log/<number>      output of all tasks, see `job_log`
sources/<digest>.tar.gz      programs, which further jobs use again
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from timonel.engines.base import JobStatus
from timonel.engines.kubernetes.files.changes import Part, SharedContents
from timonel.engines.kubernetes.files.folder import SharedFolder
from timonel.engines.kubernetes.files.index_store import IndexStore
from timonel.engines.kubernetes.files.records import has_content, matching
from timonel.engines.kubernetes.resumes import JobPlace, last_resume
from timonel.engines.source import ARCHIVE_SUFFIX, is_archive, pack
from timonel.engines.spec import JobSpec
from timonel.errors import AlreadyExistsError, CorruptError, InputError, NotFoundError, SpecError
from timonel.storage import Workspace, digest_bytes, document, join, write_bytes
from timonel.storage.blobs import is_file_name
from timonel.storage.bucket_errors import AccessDeniedError
from timonel.storage.documents import parse_document
from timonel.storage.local_copy import LocalCopy
from timonel.storage.uris import shared_folder as folder_of


def bucket_of(workspace: Workspace) -> LocalCopy:
    """Return the transfers to a workspace's bucket."""
    if workspace.local_copy is None:
        raise SpecError(
            f"jobs on Kubernetes need a workspace in a bucket, and {workspace.uri} is a folder",
            hint="give --workspace s3://bucket/folder, or set TIMONEL_WORKSPACE",
        )
    return workspace.local_copy


def stage_source(workspace: Workspace, spec: JobSpec) -> JobSpec:
    """Return the specification with its program in the bucket; upload that unless it is there."""
    if spec.source is None or is_archive(spec.source):
        return spec
    archive = pack(Path(spec.source))
    name = f"sources/{digest_bytes(archive).removeprefix('sha256:')}{ARCHIVE_SUFFIX}"
    store = bucket_of(workspace).store
    try:
        store.stat(name)
    except NotFoundError:
        store.write(name, archive)
    return spec.model_copy(update={"source": join(workspace.uri, name)})


def check_writable(workspace: Workspace, job_id: str) -> None:
    """Check that this process can write a job's folder in the bucket, or on the claim."""
    store, name = bucket_of(workspace).store, f"jobs/{job_id}/writable"
    try:
        store.write(name, b"")
    except InputError as error:
        is_denied = isinstance(error, AccessDeniedError)
        if not is_denied and not isinstance(error.__cause__, PermissionError):
            raise
        hint = "the credentials of pods need the rights to read and write there"
        if folder_of(workspace.uri) is not None:
            hint = f"pods run as user {os.geteuid()}, who needs write access there"
        raise AccessDeniedError(error.message, hint=hint) from error
    with contextlib.suppress(AccessDeniedError):  # jobs run without the right to delete
        store.delete([name])


def create_spec(workspace: Workspace, spec: JobSpec, submission: str, place: JobPlace) -> None:
    """Write the specification of a new job to the bucket."""
    body = {"spec": spec.model_dump(mode="json"), "submission": submission, "place": asdict(place)}
    content = f"{json.dumps(document('job', body))}\n".encode()
    try:
        bucket_of(workspace).store.create(_spec_name(spec.job_id), content)
    except AlreadyExistsError:
        raise exists(workspace, spec.job_id) from None


def exists(workspace: Workspace, job_id: str) -> AlreadyExistsError:
    """Return the error that a job of an ID exists, with the place where it was submitted."""
    try:
        where = f" {read_place(workspace, job_id)}"
    except (NotFoundError, CorruptError):
        where = ""
    return AlreadyExistsError(f"the job {job_id} exists already{where}", hint="choose another id")


def delete_spec(workspace: Workspace, job_id: str, submission: str) -> None:
    """Remove the specification of a job that was not accepted, if that submission wrote it."""
    try:
        found = _read_document(workspace, job_id)
    except NotFoundError:
        return
    if found.get("submission") == submission:
        bucket_of(workspace).store.delete([_status_name(job_id), _spec_name(job_id)])


def read_spec(workspace: Workspace, job_id: str) -> JobSpec:
    """Return a job's specification."""
    return JobSpec.model_validate(_read_document(workspace, job_id)["spec"])


def read_place(workspace: Workspace, job_id: str) -> JobPlace:
    """Return where a job was submitted, or resumed last."""
    if place := last_resume(bucket_of(workspace).store, job_id):
        return place
    try:
        return JobPlace(**_read_document(workspace, job_id)["place"])
    except (KeyError, TypeError) as error:
        raise CorruptError(f"the document of the job {job_id} is damaged") from error


def _read_document(workspace: Workspace, job_id: str) -> dict[str, Any]:
    name = _spec_name(job_id)
    try:
        content = bucket_of(workspace).store.read(name)
    except NotFoundError:
        raise NotFoundError(
            f"{workspace.uri} has no job {job_id}", hint="use the workspace it was submitted with"
        ) from None
    return parse_document(content.decode(errors="replace"), "job", f"{workspace.uri}/{name}")


def write_status(workspace: Workspace, status: JobStatus) -> None:
    """Write the status of a job to the bucket, which keeps it longer than the cluster.

    A submission, a resume, each generation and the end do; each replaces the one before.
    """
    name = _status_name(status.job_id)
    bucket_of(workspace).store.write(name, status.model_dump_json().encode())


def read_status(workspace: Workspace, job_id: str) -> JobStatus | None:
    """Return the status of a job in the bucket; None if there is none."""
    try:
        content = bucket_of(workspace).store.read(_status_name(job_id))
    except NotFoundError:
        return None
    return parse_status(content, job_id, f"{workspace.uri}/{_status_name(job_id)}")


def read_outcome(workspace: Workspace, job_id: str) -> JobStatus | None:
    """Return the last status of a job that has ended; None if it has not."""
    status = read_status(workspace, job_id)
    return status if status is not None and status.state.is_final else None


def parse_status(content: str | bytes, job_id: str, place: str) -> JobStatus:
    """Return the status of a job in a document."""
    try:
        return JobStatus.model_validate_json(content)
    except ValidationError as error:
        raise CorruptError(
            f"the status of the job {job_id} cannot be read: {place} is damaged, "
            f"or a newer release wrote it ({error.errors()[0]['msg']})",
            hint=f"use that release, or delete the job with 'kubectl delete job {job_id}'",
        ) from error


def shared_folder(workspace: Workspace, spec: JobSpec, *, is_hub: bool = False) -> SharedFolder:
    """Return a job's folder in this process's copy of the workspace."""
    folders = (f"jobs/{spec.job_id}", *spec.folders)
    store = bucket_of(workspace).store
    return SharedFolder(workspace.root, folders, store, spec.job_id, is_hub=is_hub)


def fetch_files(
    workspace: Workspace, job_id: str, target: Path, selects: Callable[[str], bool]
) -> None:
    """Copy files of a job's folder from the bucket; see `FileFetchingEngine.fetch`."""
    store, folder = bucket_of(workspace).store, f"jobs/{job_id}/"
    objects = SharedContents(store, job_id)
    for change in IndexStore(store, job_id).load().files.values():
        name = change.name.removeprefix(folder)
        parts = change.parts or ()
        # Pods write the index: a name must not lead out of the target.
        if name == change.name or not all(map(is_file_name, name.split("/"))) or not selects(name):
            continue
        path = target / name
        if not has_content(path, parts):
            known = _begun(path, parts)
            size = sum(part.size for part in parts[:known])
            begin = path.read_bytes()[:size] if known else b""
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, begin + b"".join(map(objects.read, parts[known:])))


def _begun(path: Path, parts: Sequence[Part]) -> int:
    """Return with how many parts a file begins, which may not exist."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return matching(file, parts)


def _status_name(job_id: str) -> str:
    return f"jobs/{job_id}/status.json"


def _spec_name(job_id: str) -> str:
    return f"jobs/{job_id}/spec.json"
