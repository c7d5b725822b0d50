"""Starting a training job: the control side. Imports no TensorFlow."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.engines import CommandSpec, Engine, JobSpec, RestartPolicy, RoleSpec, get_engine
from timonel.errors import Interrupted, SpecError
from timonel.storage import Workspace, digest_bytes, find_workspace, write_bytes
from timonel.tracking import Artifact, follow_events, new_run_id, start_run
from timonel.training.handles import Job, Run
from timonel.training.request import LEGACY_KERAS, Request, check_request
from timonel.training.spec import TrainSpec

# A mirror imports for seconds, and gets a processor only where nobody else wants it.
_MIRROR_PATIENCE_S = 120.0
_TASK_MODULE = "timonel.training.worker"
_PRELOAD = ("tensorflow", "timonel.training.worker.bootstrap", "timonel.training.worker.managed")
SOURCE_FOLDER = "source"
_SEEDS = 1 << 32
"""NumPy takes no other seeds."""

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class _Options:
    """How a job is run, apart from what it does."""

    name: str | None
    max_restarts: int
    warm: bool
    pass_job_dir: bool
    seed: int

    def __post_init__(self) -> None:
        if self.max_restarts < 0:
            raise SpecError(f"expected max_restarts of at least 0, got {self.max_restarts}")
        if not 0 <= self.seed < _SEEDS:
            raise SpecError(f"expected a seed from 0 to {_SEEDS - 1}, got {self.seed}")


def train(  # noqa: PLR0913 - the façade's function: one call says all, all but one optional
    entry: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None = None,
    workers: int = 1,
    devices_per_worker: int = 1,
    strategy: str = "auto",
    params: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    workspace: Workspace | str | os.PathLike[str] | None = None,
    engine: str | Engine = "local",
    detach: bool = False,
    pass_job_dir: bool = False,
    name: str | None = None,
    max_restarts: int = 3,
    warm: bool = True,
    seed: int | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run a training script as a job, and wait for its end.

    The script stays as it is: plain Keras with ``model.fit``, no word of distribution. What its
    ``fit`` is given as batch size is the global one, divided among all replicas.

    Args:
        entry: The script.
        data: A converted dataset, which `timonel.data.load` finds by itself, or several by name.
        workers: Processes that train together.
        devices_per_worker: Devices of each: GPUs, or logical CPU devices where there are none.
        strategy: ``auto``, ``mirrored``, ``multi-worker-mirrored``, or ``none`` for a script that
            distributes itself: it gets ``TF_CONFIG`` and nothing else.
        params: Parameters; each reaches the script as a flag ``--name=value``.
        args: Further arguments of the script.
        workspace: A workspace or where one is; see `timonel.storage.find_workspace`.
        engine: An engine or the name of one.
        detach: Return once the job is submitted.
        pass_job_dir: Give the script ``--job-dir=<folder>`` too.
        name: What to call the run.
        max_restarts: How often the job goes on after it lost a task.
        warm: Fork the tasks from a process that has TensorFlow imported, where that is possible.
        seed: Seed of Keras, NumPy, TensorFlow and ``random`` in every task; a new one by default.
        progress: Called with each event of the run: ``progress``, ``metrics``, ``restart``, ...

    Raises:
        NotFoundError: There is no such script or dataset.
        SpecError: An argument cannot be used.
        UserCodeError: The script raised; the message is its traceback.
        JobError: The job failed for another reason.
        Interrupted: It was stopped, or Ctrl-C came.
    """
    request = check_request(
        entry,
        data=data,
        workers=workers,
        devices_per_worker=devices_per_worker,
        strategy=strategy,
        params=params,
        args=args,
    )
    options = _Options(
        name=name,
        max_restarts=max_restarts,
        warm=warm,
        pass_job_dir=pass_job_dir,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
    )
    found = workspace if isinstance(workspace, Workspace) else find_workspace(workspace)
    chosen = get_engine(engine, found) if isinstance(engine, str) else engine
    run = _submit(request, found, chosen, options)
    if not detach:
        _follow(run, progress)
    return run


def job_spec(request: Request, workspace: Workspace, run_id: str, options: Any) -> JobSpec:
    """Return what is asked of an engine. Pure but for the present folder and environment.

    Args:
        request: What is trained.
        workspace: Where the run and the job are.
        run_id: The run's id, which is the job's too.
        options: How the job is run.
    """
    roles = [RoleSpec(name="chief")]
    if request.workers > 1:
        roles.append(RoleSpec(name="worker", replicas=request.workers - 1))
    return JobSpec(
        job_id=run_id,
        module=_TASK_MODULE,
        args=("--spec", str(workspace.runs / run_id / "train.json")),
        roles=tuple(roles),
        env=_environment(request),
        working_dir=str(Path.cwd()),
        job_dir=str(workspace.jobs / run_id),
        preload=(request.keras, *_PRELOAD) if options.warm else (),
        restart=RestartPolicy(max_restarts=options.max_restarts),
        sidecars=(
            CommandSpec(
                module="timonel.tracking.mirror",
                args=(str(workspace.root), run_id, "--follow"),
                patience_s=_MIRROR_PATIENCE_S,
            ),
        ),
        epilogue=CommandSpec(module="timonel.training.finish", args=(str(workspace.root), run_id)),
    )


def _submit(request: Request, workspace: Workspace, engine: Engine, options: _Options) -> Run:
    run_id = new_run_id("train")
    spec = job_spec(request, workspace, run_id, options)
    content = request.script.read_bytes()
    writer = start_run(
        workspace,
        "train",
        run_id=run_id,
        name=options.name,
        params={**request.params, **_settings(request, options)},
        inputs=[dataset.artifact() for dataset in request.datasets.values()],
        job_id=run_id,
        code_dir=request.script.parent,
    )
    try:
        copy = writer.folder / SOURCE_FOLDER / request.script.name
        write_bytes(copy, content)
        writer.input(
            Artifact("source", str(request.script), digest_bytes(content), request.script.name)
        )
        _train_spec(request, workspace, run_id, options).write(writer.folder)
        engine.submit(spec)
    except KeyboardInterrupt:
        writer.finish("stopped", "stopped by the user before it began", "stopped")
        raise Interrupted(f"interrupted, {run_id} was not started") from None
    except BaseException as error:
        writer.finish("failed", str(error), "engine")
        raise
    return Run(run_id, workspace, Job(run_id, engine))


def _train_spec(
    request: Request, workspace: Workspace, run_id: str, options: _Options
) -> TrainSpec:
    return TrainSpec(
        run_id=run_id,
        workspace=str(workspace.root),
        script=str(request.script),
        args=request.args,
        params=request.params,
        data={name: dataset.uri for name, dataset in request.datasets.items()},
        strategy=request.strategy,
        devices_per_worker=request.devices_per_worker,
        keras=request.keras,
        pass_job_dir=options.pass_job_dir,
        seed=options.seed,
    )


def _settings(request: Request, options: _Options) -> dict[str, Any]:
    """Return what decides the outcome beside the user's own parameters, under names of ours."""
    return {
        "timonel.workers": request.workers,
        "timonel.devices_per_worker": request.devices_per_worker,
        "timonel.strategy": request.strategy.value,
        "timonel.seed": options.seed,
        **({"timonel.args": " ".join(request.args)} if request.args else {}),
    }


def _environment(request: Request) -> dict[str, str]:
    """Return the environment of the tasks: TensorFlow's remarks on its start are left out."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2")}
    return {**quiet, LEGACY_KERAS: "1"} if request.keras == "tf_keras" else quiet


def _follow(run: Run, progress: Progress | None) -> None:
    try:
        if progress is not None:
            for event in follow_events(
                run.workspace, run.id, stop=lambda: run.job.status().state.is_final
            ):
                progress(event)
        run.wait()
    except KeyboardInterrupt:
        run.job.stop()
        run.job.wait()
        raise Interrupted(
            f"interrupted, {run.id} has stopped", hint="its checkpoints are kept"
        ) from None
