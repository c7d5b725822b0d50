"""Run one task of a user-started or MPI cluster in this terminal."""

from __future__ import annotations

import os
import socket
from collections.abc import Container, Mapping
from dataclasses import dataclass

from timonel.engines import RoleSpec, get_engine
from timonel.engines.agent.agent import READY
from timonel.errors import SpecError
from timonel.storage import Workspace
from timonel.training import mpi, rendezvous
from timonel.training.cluster import Cluster, read_cluster
from timonel.training.foreground import run_here, task_folder
from timonel.training.handles import Job, Run
from timonel.training.job import TASK_MODULE, job_spec, roles
from timonel.training.request import JobOptions, TrainingRequest
from timonel.training.settings import Settings
from timonel.training.spec import TrainSpec


@dataclass(frozen=True)
class ClusterMember:
    """This process's task within its cluster."""

    cluster: Cluster | None  # the cluster and this task; None if MPI provides it later
    settings: Settings  # with the cluster's numbers of tasks


def find_place(
    settings: Settings,
    cluster: str | os.PathLike[str] | None,
    task_type: str | None,
    task_index: int | None,
    environ: Mapping[str, str],
    given: Container[str],
) -> ClusterMember | None:
    """Return this process's task; None if a new job should be started.

    ``given`` are the names of the options that the user gave.
    """
    is_mpi = settings.distribution.launcher == "mpi"
    if cluster is None:
        if task_type is not None or task_index is not None:
            raise SpecError("--task-type and --task-index need --cluster")
        if not (is_mpi and mpi.is_rank(environ)):
            return None
        count = mpi.rank_count(environ)
        sizes = {} if count is None else {"workers": count}
        return ClusterMember(None, _sized(settings, sizes, "mpirun", given))
    if is_mpi:
        raise SpecError("--cluster and --launcher mpi cannot be combined")
    found = read_cluster(os.fspath(cluster), task_type, task_index, environ)
    if _has_chief_apart(settings, found):
        found = found.with_chief()
    if found.role == "evaluator" and not settings.evaluation.evaluator:
        raise SpecError(
            "The cluster has an evaluator, but --evaluator is missing",
            hint="give --evaluator to every task",
        )
    return ClusterMember(found, _sized(settings, _sizes(settings, found), "The cluster", given))


def train_here(
    request: TrainingRequest, workspace: Workspace, options: JobOptions, place: ClusterMember
) -> Run:
    """Run this process's task to its end."""
    if place.cluster is None:
        return _train_as_rank(request, workspace, options)
    cluster = place.cluster
    _check_port(cluster)
    prefix = rendezvous.run_prefix(cluster.tasks, options.name)
    if cluster.is_chief:
        document = rendezvous.lead(request, workspace, prefix, options)
    else:
        try:
            document = rendezvous.follow(request, workspace, prefix, options, cluster.task_id)
        except rendezvous.AlreadyEndedError as error:
            if not _serves(request.settings, cluster):
                raise
            return _run_of(workspace, error.run_id)  # serving tasks end together with the run
    ready = task_folder(workspace, document.run_id, cluster) / READY
    with rendezvous.naming_missing_tasks(cluster, ready):
        return _train(request, workspace, options, cluster, document)


def _check_port(cluster: Cluster) -> None:
    """Raise if another process listens on the task's port: TensorFlow would fail the run."""
    if cluster.role == "evaluator":
        return
    address = cluster.tasks[cluster.role][cluster.index]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(address.rpartition(":")[2])))
        except OSError as error:
            raise SpecError(
                f"{cluster.task_id} cannot listen on {address}: {error.strerror}",
                hint="stop the process that uses the port, or change the cluster",
            ) from error


def _train_as_rank(request: TrainingRequest, workspace: Workspace, options: JobOptions) -> Run:
    with mpi.joined() as (cluster, world):
        found: TrainSpec | Exception | None = None
        if cluster.is_chief:
            size = {"mpi": [str(cluster.size)]}
            prefix = rendezvous.run_prefix(size, options.name or request.program.file)
            try:
                found = rendezvous.lead(request, workspace, prefix, options)
            except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer
                found = error
        document: TrainSpec | Exception = world.bcast(found, root=0)
        mpi.leave()
        if isinstance(document, Exception):
            raise document
        return _train(request, workspace, options, cluster, document)


def _train(
    request: TrainingRequest,
    workspace: Workspace,
    options: JobOptions,
    cluster: Cluster,
    document: TrainSpec,
) -> Run:
    """Run a task with its own copy of the tasks' document."""
    run_id = document.run_id
    path = document.write(task_folder(workspace, run_id, cluster))
    own = RoleSpec(name=cluster.role)
    role = next((role for role in roles(request.settings) if role.name == cluster.role), own)
    spec = job_spec(request, workspace, run_id, options).model_copy(
        update={"module": TASK_MODULE, "args": ("--spec", str(path)), "roles": (role,)}
    )
    run_here(workspace, spec, cluster, serves=_serves(request.settings, cluster))
    return _run_of(workspace, run_id)


def _run_of(workspace: Workspace, run_id: str) -> Run:
    return Run(run_id, workspace, Job(run_id, get_engine(None, workspace)))


def _serves(settings: Settings, cluster: Cluster) -> bool:
    """Tell whether a task only serves others and ends with the run."""
    if cluster.role == "ps":
        return True
    needs_no_worker = settings.uses_parameter_servers or settings.ends_with_chief
    return cluster.role == "worker" and needs_no_worker and not cluster.is_chief


def _sizes(settings: Settings, cluster: Cluster) -> dict[str, int]:
    """Return the cluster's number of tasks for each option that requests one."""
    is_apart = _has_chief_apart(settings, cluster)
    workers = cluster.tasks.get("worker", ()) if is_apart else cluster.trainers
    return {"workers": max(1, len(workers)), "ps": len(cluster.tasks.get("ps", ()))}


def _has_chief_apart(settings: Settings, cluster: Cluster) -> bool:
    """Tell whether the chief schedules steps for workers instead of computing them."""
    by_servers = settings.distribution.strategy == "auto" and bool(cluster.tasks.get("ps"))
    return settings.uses_parameter_servers or by_servers


def _sized(
    settings: Settings, sizes: Mapping[str, int], source: str, given: Container[str]
) -> Settings:
    """Return the settings with these numbers of tasks; the user may have given no others."""
    distribution, servers = settings.distribution, settings.parameter_servers
    least, most = distribution.min_workers, distribution.workers
    requested = {"workers": most if least == most else f"{least}:{most}", "ps": servers.ps}
    for name, count in sizes.items():
        if name in given and requested[name] != count:
            raise SpecError(
                f"{source} has {count} {name}, but --{name} is {requested[name]}",
                hint=f"omit --{name}",
            )
    found = {"workers": most, "ps": servers.ps, **sizes}
    workers = {"workers": found["workers"], "min_workers": found["workers"]}
    return settings.model_copy(
        update={
            "distribution": distribution.model_copy(update=workers),
            "parameter_servers": servers.model_copy(update={"ps": found["ps"]}),
        }
    )
