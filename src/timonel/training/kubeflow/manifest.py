"""Parse manifests of TFJobs and MPIJobs: YAML text to a checked job.

Replica types may be written in any case, as Kubeflow accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped] # no stubs

from timonel.engines import RoleName
from timonel.errors import SpecError
from timonel.storage.yaml_text import PlainLoader, yaml_problem
from timonel.training.kubeflow import job, mpi_job
from timonel.training.kubeflow.fields import Fields
from timonel.training.kubeflow.job import ManifestJob, ReplicaSpec, parse_replica, parse_run_policy
from timonel.training.kubeflow.mpi_job import parse_mpi_job

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
NOTED: Mapping[str, Mapping[str, str]] = {**job.NOTED, **mpi_job.NOTED}
"""Fields without effect, with the reason, by object."""
REFUSED: Mapping[str, Mapping[str, str]] = {
    **job.REFUSED,
    "spec of a TFJob": {
        "enableDynamicWorker": "use 'timonel train SCRIPT --workers 2:8' for elastic jobs"
    },
}
"""Known fields that are refused, with the cure, by object."""


def parse_manifest(text: str, *, needs_command: bool = True) -> ManifestJob:
    """Parse a YAML document with a TFJob or an MPIJob.

    ``needs_command`` refuses a command of mpirun that cannot be parsed.
    """
    root = Fields.of("", _document(text), {})
    version, kind = root.take("apiVersion", str), root.take("kind", str)
    is_mpi = kind == "MPIJob" and version in mpi_job.API_VERSIONS
    if not is_mpi and (version, kind) != (API_VERSION, "TFJob"):
        raise SpecError(
            f"the manifest must be a TFJob of {API_VERSION} or an MPIJob of "
            f"{' or '.join(mpi_job.API_VERSIONS)}, got {kind} of {version}"
        )
    metadata, spec = root.child("metadata"), root.child("spec")
    root.take("status", dict)  # the operator writes it
    root.close()
    name = metadata.take("name", str)
    metadata.note(NOTED["metadata"])
    metadata.close(REFUSED["metadata"])
    if is_mpi:
        return parse_mpi_job(version or "", name, spec, needs_command=needs_command)
    return _tf_job(name, spec)


def _tf_job(name: str | None, spec: Fields) -> ManifestJob:
    replicas = _replicas(spec.child("tfReplicaSpecs"))
    all_workers = spec.choice("successPolicy", ("", "AllWorkers")) == "AllWorkers"
    if all_workers and "chief" in replicas:
        spec.notes["successPolicy has no effect: the Chief decides, as in Kubeflow"] = None
    limits = parse_run_policy(spec.child("runPolicy"))
    if spec.take("enableDynamicWorker", bool):
        raise SpecError(
            "spec.enableDynamicWorker is not supported",
            hint=REFUSED["spec of a TFJob"]["enableDynamicWorker"],
        )
    spec.close()
    return ManifestJob(
        name=name,
        replicas=replicas,
        limits=limits,
        success="all-workers" if all_workers and "chief" not in replicas else "chief",
        notes=tuple(spec.notes),
    )


def _document(text: str) -> Any:
    """Return the only document that is not empty."""
    try:
        found = yaml.load_all(text, Loader=PlainLoader)
        documents = [each for each in found if each is not None]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError(f"the manifest is not valid YAML{yaml_problem(error)}") from error
    if len(documents) != 1:
        kinds = [str(each.get("kind")) if isinstance(each, dict) else "text" for each in documents]
        raise SpecError(
            f"the manifest must have one document, a TFJob or an MPIJob, "
            f"got {', '.join(kinds) or 'none'}",
            hint="put the job into a file of its own",
        )
    if not isinstance(documents[0], dict):
        raise SpecError(
            "the manifest has no fields", hint="give a file with 'kind: TFJob' or 'kind: MPIJob'"
        )
    return documents[0]


def _replicas(specs: Fields) -> dict[RoleName, ReplicaSpec]:
    found: dict[RoleName, ReplicaSpec] = {}
    for type_name in list(specs.values):
        role = _ROLES.get(type_name.lower())
        if role is None:
            raise SpecError(
                f"{specs.at(type_name)} is no replica type of a TFJob",
                hint="use Chief, Worker, PS or Evaluator",
            )
        if role in found:
            raise SpecError(f"{specs.at(type_name)} repeats the role {role}", hint="remove one")
        replica = parse_replica(specs.child(type_name), type_name, _CONTAINER)
        if replica.replicas > 1 and role in _SINGLE:
            raise SpecError(f"{specs.at(type_name)} must have one replica, got {replica.replicas}")
        if replica.replicas:
            found[role] = replica
    if not found.keys() & {"chief", "worker"}:
        raise SpecError(f"{specs.path} must have a Chief or a Worker")
    if any(replica.type_name.lower() == "master" for replica in found.values()):
        specs.notes["TF_CONFIG has 'chief' for the Master"] = None
    return {role: found[role] for role in _ROLES.values() if role in found}
