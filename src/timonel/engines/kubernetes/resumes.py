"""Which cluster and namespace starts a job, when several share a bucket.

jobs/<job>/spec.json             the job document; the submission that creates it has the job
jobs/<job>/resumes/<end>.json    who resumes the job after that end, in microseconds

Each is created by a conditional request, so of several clusters one starts the job. Within a
namespace, its Job decides: the place on record may resume again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from timonel.engines.base import JobStatus
from timonel.engines.kubernetes.api import Api
from timonel.errors import (
    AlreadyExistsError,
    CorruptError,
    EngineError,
    FormatError,
    JobError,
    NotFoundError,
)
from timonel.storage.documents import document, parse_document
from timonel.storage.object_store import ObjectStore

_KIND = "job-resume"


@dataclass(frozen=True)
class JobPlace:
    """Where a job runs.

    Args:
        authority: Digest of the authority that verifies the server, as clusters share addresses
            such as those of tunnels and of servers within clusters; None: unknown.
    """

    cluster: str
    namespace: str
    authority: str | None = None

    @classmethod
    def of(cls, api: Api) -> Self:
        """Return the place of a client."""
        return cls(api.server, api.namespace, api.authority)

    def __str__(self) -> str:
        return f"in the namespace '{self.namespace}' of {self.cluster}"

    def check(self, job_id: str, here: JobPlace) -> None:
        """Check that this place is the current one, where a job is missing.

        Args:
            here: Where the job was not found.
        """
        if (self.cluster, self.namespace) != (here.cluster, here.namespace):
            raise EngineError(
                f"{job_id} was started {self}, and is not here",
                hint="choose that context and namespace",
            )
        if self.authority is None or here.authority is None:
            raise EngineError(
                f"{job_id} is not in the cluster at {here.cluster}, and whether it was started "
                "there is unknown: the connection is not verified",
                hint="set 'certificate-authority' in the kubeconfig",
            )
        if self.authority != here.authority:
            raise EngineError(
                f"{job_id} was started in another cluster, which had the address "
                f"{here.cluster} and another certificate authority",
                hint="choose the context of that cluster",
            )


def record_resume(store: ObjectStore, status: JobStatus, place: JobPlace) -> None:
    """Record where a job that has ended starts next.

    Args:
        store: The bucket's objects below the workspace's URI.
        status: The status that is final.
    """
    name = _name(status)
    # Equal content counts as created: an interrupted resume can be repeated.
    content = json.dumps(document(_KIND, asdict(place)), sort_keys=True).encode()
    try:
        store.create(name, content)
    except AlreadyExistsError:
        raise JobError(
            f"{status.job_id} was resumed {_holder(store, name)}",
            hint="follow it there; if it did not start, resume it there again",
        ) from None


def last_resume(store: ObjectStore, job_id: str) -> JobPlace | None:
    """Return where a job was resumed last; None if it was not resumed.

    Args:
        store: The bucket's objects below the workspace's URI.
    """
    _, names = store.children(f"jobs/{job_id}/resumes")
    if not names:
        return None
    last = max(names, key=lambda name: (len(name), name))  # they are numbers
    try:
        return _read(store, f"jobs/{job_id}/resumes/{last}")
    except KeyError as error:
        raise CorruptError(f"the record {last} of the job {job_id} is damaged") from error


def _holder(store: ObjectStore, name: str) -> str:
    try:
        return str(_read(store, name))
    except (NotFoundError, CorruptError, FormatError, KeyError):
        return "in another cluster"


def _read(store: ObjectStore, name: str) -> JobPlace:
    text = store.read(name).decode(errors="replace")
    found = parse_document(text, _KIND, f"{store.uri}/{name}")
    return JobPlace(found["cluster"], found["namespace"], found.get("authority"))


def _name(status: JobStatus) -> str:
    end = status.created_at if status.ended_at is None else status.ended_at
    return f"jobs/{status.job_id}/resumes/{round(end * 1e6)}.json"
