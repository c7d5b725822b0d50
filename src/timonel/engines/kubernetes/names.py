"""Names, labels and annotations of the objects of jobs and services in the cluster."""

from __future__ import annotations

COORDINATOR_ROLE = "coordinator"
"""Role of the coordinator's pod."""

JOB_LABEL = "timonel.dev/job"
ROLE_LABEL = "timonel.dev/role"
STOP_ANNOTATION = "timonel.dev/stop"
"""On the coordinator's Job: request to stop, with the reason."""
SIZES_ANNOTATION = "timonel.dev/sizes"
"""On the coordinator's Job: requested sizes of elastic roles, as a JSON object."""
SUBMISSION_ANNOTATION = "timonel.dev/submission"
"""On the coordinator's Job until all objects of the job exist: ID of the submission."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
"""On pods of roles, written by the cluster: the index of the task."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""On pods of roles that wait in a queue of Kueue: name of the LocalQueue."""
GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
"""On the same pods: the group that is admitted as a whole, and the name of its Workload."""
GROUP_SIZE_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
QUEUED = {"kueue.x-k8s.io/managed": "true"}
"""Label of pods that Kueue manages."""
QUEUE_PARENT_ANNOTATION = "kueue.x-k8s.io/pod-suspending-parent"
"""On pods that a controller replaces: Kueue puts no finalizer on them."""
QUEUE_GATE = "kueue.x-k8s.io/admission"
"""Scheduling gate of a pod that Kueue has not admitted."""

STATUS_KEY = "status"
"""Key of the job's status in its ConfigMap."""
TOKEN_KEY = "token"  # noqa: S105 - a name
"""Key of the token in the job's Secret."""

SERVICE_LABEL = "timonel.dev/service"
REVISION_LABEL = "timonel.dev/revision"
"""On a service's Deployment and its pods: the revision of the specification."""
DIGEST_ANNOTATION = "timonel.dev/digest"
"""On a service's Deployment: `ServiceSpec.digest`."""
REVISIONS_ANNOTATION = "timonel.dev/revisions"
"""On a service's Deployment: digest of each revision, as a JSON object, the last applied at the
end."""
REPLICA = "replica"
"""Name of the container of a service's replicas, beside their sidecars."""
FIRST_PORT = 8500
"""First port of replicas; each pod has an address of its own."""

COORDINATOR_PORT = 2222
EXIT_REFUSED = 78
"""Exit code of a pod that can never take part in its job (EX_CONFIG in sysexits.h)."""

MAX_NAME = 63
"""Maximum length of a host name and of a label's value."""

MANAGED = {"app.kubernetes.io/name": "timonel", "app.kubernetes.io/managed-by": "timonel"}
"""Labels of all objects."""


def labels(job_id: str, role: str = COORDINATOR_ROLE) -> dict[str, str]:
    """Return all labels of an object; objects of the whole job have those of its coordinator."""
    return {
        **MANAGED,
        "app.kubernetes.io/component": role,
        JOB_LABEL: job_id,
        ROLE_LABEL: role,
    }


def all_coordinators() -> dict[str, str]:
    """Return the labels that select the coordinators of all jobs: their Jobs, and their pods."""
    return {**MANAGED, ROLE_LABEL: COORDINATOR_ROLE}


def coordinator_pods(job_id: str) -> dict[str, str]:
    """Return the labels that select the pods of a job's coordinator."""
    return role_pods(job_id, COORDINATOR_ROLE)


def role_pods(job_id: str, role: str) -> dict[str, str]:
    """Return the labels that select the pods of a role."""
    return {**job_objects(job_id), ROLE_LABEL: role}


def job_objects(job_id: str) -> dict[str, str]:
    """Return the labels that select all objects of a job, and its pods."""
    return {JOB_LABEL: job_id}


def service_labels(name: str) -> dict[str, str]:
    """Return all labels of a service's objects and its pods."""
    return {**all_services(), SERVICE_LABEL: name}


def service_objects(name: str) -> dict[str, str]:
    """Return the labels that select all objects of a service, and its pods."""
    return {SERVICE_LABEL: name}


def all_services() -> dict[str, str]:
    """Return the labels that select the objects of all services, and their pods."""
    return {**MANAGED, "app.kubernetes.io/component": "service"}


def role_job(job_id: str, role: str) -> str:
    """Return the name of the Job of a role."""
    return f"{job_id}-{role}"


def pod_hostname(job_id: str, role: str, index: int | str) -> str:
    """Return the host name of a task's pod, which the cluster gives to pods of Indexed Jobs."""
    return f"{role_job(job_id, role)}-{index}"


def address(job_id: str, hostname: str) -> str:
    """Return the DNS name of a pod within its namespace."""
    return f"{hostname}.{job_id}"


def coordinator_address(job_id: str) -> str:
    """Return the ``host:port`` at which pods reach their coordinator."""
    return f"{address(job_id, job_id)}:{COORDINATOR_PORT}"
