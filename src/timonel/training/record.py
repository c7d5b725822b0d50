"""Write a training request to the run's record and tasks' document.

runs/<run id>/run.json, events.jsonl    the record
             source/<name>              the program's text: a script, a module, the file of a
                                        function, or a notebook without its outputs
             function.pkl               a function that other processes cannot import
             train.json                 the document for tasks
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timonel.storage import Workspace, digest_bytes, digest_file, join, write_bytes
from timonel.tracking import Artifact, RunWriter, start_run
from timonel.tracking.redaction import redact_command
from timonel.training.functions import import_path
from timonel.training.request import JobOptions, TrainingRequest
from timonel.training.settings import Settings
from timonel.training.spec import TrainSpec

_PICKLE = "function.pkl"
_ALWAYS_RECORDED = frozenset({"strategy", "workers", "devices_per_worker"})
_SHOWN = 200


def begin(
    request: TrainingRequest,
    workspace: Workspace,
    run_id: str,
    options: JobOptions,
    engine: str | None,
    parent: str | None = None,
) -> RunWriter:
    """Create a training run's record. Steps that may fail belong in `describe`.

    Tasks started by hand have no ``engine``; ``parent`` is the study that the run belongs to.
    """
    return start_run(
        workspace,
        "train",
        run_id=run_id,
        name=options.name,
        params={**_params(request), **_settings(request, options)},
        inputs=[dataset.artifact() for dataset in request.datasets.values()],
        job_id=run_id,
        engine=engine,
        parent=parent,
        code_dir=request.program.folder,
    )


def describe(
    request: TrainingRequest, writer: RunWriter, options: JobOptions, *, copies: bool = True
) -> Path:
    """Write the program's source and the tasks' document; return the document's path.

    ``copies``: the chief copies checkpoints to the bucket of the workspace; otherwise the engine
    does, with all files of the job.
    """
    program = request.program
    if program.source:
        write_bytes(source_copy(request, writer.folder), program.source)
        digest = digest_bytes(program.source)
        file = Path(program.file)
        metadata = {"file_digest": digest_file(file)} if program.kind == "notebook" else {}
        writer.input(Artifact("source", program.file, digest, program.name, metadata))
    if request.call is not None and request.call.pickled is not None:
        write_bytes(writer.folder / _PICKLE, request.call.pickled)
    settings = _with_copies(request.settings, writer) if copies else request.settings
    spec = train_spec(request, writer, options, settings)
    if not copies and program.is_in_source and not request.is_in_image:
        # Tasks elsewhere have the source in a folder of their own.
        script = Path(program.file).relative_to(program.working_dir)
        spec = spec.model_copy(update={"script": str(script)})
    return spec.write(writer.folder)


def train_spec(
    request: TrainingRequest, writer: RunWriter, options: JobOptions, settings: Settings
) -> TrainSpec:
    """Build the tasks' document."""
    program, call = request.program, request.call
    module = program.name if program.kind == "module" else None
    return TrainSpec(
        run_id=writer.run_id,
        workspace=writer.workspace.uri,
        entry=program.kind,
        script=program.file,
        target=call.target if call else module,
        pickled=_PICKLE if call and call.pickled else None,
        keywords=call.keywords if call else {},
        import_path=import_path() if call else (),
        source=str(source_copy(request, Path())) if call and program.source else None,
        args=request.args,
        role_args=request.manifest.role_args if request.manifest else {},
        params=_params(request),
        data={name: dataset.uri for name, dataset in request.datasets.items()},
        settings=settings,
        keras=program.keras,
        imports_late=program.sets_environment,
        pass_job_dir=options.pass_job_dir,
        seed=options.seed,
    )


def _with_copies(settings: Settings, writer: RunWriter) -> Settings:
    """Return the settings with a place for copies of checkpoints in the workspace's bucket."""
    policy = settings.checkpoints
    if not writer.workspace.is_remote or policy.checkpoint_uri is not None:
        return settings
    uri = join(writer.workspace.uri, "jobs", writer.run_id, "checkpoints")
    return settings.model_copy(
        update={"checkpoints": policy.model_copy(update={"checkpoint_uri": uri})}
    )


def source_copy(request: TrainingRequest, folder: Path) -> Path:
    """Return the path of the program's source within a run's folder."""
    return folder / "source" / request.program.source_name


def _params(request: TrainingRequest) -> dict[str, str]:
    """Return the parameters as recorded text; representations of objects are shortened."""
    return {name: _text(value) for name, value in request.params.items()}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _settings(request: TrainingRequest, options: JobOptions) -> dict[str, Any]:
    """Return the recorded settings besides the user's parameters, prefixed with ``timonel.``."""
    usual = Settings()
    return {
        **{
            f"timonel.{name}": value
            for group in Settings.model_fields
            for name, value in getattr(request.settings, group).model_dump(mode="json").items()
            if name in _ALWAYS_RECORDED or value != getattr(getattr(usual, group), name)
        },
        "timonel.seed": options.seed,
        # The mirror reads these.
        **({"timonel.wandb": True} if options.wandb else {}),
        **({"timonel.wandb_project": options.wandb_project} if options.wandb_project else {}),
        **({"timonel.args": " ".join(redact_command(request.args))} if request.args else {}),
    }
