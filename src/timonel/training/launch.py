"""Start training jobs from the control side. Imports no TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from timonel.engines import Engine, get_engine
from timonel.errors import Interrupted, SpecError
from timonel.storage import Workspace, find_workspace
from timonel.tracking import follow_events, new_run_id
from timonel.training import attached, record
from timonel.training.entries import Entry
from timonel.training.finish import interruption
from timonel.training.handles import Job, Run
from timonel.training.job import job_spec
from timonel.training.options import JobOptions
from timonel.training.request import Request, check_request
from timonel.training.settings import OPTION_NAMES, Settings, parse_workers
from timonel.training.worker.task import ranks

Progress = Callable[[Mapping[str, Any]], None]


def train(  # noqa: PLR0913 - the façade's function: one call says all, all but one optional
    entry: Entry,
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    strategy: str = "auto",
    workers: int | str = 1,
    ps: int = 0,
    evaluator: bool = False,
    devices_per_worker: int = 1,
    launcher: str = "processes",
    chief: str = "chief",
    success_policy: str = "auto",
    cross_device_ops: str | None = None,
    collectives: str = "auto",
    compress_gradients: str | None = None,
    max_staleness: int | str | None = None,
    backup_workers: int | None = None,
    warmup_epochs: int = 0,
    precision: str = "float32",
    xla: bool = False,
    deterministic: bool = False,
    batch_size_is: str = "global",
    accumulate_gradients: int = 1,
    scale_learning_rate: str = "none",
    learning_rate_warmup: int = 0,
    checkpoint_steps: int | None = None,
    checkpoint_seconds: float | str | None = None,
    keep_checkpoints: int = 2,
    keep_best: str | None = None,
    checkpoint_uri: str | None = None,
    early_stopping: str | None = None,
    stop_on_nan: bool = False,
    stall_timeout: float | str | None = None,
    memory_per_device: int | str | None = None,
    threads: int | None = None,
    profile: str | None = None,
    cluster: str | os.PathLike[str] | None = None,
    task_type: str | None = None,
    task_index: int | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    engine: str | Engine = "local",
    detach: bool = False,
    pass_job_dir: bool = False,
    name: str | None = None,
    max_restarts: int = 3,
    warm: bool = True,
    wandb: bool = False,
    wandb_project: str | None = None,
    seed: int | None = None,
    progress: Progress | Literal[False] | None = None,
) -> Run:
    """Run a training program as a job and wait for its end.

    The program needs no changes: plain Keras with ``model.fit``, no distribution code.

    Args:
        entry: A script, a notebook, the name of a module as in ``python -m``, or a function.
        data: A converted dataset, which `timonel.data.load` finds by itself, or several by name.
        params: Parameters; a script receives each as a flag ``--name=value``, a function as a
            keyword.
        args: Further arguments of a script.
        strategy: ``auto``, ``one-device``, ``mirrored``, ``central-storage``, ``multi-worker``,
            ``parameter-server``, ``tpu``, or ``none`` for a script that distributes itself: it
            gets ``TF_CONFIG`` and nothing else.
        workers: Processes that train together: 4, or ``"2:8"`` for a job that continues with as
            few as 2 and grows to 8.
        ps: Number of parameter servers.
        evaluator: Evaluate each new checkpoint beside training, in a separate process.
        devices_per_worker: Devices of each: GPUs, or logical CPU devices without GPUs.
        launcher: ``processes``, or ``mpi`` for tasks that mpirun starts.
        chief: Role of the leading process: ``chief``, or ``worker`` for a cluster without a
            chief, in which worker 0 leads.
        success_policy: When the job has succeeded: ``chief``, once the chief has, or
            ``all-workers``. By default all workers, but the chief with parameter servers and the
            strategy ``none``.
        cross_device_ops: Reduction across the devices of a process: ``nccl``, ``hierarchical``
            or ``one-device``.
        collectives: Reduction across processes: ``auto``, ``ring`` or ``nccl``.
        compress_gradients: ``bfloat16`` or ``float16``: type of gradients sent between replicas.
        max_staleness: With parameter servers: gradients computed on weights older than this many
            updates are dropped, and the others count 1 / max(1, staleness). Default:
            ``workers - 1``; with ``"any"`` each counts in full.
        backup_workers: With parameter servers: each step uses the gradients of the fastest
            ``workers - backup_workers``.
        warmup_epochs: With parameter servers: initial epochs in which one worker trains alone.
        precision: ``float32``, ``bfloat16`` or ``float16``, in which layers compute.
        xla: Compile the step with XLA.
        deterministic: Use deterministic operations only.
        batch_size_is: Meaning of the script's batch sizes: ``global`` or ``per-replica``.
        accumulate_gradients: Batches whose gradients make up one update.
        scale_learning_rate: ``none``, ``linear`` or ``sqrt`` with the number of replicas.
        learning_rate_warmup: Updates in which the learning rate grows to its value.
        checkpoint_steps: Save a checkpoint every so many steps too, not only after epochs.
        checkpoint_seconds: Save a checkpoint every so many seconds too.
        keep_checkpoints: Number of newest checkpoints to keep.
        keep_best: A metric whose best epoch is kept as well: ``val_loss``, ``max:val_accuracy``.
        checkpoint_uri: A folder or bucket to copy checkpoints to.
        early_stopping: ``METRIC`` or ``METRIC:PATIENCE``, by the evaluator's checkpoints.
        stop_on_nan: End the job when a loss is NaN or infinite.
        stall_timeout: Seconds without a step after which a task counts as hung.
        memory_per_device: Memory limit of each GPU; by default it grows as needed.
        threads: Compute threads of each process; by default processes share the cores.
        profile: Steps to profile, such as ``10:20``, for TensorBoard.
        cluster: A file in the form of ``TF_CONFIG``, or ``env`` for that variable: run one task of
            this cluster here instead of a job on an engine. All its tasks need one workspace.
        task_type: Role of this task, if the cluster file does not say it.
        task_index: Index of this task within its role.
        workspace: A workspace or its location; see `timonel.storage.find_workspace`.
        engine: An engine or its name.
        detach: Return once the job is submitted.
        pass_job_dir: Also pass ``--job-dir=<folder>`` to the script.
        name: Name of the run.
        max_restarts: How often the job restarts after it lost a task.
        warm: Fork the tasks from a process with TensorFlow imported, where possible.
        wandb: Copy the run to Weights & Biases.
        wandb_project: The Weights & Biases project; by default the name of the training data.
        seed: Seed of Keras, NumPy, TensorFlow and ``random`` in every task; random by default.
        progress: Called with each event of the run: ``progress``, ``metrics``, ``restart``, ...
            By default events are displayed in notebooks only; ``False`` disables that too.

    Raises:
        NotFoundError: The script or a dataset does not exist.
        SpecError: An argument is invalid.
        UserCodeError: The script raised; the message is its traceback.
        JobError: The job failed for another reason.
        Interrupted: The job was stopped, or the user pressed Ctrl-C.
    """
    given = dict(locals())  # before any other name is bound: the options, by their names
    least, most = parse_workers(workers)
    chosen_options = {name: given[name] for name in OPTION_NAMES if name in given}
    settings = Settings.of({**chosen_options, "workers": most, "min_workers": least})
    place = attached.find_place(settings, cluster, task_type, task_index, os.environ)
    options = JobOptions.of(
        name=name,
        max_restarts=max_restarts,
        warm=warm,
        pass_job_dir=pass_job_dir,
        wandb=wandb,
        wandb_project=wandb_project,
        seed=seed,
    )
    request = check_request(
        entry,
        data=data,
        settings=settings if place is None else place.settings,
        params=params,
        args=args,
        pass_job_dir=pass_job_dir,
    )
    found = workspace if isinstance(workspace, Workspace) else find_workspace(workspace)
    if place is not None:
        if detach:
            raise SpecError("expected to run a task of one's own cluster here, got detach")
        return attached.train_here(request, found, options, place)
    if settings.distribution.launcher == "mpi":
        ranks.find_mpirun()
    chosen = get_engine(engine, found) if isinstance(engine, str) else engine
    run = _submit(request, found, chosen, options)
    if not detach:
        _follow(run, progress)
    return run


def _submit(request: Request, workspace: Workspace, engine: Engine, options: JobOptions) -> Run:
    run_id = new_run_id("train")
    spec = job_spec(request, workspace, run_id, options)
    writer = record.begin(request, workspace, run_id, options)
    try:
        record.describe(request, writer, options)
        engine.submit(spec)
    except KeyboardInterrupt:
        writer.finish("stopped", "stopped by the user before it began", "stopped")
        raise Interrupted(f"interrupted, {run_id} was not started") from None
    except BaseException as error:
        writer.finish("failed", str(error), "engine")
        raise
    return Run(run_id, workspace, Job(run_id, engine))


def _follow(run: Run, progress: Progress | Literal[False] | None) -> None:
    try:
        if progress is None and "IPython" in sys.modules:
            from timonel.training.display import notebook  # noqa: PLC0415 - in kernels alone

            if notebook.in_notebook():
                notebook.follow(run)
        elif progress:
            for event in follow_events(
                run.workspace, run.id, stop=lambda: run.job.status().state.is_final
            ):
                progress(event)
        run.wait()
    except KeyboardInterrupt:
        run.job.stop()
        run.job.wait()
        raise interruption(run.workspace, run.id) from None
