"""Start training jobs from the control side. Imports no TensorFlow."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Unpack, cast

from timonel.arguments import checked
from timonel.engines import Engine, PreviewingEngine, get_engine
from timonel.errors import InputError, Interrupted, SpecError
from timonel.options import documented, with_defaults
from timonel.storage import Workspace, find_workspace
from timonel.tracking import new_run_id
from timonel.training import attached, jobs, mpi, record
from timonel.training.entries import Entry
from timonel.training.finish import interruption
from timonel.training.handles import Job, Run
from timonel.training.job import job_spec
from timonel.training.kubeflow.plan import ManifestPlan, plan_manifest
from timonel.training.quantize_aware.plan import FineTuning, plan_fine_tuning
from timonel.training.request import JobOptions, TrainingRequest, check_request
from timonel.training.settings import Settings, settings_of
from timonel.training.staging import copy_datasets, with_copies
from timonel.training.train_options import TrainOptions

_logger = logging.getLogger(__name__)
Progress = Callable[[Mapping[str, Any]], None]


@checked(unknown="give parameters of the script as params={{{name!r}: {value}}}")
@documented(TrainOptions)
def train(  # noqa: PLR0913 - the public function: all but one are optional
    entry: Entry | None = None,
    *,
    data: str | os.PathLike[str] | Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    args: Sequence[str] = (),
    quantize_aware: str | None = None,
    manifest: str | os.PathLike[str] | None = None,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    on: str | Engine | None = None,
    detach: bool = False,
    progress: Progress | Literal[False] | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Run a training program as a job and wait for its end.

    The program needs no changes: plain Keras with ``model.fit``, no distribution code.

    Args:
        entry: A script, a notebook, the name of a module as in ``python -m``, or a function.
        data: A converted dataset, which `timonel.data.load` finds by itself, or several by name.
        params: Parameters; a script receives each as a flag ``--name=value``, a function as a
            keyword.
        args: Further arguments of a script.
        quantize_aware: Instead of an entry, a run whose model is fine-tuned with simulated 8-bit
            integers: its ID or a prefix of it, its name, or ``last``. By default on the run's
            dataset; ``params`` changes ``epochs``, ``learning_rate`` and ``batch_size``.
        manifest: A file with a TFJob or an MPIJob of Kubeflow, which names the program and the
            tasks. An entry replaces its program, and ``args`` its arguments.
        workspace: A workspace or its location; see `timonel.storage.find_workspace`.
        on: Where it runs: an engine or its name, such as ``kubernetes``; by default this machine.
        detach: Return once the job is submitted.
        progress: Called with each event of the run: ``progress``, ``metrics``, ``restart``, ...
            By default events are displayed in notebooks only; ``False`` disables that too.
        **options: See `TrainOptions`.

    Raises:
        NotFoundError: The script or a dataset does not exist.
        SpecError: An argument is invalid.
        UserCodeError: The script raised; the message is its traceback.
        JobError: The job failed for another reason.
        Interrupted: The job was stopped, or the user pressed Ctrl-C.
    """
    found = find_workspace(workspace)
    asked = _Asked(entry, data, params, args, quantize_aware, manifest)
    plan = None
    if manifest is not None:
        on = _engine(on, found)
        plan = asked.plan(on)
    given = _given(options, plan)
    settings = settings_of(given)
    place = attached.find_place(
        settings, given["cluster"], given["task_type"], given["task_index"], os.environ, options
    )
    job_options = JobOptions.of(given)
    request = asked.request(found, plan, settings if place is None else place.settings, job_options)
    if place is not None:
        _check_here(found, {"detach": detach, "on": on is not None})
        return attached.train_here(request, found, job_options, place)
    if settings.distribution.launcher == "mpi":
        mpi.check_installed()
    run = submit(request, found, _engine(on, found), job_options)
    asked.log_notes(plan)
    if not detach:
        _follow(run, progress)
    return run


def preview(
    entry: Entry | None, *, workspace: Workspace, on: str | None, **arguments: Any
) -> list[dict[str, Any]]:
    """Return the objects that `train` with these arguments would create; create nothing."""
    asked = _Asked(entry, **{name: arguments.pop(name) for name in _Asked.NAMES})
    options = cast("TrainOptions", arguments)
    if options.get("cluster") is not None:
        raise SpecError("--dry-run cannot be used with --cluster: the task runs here")
    where = get_engine(on, workspace)
    if not isinstance(where, PreviewingEngine):
        raise SpecError(
            f"--dry-run shows objects of a cluster, and the engine {where.name} creates none",
            hint="add --on kubernetes",
        )
    plan = asked.plan(where)
    given = _given(options, plan)
    job_options = JobOptions.of(given)
    request = asked.request(workspace, plan, settings_of(given), job_options)
    _check_seen(request, workspace, where)
    request = with_copies(request, workspace, where.sees)
    objects = where.preview(job_spec(request, workspace, new_run_id("train"), job_options))
    asked.log_notes(plan)
    return objects


@dataclass(frozen=True)
class _Asked:
    """Arguments of `train` that say what is trained."""

    NAMES: ClassVar = ("data", "params", "args", "quantize_aware", "manifest")

    entry: Entry | None
    data: str | os.PathLike[str] | Mapping[str, str] | None
    params: Mapping[str, Any] | None
    args: Sequence[str]
    quantize_aware: str | None
    manifest: str | os.PathLike[str] | None

    def plan(self, engine: Engine) -> ManifestPlan | None:
        if self.manifest is None:
            return None
        path, shares = Path(self.manifest), engine.shares_machine
        return plan_manifest(path, self.entry, self.args, os.environ, shares_machine=shares)

    def request(
        self,
        workspace: Workspace,
        plan: ManifestPlan | None,
        settings: Settings,
        options: JobOptions,
    ) -> TrainingRequest:
        entry, data, params, args = plan or self.entry, self.data, self.params, self.args
        if plan is not None:
            if self.quantize_aware is not None:
                raise SpecError("--file and --quantize-aware cannot be used together")
            args = plan.args
        elif self.quantize_aware is not None:
            entry, data, params = self._fine_tuning(workspace, self.quantize_aware)
        if entry is None:
            raise SpecError("nothing to train", hint="give a script, a notebook or a module")
        return check_request(
            entry,
            data=data,
            settings=settings,
            params=params,
            args=args,
            pass_job_dir=options.pass_job_dir,
        )

    def _fine_tuning(self, workspace: Workspace, run: str) -> FineTuning:
        if self.entry is not None:
            raise SpecError(
                f"--quantize-aware trains the model of run {run}, and no script",
                hint=f"remove {self.entry}",
            )
        if isinstance(self.data, Mapping):
            raise SpecError("--quantize-aware takes one dataset", hint="give --data FOLDER")
        dataset = None if self.data is None else os.fspath(self.data)
        return plan_fine_tuning(workspace, run, self.params or {}, dataset)

    def log_notes(self, plan: ManifestPlan | None) -> None:
        """Log what of an accepted manifest has no effect."""
        for note in plan.notes() if plan else ():
            _logger.warning("%s: %s", Path(self.manifest or "").name, note)


def _given(options: TrainOptions, plan: ManifestPlan | None) -> Mapping[str, Any]:
    """Return all options: the user's, those of the manifest, and defaults."""
    of_manifest = {} if plan is None else plan.options(options)
    return {**with_defaults(TrainOptions, options), **of_manifest}


def _engine(engine: str | Engine | None, workspace: Workspace) -> Engine:
    return engine if isinstance(engine, Engine) else get_engine(engine, workspace)


def _check_here(workspace: Workspace, given: Mapping[str, bool]) -> None:
    """Check that a task of a user-managed cluster can run here."""
    if workspace.is_remote:
        raise InputError(
            f"--cluster does not work with a workspace in a bucket: {workspace.uri}",
            hint="use a local folder: --workspace FOLDER",
        )
    for option, is_given in given.items():
        if is_given:
            raise SpecError(
                f"--{option} cannot be used with --cluster or mpirun: the task runs here"
            )


def submit(
    request: TrainingRequest,
    workspace: Workspace,
    engine: Engine,
    options: JobOptions,
    *,
    run_id: str | None = None,
    parent: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Run:
    """Start a job for a checked request; return its run at once.

    ``parent`` is the study that the run belongs to, ``env`` are further variables of the tasks. If
    the job cannot be started, its run has failed.
    """
    original = request
    if not engine.shares_machine:
        _check_seen(request, workspace, engine)
        request = with_copies(request, workspace, engine.sees)
    run_id = run_id or new_run_id("train")
    spec = job_spec(request, workspace, run_id, options)
    if env:
        spec = spec.model_copy(update={"env": {**spec.env, **env}})
    if isinstance(engine, PreviewingEngine):
        engine.preview(spec)  # an error comes before anything is copied or recorded
    if not engine.shares_machine:
        copy_datasets(original, workspace, engine.sees)
    writer = record.begin(request, workspace, run_id, options, engine.name, parent)
    try:
        record.describe(request, writer, options, copies=engine.shares_machine)
        if workspace.local_copy is not None:
            jobs.save_job(workspace, spec)
            workspace.local_copy.runs.push(run_id)
        engine.submit(spec)
    except KeyboardInterrupt:
        writer.finish("stopped", "stopped by the user before it began", "stopped")
        raise Interrupted(f"interrupted, {run_id} was not started") from None
    except BaseException as error:
        writer.finish("failed", str(error), "engine")
        raise
    return Run(run_id, workspace, Job(run_id, engine))


def _check_seen(request: TrainingRequest, workspace: Workspace, engine: Engine) -> None:
    """Check that tasks on other machines see what they need."""
    if not workspace.is_remote:
        raise SpecError(
            f"tasks on {engine.name} do not see the workspace {workspace.uri}",
            hint="give a workspace in a bucket: --workspace s3://bucket/folder",
        )
    program = request.program
    if program.kind == "script" and not program.is_in_source and not request.is_in_image:
        raise SpecError(
            f"tasks on {engine.name} do not see {program.file}",
            hint="run the command in the script's folder, whose files are uploaded",
        )


def _follow(run: Run, progress: Progress | Literal[False] | None) -> None:
    try:
        if progress is None and "IPython" in sys.modules:
            from timonel.training.display import notebook  # noqa: PLC0415 - in kernels alone

            if notebook.in_notebook():
                notebook.follow(run)
        elif progress:
            for event in run.follow(lambda: run.job.status().state.is_final):
                progress(event)
        run.wait()
    except KeyboardInterrupt:
        run.job.stop()
        run.job.wait()
        raise interruption(run.workspace, run.id) from None
