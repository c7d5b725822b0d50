"""A checked job of Kubeflow, and the parts that the manifests of all kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from timonel.engines import RoleName
from timonel.errors import SpecError
from timonel.training.kubeflow.fields import Fields
from timonel.training.kubeflow.pods import PodSpec, parse_template
from timonel.training.settings import MAX_TASKS

RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")
NOTED: Mapping[str, Mapping[str, str]] = {
    "metadata": {
        "namespace": "set TIMONEL_KUBERNETES_NAMESPACE instead",
        "labels": "timonel labels its objects itself",
        "annotations": "timonel labels its objects itself",
        **dict.fromkeys(
            ("creationTimestamp", "generation", "resourceVersion", "uid", "managedFields"),
            "the cluster sets it",
        ),
    },
    "spec.runPolicy": {
        "ttlSecondsAfterFinished": "the workspace keeps the records of jobs",
        "schedulingPolicy": "tasks of a job always start together",
    },
}
"""Fields without effect, with the reason, by object."""
REFUSED: Mapping[str, Mapping[str, str]] = {
    "metadata": {"generateName": "give a name"},
    "spec.runPolicy": {"managedBy": "remove it"},
}
"""Known fields that are refused, with the cure, by object."""


@dataclass(frozen=True)
class ReplicaSpec:
    """Replicas of one role."""

    type_name: str  # as the manifest spells it
    replicas: int
    restart: str  # their restart policy
    pod: PodSpec


@dataclass(frozen=True)
class JobLimits:
    """Limits of a job."""

    restarts: int | None  # the maximum, if given
    runtime_s: int | None  # the maximum, if given


@dataclass(frozen=True)
class ManifestJob:
    """A checked TFJob or MPIJob."""

    name: str | None
    replicas: Mapping[RoleName, ReplicaSpec]  # by role, the leading role first
    limits: JobLimits
    success: Literal["chief", "all-workers"]  # who must succeed
    notes: tuple[str, ...]  # what has no effect, and why
    is_mpi: bool = False  # tasks replace the processes of an MPIJob


def parse_replica(
    fields: Fields,
    type_name: str,
    container_name: str | None,
    *,
    count: int = 1,
    restart: str = "Never",
) -> ReplicaSpec:
    """Parse a replica specification, with defaults for its number and restart policy."""
    replicas = fields.amount("replicas", most=MAX_TASKS)
    policy = fields.choice("restartPolicy", ("", *RESTARTS))
    pod = parse_template(fields.child("template"), container_name)
    fields.close()
    return ReplicaSpec(type_name, count if replicas is None else replicas, policy or restart, pod)


def parse_run_policy(policy: Fields) -> JobLimits:
    """Return the job's limits."""
    if policy.take("suspend", bool):
        raise SpecError(f"{policy.at('suspend')} is true", hint="set it to false to run the job")
    parse_clean_pod_policy(policy)
    limits = JobLimits(
        policy.amount("backoffLimit"), policy.amount("activeDeadlineSeconds", least=1)
    )
    policy.note(NOTED["spec.runPolicy"])
    policy.close(REFUSED["spec.runPolicy"])
    return limits


def parse_clean_pod_policy(fields: Fields) -> None:
    """Take ``cleanPodPolicy``, and note where it asks for another end than timonel's."""
    if fields.choice("cleanPodPolicy", ("", "None", "Running", "All")) == "None":
        fields.notes["cleanPodPolicy has no effect: tasks are stopped when the job ends"] = None
