"""Parse TFJob manifests: YAML text to a checked job.

Replica types may be written in any case, as Kubeflow accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml  # type: ignore[import-untyped] # no stubs

from timonel.engines import RoleName
from timonel.errors import SpecError
from timonel.training.kubeflow.fields import Fields
from timonel.training.kubeflow.pods import PodSpec, parse_template

API_VERSION = "kubeflow.org/v1"
_CONTAINER = "tensorflow"
_ROLES: Mapping[str, RoleName] = {
    "chief": "chief",
    "master": "chief",
    "worker": "worker",
    "ps": "ps",
    "evaluator": "evaluator",
}
_SINGLE = frozenset({"chief", "evaluator"})
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
        "activeDeadlineSeconds": "jobs have no deadline; stop it with 'timonel stop'",
        "schedulingPolicy": "tasks of a job always start together",
    },
}
"""Fields without effect, with the reason, by object."""
REFUSED: Mapping[str, Mapping[str, str]] = {
    "metadata": {"generateName": "give a name"},
    "spec": {"enableDynamicWorker": "use 'timonel train SCRIPT --workers 2:8' for elastic jobs"},
    "spec.runPolicy": {"managedBy": "remove it"},
}
"""Known fields that are refused, with the cure, by object."""


@dataclass(frozen=True)
class Replica:
    """Replicas of one role.

    Attributes:
        type_name: The replica type, as the manifest spells it.
        replicas: Their number.
        restart: Their restart policy.
        pod: Their pod template.
    """

    type_name: str
    replicas: int
    restart: str
    pod: PodSpec


@dataclass(frozen=True)
class TFJob:
    """A checked TFJob.

    Attributes:
        name: Its name.
        replicas: Its replicas by role, the leading role first.
        backoff_limit: Maximum number of restarts, if given.
        success: Whether the leader or all workers must succeed.
        notes: What has no effect, and why.
    """

    name: str | None
    replicas: Mapping[RoleName, Replica]
    backoff_limit: int | None
    success: Literal["chief", "all-workers"]
    notes: tuple[str, ...]


def parse_manifest(text: str) -> TFJob:
    """Parse a YAML document with a TFJob.

    Raises:
        SpecError: The text is not YAML, is not one TFJob, or has a field that is not supported.
    """
    root = Fields.of("", _document(text), {})
    version, kind = root.take("apiVersion", str), root.take("kind", str)
    if (version, kind) != (API_VERSION, "TFJob"):
        raise SpecError(
            f"the manifest must be a TFJob of {API_VERSION}, got {kind} of {version}",
            hint="for MPI: timonel train SCRIPT --launcher mpi" if kind == "MPIJob" else None,
        )
    metadata, spec = root.child("metadata"), root.child("spec")
    root.take("status", dict)  # the operator writes it
    root.close()
    name = metadata.take("name", str)
    metadata.note(NOTED["metadata"])
    metadata.close(REFUSED["metadata"])
    replicas = _replicas(spec.child("tfReplicaSpecs"))
    all_workers = spec.choice("successPolicy", ("", "AllWorkers")) == "AllWorkers"
    if all_workers and "chief" in replicas:
        root.notes["successPolicy has no effect: the Chief decides, as in Kubeflow"] = None
    backoff_limit = _run_policy(spec.child("runPolicy"))
    if spec.take("enableDynamicWorker", bool):
        raise SpecError(
            "spec.enableDynamicWorker is not supported", hint=REFUSED["spec"]["enableDynamicWorker"]
        )
    spec.close()
    return TFJob(
        name=name,
        replicas=replicas,
        backoff_limit=backoff_limit,
        success="all-workers" if all_workers and "chief" not in replicas else "chief",
        notes=tuple(root.notes),
    )


def _document(text: str) -> Any:
    """Return the only document that is not empty."""
    try:
        documents = [each for each in yaml.safe_load_all(text) if each is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" (line {mark.line + 1})" if mark else ""
        raise SpecError(f"the manifest is not valid YAML{place}") from error
    if len(documents) != 1:
        kinds = [str(each.get("kind")) if isinstance(each, dict) else "text" for each in documents]
        raise SpecError(
            f"the manifest must have one document, a TFJob, got {', '.join(kinds) or 'none'}",
            hint="put the TFJob into a file of its own",
        )
    if not isinstance(documents[0], dict):
        raise SpecError("the manifest has no fields", hint="give a file with 'kind: TFJob'")
    return documents[0]


def _replicas(specs: Fields) -> dict[RoleName, Replica]:
    found: dict[RoleName, Replica] = {}
    for type_name in list(specs.values):
        role = _ROLES.get(type_name.lower())
        if role is None:
            raise SpecError(
                f"{specs.at(type_name)} is no replica type of a TFJob",
                hint="use Chief, Worker, PS or Evaluator",
            )
        if role in found:
            raise SpecError(f"{specs.at(type_name)} repeats the role {role}", hint="remove one")
        replica = _replica(specs.child(type_name), type_name)
        if replica.replicas > 1 and role in _SINGLE:
            raise SpecError(f"{specs.at(type_name)} must have one replica, got {replica.replicas}")
        if replica.replicas:
            found[role] = replica
    if not found.keys() & {"chief", "worker"}:
        raise SpecError(f"{specs.path} must have a Chief or a Worker")
    if any(replica.type_name.lower() == "master" for replica in found.values()):
        specs.notes["TF_CONFIG has 'chief' for the Master"] = None
    return {role: found[role] for role in _ROLES.values() if role in found}


def _replica(fields: Fields, type_name: str) -> Replica:
    replicas = fields.amount("replicas")
    restart = fields.choice("restartPolicy", RESTARTS)
    pod = parse_template(fields.child("template"), _CONTAINER)
    fields.close()
    return Replica(type_name, 1 if replicas is None else replicas, restart or "Never", pod)


def _run_policy(policy: Fields) -> int | None:
    """Return the limit of restarts."""
    if policy.take("suspend", bool):
        raise SpecError(f"{policy.at('suspend')} is true", hint="set it to false to run the job")
    if policy.choice("cleanPodPolicy", ("", "None", "Running", "All")) == "None":
        policy.notes["cleanPodPolicy has no effect: tasks are stopped when the job ends"] = None
    backoff_limit = policy.amount("backoffLimit")
    policy.note(NOTED["spec.runPolicy"])
    policy.close(REFUSED["spec.runPolicy"])
    return backoff_limit
