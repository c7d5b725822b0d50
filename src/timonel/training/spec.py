"""The training document for tasks: ``runs/<run id>/train.json``.

The control side writes it and every task reads it. It imports only basic modules, so that both
sides can use it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict

from timonel.errors import SpecError
from timonel.storage import find_workspace, read_document, write_document
from timonel.training.settings import Settings

FILE_NAME = "train.json"

EntryKind = Literal["script", "notebook", "module", "function"]


class TrainSpec(BaseModel):
    """A training job as its tasks see it. Immutable."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str
    workspace: str  # its location
    entry: EntryKind = "script"
    script: str  # the program's file, relative to the job's source
    target: str | None = None  # a module's name; module:name of a function to be imported
    pickled: str | None = None  # a function and its keywords by value: a file in the run's folder
    keywords: Mapping[str, Any] = {}  # of an imported function
    import_path: tuple[str, ...] = ()  # folders in which a function's modules are looked for
    source: str | None = None  # the recorded text of a function: a file in the run's folder
    args: tuple[str, ...] = ()  # of the script, as given
    role_args: Mapping[str, tuple[str, ...]] = {}  # where they differ
    params: Mapping[str, str] = {}  # each becomes the flag --name=value
    data: Mapping[str, str] = {}  # datasets by name; the unnamed one has the name ''
    settings: Settings = Settings()
    keras: Literal["keras", "tf_keras"] = "keras"
    imports_late: bool = False  # of TensorFlow, as the program changes the environment before
    pass_job_dir: bool = False  # give the script --job-dir as well
    seed: int = 0  # all tasks share it, so that they shuffle alike

    def argv(self, job_dir: str, role: str = "chief") -> list[str]:
        """Return the program's ``sys.argv``: path, parameters as flags, the user's arguments."""
        flags = [f"--{name}={value}" for name, value in self.params.items()]
        place = [f"--job-dir={job_dir}"] if self.pass_job_dir else []
        if self.entry == "function":
            return [self.script]  # a function gets keywords instead
        return [self.script, *flags, *place, *self.role_args.get(role, self.args)]

    def with_paths(self, run_dir: Path, working_dir: Path) -> Self:
        """Return this document with absolute paths, given the folders of run and source."""
        is_file = self.entry != "function"
        return self.model_copy(
            update={
                "script": str(working_dir / self.script) if is_file else self.script,
                "pickled": self.pickled and str(run_dir / self.pickled),
                "source": self.source and str(run_dir / self.source),
            }
        )

    def write(self, folder: Path) -> Path:
        """Write the document into a run's folder; return its path."""
        path = folder / FILE_NAME
        write_document(path, "train", self.model_dump(mode="json"))
        # It contains the script's options unredacted, secrets included.
        path.chmod(0o600)
        return path


KERAS_BACKEND = "KERAS_BACKEND"


def require_tensorflow_backend(backend: str | None) -> None:
    """Check that Keras' backend, if the environment has one, is TensorFlow."""
    if backend not in {None, "", "tensorflow"}:
        raise SpecError(
            f"jobs train with Keras' TensorFlow backend, got {KERAS_BACKEND}={backend}",
            hint="set it to tensorflow, or train with plain Python",
        )


def add_document_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a task's process that name its document."""
    parser.add_argument("--spec", type=Path, help="the document")
    parser.add_argument("--workspace", help="the workspace of the run with the document")
    parser.add_argument("--run", help="the run")


def document_path(options: argparse.Namespace) -> Path:
    """Return the path of the document that the options name."""
    if options.spec is not None:
        return Path(options.spec)
    # Tasks must not depend on the network once they have their document.
    workspace = find_workspace(options.workspace, create=False, offline=True)
    path = workspace.runs / str(options.run) / FILE_NAME
    if workspace.is_remote and not path.is_file():
        local_copy = find_workspace(options.workspace, create=False).local_copy
        assert local_copy is not None
        local_copy.runs.pull(str(options.run))
    return path


def read_spec(path: Path) -> TrainSpec:
    """Read a document written by `TrainSpec.write`."""
    return TrainSpec.model_validate(read_document(path, "train"))
