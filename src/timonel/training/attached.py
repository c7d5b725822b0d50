"""Run one task of a user-started or MPI cluster in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.engines import get_engine
from timonel.errors import SpecError
from timonel.storage import Workspace
from timonel.training import mpi, rendezvous
from timonel.training.cluster import Cluster, read_cluster
from timonel.training.foreground import ForegroundTask, run_here
from timonel.training.handles import Job, Run
from timonel.training.job import environment
from timonel.training.request import JobOptions, Request
from timonel.training.settings import Settings


@dataclass(frozen=True)
class ClusterMember:
    """This process's task within its cluster.

    Attributes:
        cluster: The cluster and this task; None if MPI provides it later.
        settings: How it trains, with the cluster's numbers of tasks.
    """

    cluster: Cluster | None
    settings: Settings


def find_place(
    settings: Settings,
    cluster: str | os.PathLike[str] | None,
    task_type: str | None,
    task_index: int | None,
    environ: Mapping[str, str],
) -> ClusterMember | None:
    """Return this process's task; None if a new job should be started.

    Raises:
        SpecError: The options contradict each other or the cluster.
        NotFoundError: The cluster file or variable does not exist.
        MissingExtraError: MPI is requested but not installed.
    """
    is_mpi = settings.distribution.launcher == "mpi"
    if is_mpi:
        mpi.check_launcher(settings)
    if cluster is None:
        if task_type is not None or task_index is not None:
            raise SpecError("--task-type and --task-index need --cluster")
        return _rank(settings, environ) if is_mpi and mpi.is_rank(environ) else None
    if is_mpi:
        raise SpecError("--cluster and --launcher mpi cannot be combined")
    found = read_cluster(os.fspath(cluster), task_type, task_index, environ)
    if found.role == "evaluator" and not settings.evaluation.evaluator:
        raise SpecError(
            "The cluster has an evaluator, but --evaluator is missing",
            hint="give --evaluator to every task",
        )
    return ClusterMember(found, _sized(settings, found))


def train_here(
    request: Request, workspace: Workspace, options: JobOptions, place: ClusterMember
) -> Run:
    """Run this process's task to its end.

    Raises:
        JobError: The task failed; the error's exit code is the task's.
        Interrupted: The user pressed Ctrl-C.
    """
    if place.cluster is None:
        return _as_rank(request, workspace, options)
    cluster = place.cluster
    prefix = rendezvous.run_prefix(cluster.tasks, options.name)
    if cluster.is_chief:
        spec = rendezvous.lead(request, workspace, prefix, options)
        return _run(request, workspace, cluster, spec, spec.parent.name)
    try:
        told = rendezvous.follow(request, workspace, prefix, options, cluster.task_id)
    except rendezvous.AlreadyEndedError as error:
        if not _serves(request.settings, cluster):
            raise
        # Serving tasks end together with the run.
        return Run(error.run_id, workspace, Job(error.run_id, get_engine(None, workspace)))
    folder = workspace.jobs / told.run_id / "tasks" / cluster.task_id
    return _run(request, workspace, cluster, told.write(folder), told.run_id)


def _rank(settings: Settings, environ: Mapping[str, str]) -> ClusterMember:
    """Return the place of an MPI rank; joining MPI later completes it.

    Raises:
        SpecError: mpirun started a different number of ranks.
    """
    asked, count = settings.distribution.workers, mpi.rank_count(environ)
    if count is None:
        return ClusterMember(None, settings)
    if asked not in {1, count}:
        raise SpecError(
            f"mpirun started {count} ranks, but --workers is {asked}", hint="omit --workers"
        )
    return ClusterMember(None, _with_workers(settings, count))


def _as_rank(request: Request, workspace: Workspace, options: JobOptions) -> Run:
    rank, world = mpi.join()
    cluster = rank.cluster
    with rank.port:
        count = len(cluster.trainers)
        spec: Any = None
        if cluster.is_chief:
            spec = _lead_ranks(request, workspace, options, count)
        spec = world.bcast(spec, root=0)
        mpi.leave()
        if isinstance(spec, Exception):
            raise spec
        return _run(request, workspace, cluster, spec, spec.parent.name)


def _lead_ranks(
    request: Request, workspace: Workspace, options: JobOptions, count: int
) -> Path | Exception:
    """Return the path of the tasks' document, or an error to broadcast."""
    prefix = rendezvous.run_prefix({"mpi": [str(count)]}, options.name or request.program.file)
    try:
        return rendezvous.lead(request, workspace, prefix, options)
    except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer
        return error


def _run(request: Request, workspace: Workspace, cluster: Cluster, spec: Path, run_id: str) -> Run:
    task = ForegroundTask(
        workspace=workspace,
        run_id=run_id,
        spec=spec,
        cluster=cluster,
        env=environment(request),
        cwd=request.program.working_dir,
        serves=_serves(request.settings, cluster),
    )
    run_here(task)
    return Run(run_id, workspace, Job(run_id, get_engine(None, workspace)))


def _serves(settings: Settings, cluster: Cluster) -> bool:
    """Tell whether a task only serves others and ends with the run."""
    if cluster.role == "ps":
        return True
    needs_no_worker = settings.uses_parameter_servers or settings.ends_with_chief
    return cluster.role == "worker" and needs_no_worker and not cluster.is_chief


def _sized(settings: Settings, cluster: Cluster) -> Settings:
    """Return the settings with the cluster's numbers of tasks.

    Raises:
        SpecError: Different numbers were requested.
    """
    has_servers = settings.uses_parameter_servers or (
        settings.distribution.strategy == "auto" and "ps" in cluster.tasks
    )
    workers = cluster.tasks.get("worker", ()) if has_servers else cluster.trainers
    found = {"workers": max(1, len(workers)), "ps": len(cluster.tasks.get("ps", ()))}
    asked = {"workers": settings.distribution.workers, "ps": settings.parameter_servers.ps}
    for name, count in found.items():
        if asked[name] not in {count, 1 if name == "workers" else 0}:
            raise SpecError(
                f"The cluster has {count} {name}, but --{name} is {asked[name]}",
                hint=f"omit --{name}",
            )
    servers = settings.parameter_servers.model_copy(update={"ps": found["ps"]})
    sized = _with_workers(settings, found["workers"])
    return sized.model_copy(update={"parameter_servers": servers})


def _with_workers(settings: Settings, count: int) -> Settings:
    sizes = {"workers": count, "min_workers": count}
    distribution = settings.distribution.model_copy(update=sizes)
    return settings.model_copy(update={"distribution": distribution})
