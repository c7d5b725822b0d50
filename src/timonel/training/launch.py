"""Starting a training job: the control side. Imports no TensorFlow."""

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
    """Run a training program as a job, and wait for its end.

    The program stays as it is: plain Keras with ``model.fit``, no word of distribution.

    Args:
        entry: A script, a notebook, the name of a module as in ``python -m``, or a function.
        data: A converted dataset, which `timonel.data.load` finds by itself, or several by name.
        params: Parameters; each reaches a script as a flag ``--name=value``, a function as a
            keyword.
        args: Further arguments of a script.
        strategy: ``auto``, ``one-device``, ``mirrored``, ``central-storage``, ``multi-worker``,
            ``parameter-server``, ``tpu``, or ``none`` for a script that distributes itself: it
            gets ``TF_CONFIG`` and nothing else.
        workers: Processes that train together: 4, or ``"2:8"`` for a job that goes on with as few
            as 2 and grows to 8.
        ps: Parameter servers.
        evaluator: Evaluate each new checkpoint beside training, in a process of its own.
        devices_per_worker: Devices of each: GPUs, or logical CPU devices where there are none.
        launcher: ``processes``, or ``mpi`` for tasks that mpirun starts.
        chief: The role of the process that leads: ``chief``, or ``worker`` for a cluster without
            a chief, in which worker 0 leads.
        success_policy: When the job has succeeded: ``chief``, once that has, or ``all-workers``.
            By default all workers, but with parameter servers and the strategy ``none`` the chief.
        cross_device_ops: How the devices of a process add up: ``nccl``, ``hierarchical`` or
            ``one-device``.
        collectives: How processes add up: ``auto``, ``ring`` or ``nccl``.
        compress_gradients: ``bfloat16`` or ``float16``: the type in which gradients travel.
        max_staleness: With parameter servers: gradients computed on weights older than this many
            updates are dropped, and the others count 1 / max(1, staleness). ``workers - 1`` unless
            given; with ``"any"`` each counts in full.
        backup_workers: With parameter servers: each step takes the gradients of the fastest
            ``workers - backup_workers``.
        warmup_epochs: With parameter servers: epochs that one worker trains alone at first.
        precision: ``float32``, ``bfloat16`` or ``float16``, in which layers compute.
        xla: Compile the step with XLA.
        deterministic: Use deterministic operations only.
        batch_size_is: What the script's batch sizes mean: ``global`` or ``per-replica``.
        accumulate_gradients: Batches whose gradients make up one update.
        scale_learning_rate: ``none``, ``linear`` or ``sqrt`` with the number of replicas.
        learning_rate_warmup: Updates in which the learning rate grows to its value.
        checkpoint_steps: Save state after every so many steps too, not only after epochs.
        checkpoint_seconds: Save state after so many seconds too.
        keep_checkpoints: How many of the newest checkpoints are kept.
        keep_best: A metric whose best epoch is kept as well: ``val_loss``, ``max:val_accuracy``.
        checkpoint_uri: A folder or bucket that checkpoints are copied to.
        early_stopping: ``METRIC`` or ``METRIC:PATIENCE``, by the evaluator's checkpoints.
        stop_on_nan: A loss that is no number ends the job.
        stall_timeout: A task that makes no step for so many seconds is taken for hung.
        memory_per_device: The most memory of each GPU; by default it grows as needed.
        threads: Threads that each process computes with; by default they share the cores.
        profile: Steps to profile, such as ``10:20``, for TensorBoard.
        cluster: A file in the form of ``TF_CONFIG``, or ``env`` for that variable: run one task of
            this cluster here, in place of a job on an engine. All its tasks need one workspace.
        task_type: The role of this task in the cluster, if that does not say it.
        task_index: Its index within the role.
        workspace: A workspace or where one is; see `timonel.storage.find_workspace`.
        engine: An engine or the name of one.
        detach: Return once the job is submitted.
        pass_job_dir: Give the script ``--job-dir=<folder>`` too.
        name: What to call the run.
        max_restarts: How often the job goes on after it lost a task.
        warm: Fork the tasks from a process that has TensorFlow imported, where that is possible.
        wandb: Copy the run to Weights & Biases.
        wandb_project: The project there; by default the name of what it trains on.
        seed: Seed of Keras, NumPy, TensorFlow and ``random`` in every task; a new one by default.
        progress: Called with each event of the run: ``progress``, ``metrics``, ``restart``, ...
            By default a notebook shows them in the cell's output, and nothing does elsewhere;
            ``False`` shows nothing there either.

    Raises:
        NotFoundError: There is no such script or dataset.
        SpecError: An argument cannot be used.
        UserCodeError: The script raised; the message is its traceback.
        JobError: The job failed for another reason.
        Interrupted: It was stopped, or Ctrl-C came.
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
