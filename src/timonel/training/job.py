"""Engine job specifications for training requests.

Pure except for reading the working directory and the environment.

| strategy | chief | workers of ``--workers N`` |
|---|---|---|
| parameter servers | coordinates | N servers; a lost one restarts in place |
| any other | is the first of N | N - 1; losing one restarts all tasks |
| any other, ``--chief worker`` | none: worker 0 leads | N |
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from timonel.engines import CommandSpec, JobSpec, RestartPolicy, RoleSpec
from timonel.storage import Workspace
from timonel.training.entries import LEGACY_KERAS
from timonel.training.request import JobOptions, TrainingRequest
from timonel.training.settings import Settings
from timonel.training.upload import PATIENCE_S as UPLOAD_PATIENCE_S

# The mirror spends seconds on imports and runs at low priority.
_MIRROR_PATIENCE_S = 120.0
TASK_MODULE = "timonel.training.worker"
_MPI_MODULE = "timonel.training.worker.mpi"
_CLIENTS = {"s3": ("s3fs",), "s3a": ("s3fs",), "gs": ("gcsfs",), "gcs": ("gcsfs",)}
"""Packages for buckets, whose import takes a second in each task."""
_PRELOAD = ("tensorflow", "timonel.training.worker.bootstrap", "timonel.training.worker.managed")


def job_spec(
    request: TrainingRequest, workspace: Workspace, run_id: str, options: JobOptions
) -> JobSpec:
    """Build the engine's job specification for a training request; the run's id is the job's."""
    is_mpi = request.settings.distribution.launcher == "mpi"
    # mpirun starts each rank anew; and what a program sets before its imports must come first.
    is_warm = options.warm and not is_mpi and not request.program.sets_environment
    env = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}  # a quiet start
    if request.program.keras == "tf_keras":
        env[LEGACY_KERAS] = "1"
    client = _CLIENTS.get(workspace.uri.partition("://")[0], ())
    spec = JobSpec(
        job_id=run_id,
        module=_MPI_MODULE if is_mpi else TASK_MODULE,
        args=("--workspace", workspace.uri, "--run", run_id),
        roles=tuple(roles(request.settings)),
        success="leader" if request.settings.ends_with_chief else "all",
        env=env,
        source=str(request.program.working_dir),
        folders=(f"runs/{run_id}",),
        preload=(request.program.keras, *_PRELOAD, *client) if is_warm else (),
        restart=RestartPolicy(max_restarts=options.max_restarts),
        max_runtime_s=options.max_runtime_s,
        stall_timeout_s=request.settings.faults.stall_timeout,
        sidecars=tuple(_sidecars(workspace, run_id)),
        epilogue=CommandSpec(module="timonel.training.finish", args=(workspace.uri, run_id)),
    )
    if request.manifest:
        spec = request.manifest.complete(spec)
    return options.machines.complete(spec)


def _sidecars(workspace: Workspace, run_id: str) -> Iterator[CommandSpec]:
    args = (workspace.uri, run_id)
    if workspace.is_remote:
        yield CommandSpec(module="timonel.training.upload", args=args, patience_s=UPLOAD_PATIENCE_S)
    yield CommandSpec(
        module="timonel.tracking.mirrors.sidecar", args=args, patience_s=_MIRROR_PATIENCE_S
    )


def roles(settings: Settings) -> Iterator[RoleSpec]:
    """Yield a job's roles for these settings, the leading one first; ranks of MPI are one task."""
    has_chief = settings.distribution.chief == "chief"
    if has_chief:
        yield RoleSpec(name="chief")
    if settings.distribution.launcher == "mpi":
        return
    most, least = settings.distribution.workers, settings.distribution.min_workers
    if settings.uses_parameter_servers:
        yield RoleSpec(
            name="worker",
            replicas=most,
            min_replicas=least if least < most else None,
            on_loss="restart-task",
            serves=True,
        )
    elif not has_chief:
        yield RoleSpec(name="worker", replicas=most)
    elif most > 1:
        fewest = least - 1 if least < most else None  # the chief is one of them
        yield RoleSpec(name="worker", replicas=most - 1, min_replicas=fewest)
    if settings.parameter_servers.ps:
        yield RoleSpec(name="ps", replicas=settings.parameter_servers.ps)
    if settings.evaluation.evaluator:
        yield RoleSpec(name="evaluator", on_loss="restart-task", essential=False)
